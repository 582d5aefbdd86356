//go:build screenshots

package timeline

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"html"
	"image"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var keep = flag.String("keep", "", "directory in which the screenshots stay")

// chromium shows a page in a frame of the given size, because its own window is at least 500 pixels wide. It returns
// the standard output.
func chromium(t *testing.T, page string, width, height int, dark bool, flags ...string) string {
	dir := t.TempDir()
	frame := fmt.Sprintf(`<!DOCTYPE html><html><body style="margin:0">`+
		`<iframe srcdoc="%s" style="border:0;display:block;width:%dpx;height:%dpx"></iframe></body></html>`,
		html.EscapeString(page), width, height)
	file := filepath.Join(dir, "frame.html")
	require.NoError(t, os.WriteFile(file, []byte(frame), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	scheme := "1"
	if dark {
		scheme = "0"
	}
	args := append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--user-data-dir=" + filepath.Join(dir, "profile"),
		"--blink-settings=preferredColorScheme=" + scheme,
		fmt.Sprintf("--window-size=%d,%d", max(width, 500), height),
	}, flags...)
	cmd := exec.CommandContext(ctx, "chromium", append(args, "file://"+file)...)
	cmd.WaitDelay = 10 * time.Second // its helpers may outlive it
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	require.NoError(t, err, failed.String())
	return string(out)
}

// widths measures the page: how wide its content is, and how wide the window is.
func widths(t *testing.T, page string, width, height int) (content, window int) {
	const policy = `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">`
	require.Contains(t, page, policy)
	page = strings.Replace(page, policy, "", 1) // the page itself runs no script
	page = strings.Replace(page, "</body>", `<script>const root = document.documentElement;`+
		`parent.document.title = "measured " + root.scrollWidth + " " + root.clientWidth;</script></body>`, 1)
	out := chromium(t, page, width, height, false, "--virtual-time-budget=5000", "--dump-dom")
	found := regexp.MustCompile(`measured (\d+) (\d+)`).FindStringSubmatch(out[:strings.Index(out, "<body")])
	require.NotNil(t, found)
	content, _ = strconv.Atoi(found[1])
	window, _ = strconv.Atoi(found[2])
	return content, window
}

// look returns the brightness of the page, 0 to 255, and its number of colours.
func look(t *testing.T, file string, width, height int) (brightness, colours int) {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	shot, err := png.Decode(f)
	require.NoError(t, err)
	require.True(t, image.Pt(width, height).In(shot.Bounds().Inset(-1)), shot.Bounds())
	seen := map[[3]uint32]bool{}
	sum := 0
	for y := range height {
		for x := range width {
			r, g, b, _ := shot.At(x, y).RGBA()
			seen[[3]uint32{r >> 8, g >> 8, b >> 8}] = true
			sum += int(r>>8+g>>8+b>>8) / 3
		}
	}
	return sum / (width * height), len(seen)
}

// shots are the pages that are looked at.
func shots() map[string]Page {
	all := map[string]Page{}
	for _, name := range []string{"late", "missing", "lost", "many", "thousand"} {
		all[name] = page(timelines()[name], "")
	}
	failed := page(timelines()["late"], "")
	failed.Ended, failed.Status, failed.Phase = true, 137, "ended"
	failed.Reason = "MPI rank 4 on worker-2 (10.0.0.7) was killed by SIGKILL: out of memory, 1 kill in its cgroup\n" +
		"  last lines of its stderr:\n" +
		"    File \"/opt/training/very/long/path/to/the/model/train.py\", line 8, in step\n" +
		"    ValueError: loss is NaN at step 17 <script>alert(1)</script> " + strings.Repeat("x", 200)
	all["failed"] = failed
	return all
}

// TestScreenshots looks at each page at the width of a phone and of a desktop, light and dark. Nothing may need
// scrolling to the side, and the page must not be blank.
func TestScreenshots(t *testing.T) {
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Fatal(err) // only make test-screenshots builds this test, and installs chromium
	}
	for name, p := range shots() {
		page := p.markup(t)
		for _, size := range []struct {
			name          string
			width, height int
		}{{"phone", 390, 844}, {"desktop", 1280, 900}} {
			content, window := widths(t, page, size.width, size.height)
			require.LessOrEqual(t, content, window, "%s overflows on a %s", name, size.name)
			for _, dark := range []bool{false, true} {
				scheme := map[bool]string{false: "light", true: "dark"}[dark]
				file := filepath.Join(cmp.Or(*keep, t.TempDir()), fmt.Sprintf("%s-%s-%s.png", name, size.name, scheme))
				chromium(t, page, size.width, size.height, dark, "--screenshot="+file)
				brightness, colours := look(t, file, size.width, size.height)
				t.Logf("%s: brightness %d, %d colours, content %d of %d pixels",
					filepath.Base(file), brightness, colours, content, window)
				require.Greater(t, colours, 20, file)
				require.Equal(t, dark, brightness < 128, "%s has brightness %d", file, brightness)
			}
		}
	}
}
