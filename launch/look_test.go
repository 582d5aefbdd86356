package launch

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLook(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"a", "b/tool", "work/bin", "noexec"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, d), 0o755))
	}
	for name, mode := range map[string]os.FileMode{
		"a/mpirun": 0o755, "a/data": 0o644, "noexec/mpirun": 0o644,
		"work/run.sh": 0o755, "work/bin/job": 0o755, "work/data": 0o600, "work/mpirun": 0o755,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte("#!/bin/sh\n"), mode))
	}
	require.NoError(t, os.Symlink(filepath.Join(root, "nowhere"), filepath.Join(root, "a/dangling")))
	a, b, work := filepath.Join(root, "a"), filepath.Join(root, "b"), filepath.Join(root, "work")

	for name, tt := range map[string]struct {
		name    string
		environ []string
		dir     string
		want    string
		status  int
		err     string
	}{
		"in PATH":                     {"mpirun", []string{"PATH=" + b + ":" + a}, "", a + "/mpirun", 0, ""},
		"first PATH counts":           {"mpirun", []string{"PATH=" + a, "PATH=" + b}, "", a + "/mpirun", 0, ""},
		"goes on after no permission": {"mpirun", []string{"PATH=" + root + "/noexec:" + a}, "", a + "/mpirun", 0, ""},
		"no PATH":                     {"sh", nil, "", "", 0, ""},
		"not in PATH": {
			"mpirnu", []string{"PATH=" + a}, "", "",
			127, `running "mpirnu": not found in PATH (` + a + `)`,
		},
		"empty name": {"", []string{"PATH=" + a}, "", "", 127, `running "": the command is empty`},
		"not executable in PATH": {
			"data", []string{"PATH=" + a}, "", "",
			126, `running "data": execute ` + a + `/data: permission denied`,
		},
		"directory in PATH": {
			"tool", []string{"PATH=" + b}, "", "",
			126, `running "tool": execute ` + b + `/tool: is a directory`,
		},
		"PATH entry is a file":     {"x", []string{"PATH=" + a + "/data"}, "", "", 127, `not found in PATH`},
		"dangling link":            {"dangling", []string{"PATH=" + a}, "", "", 127, `not found in PATH`},
		"absolute":                 {a + "/mpirun", nil, "/", a + "/mpirun", 0, ""},
		"absolute, not there":      {a + "/nope", nil, "", "", 127, "no such file or directory"},
		"absolute, directory":      {a + "/", nil, "", "", 126, "is a directory"},
		"absolute, not executable": {a + "/data", nil, "", "", 126, "permission denied"},
		"below a file":             {a + "/data/x", nil, "", "", 127, "not a directory"},
		"relative":                 {"./run.sh", nil, work, work + "/run.sh", 0, ""},
		"relative, deeper":         {"bin/job", []string{"PATH=" + a}, work, work + "/bin/job", 0, ""},
		"relative, not executable": {"./data", nil, work, "", 126, "permission denied"},
		"dot in PATH": {
			"run.sh", []string{"PATH=.:" + a}, work, "",
			126, `found by the relative entry "." of PATH`,
		},
		"empty entry in PATH": {
			"run.sh", []string{"PATH=" + a + "::/bin"}, work, "",
			126, `found by the relative entry "" of PATH`,
		},
		"relative entry in PATH": {
			"job", []string{"PATH=bin"}, work, "",
			126, `found by the relative entry "bin" of PATH`,
		},
		"empty PATH":             {"run.sh", []string{"PATH="}, work, "", 127, `not found in PATH ()`},
		"dot in PATH, not there": {"mpirun", []string{"PATH=.:" + a}, root, a + "/mpirun", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Look(tt.name, tt.environ, tt.dir)
			if tt.status == 0 {
				require.NoError(t, err)
				if tt.want != "" {
					require.Equal(t, tt.want, got)
				}
				return
			}
			var le *LookError
			require.ErrorAs(t, err, &le)
			require.Equal(t, tt.status, le.Status, "%v", err)
			require.Equal(t, tt.name, le.Name)
			require.ErrorContains(t, err, tt.err)
			require.Empty(t, got)
		})
	}
	_, err := Look("run.sh", []string{"PATH=."}, work)
	require.True(t, errors.Is(err, exec.ErrDot))

	t.Chdir(work)
	got, err := Look("./run.sh", nil, "")
	require.NoError(t, err)
	require.Equal(t, "./run.sh", got)
}

func TestLookPast(t *testing.T) {
	root := t.TempDir()
	program := func(name string) string {
		file := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(name), 0o755))
		return file
	}
	ours, image, other := program("paiinit"), program("image/ssh"), program("other/ssh")
	for _, link := range []string{"bin/ssh", "again/ssh"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(link)), 0o755))
		require.NoError(t, os.Symlink(ours, filepath.Join(root, link)))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(root, "hard"), 0o755))
	require.NoError(t, os.Link(ours, filepath.Join(root, "hard/ssh")))
	self, err := os.Stat(ours)
	require.NoError(t, err)
	for _, tt := range []struct {
		want string
		path []string
	}{
		{image, []string{"bin", "image", "other"}},
		{image, []string{"bin", "again", "hard", "image"}},
		// earlier entries do not count: two programs that pass calls on would call each other for ever
		{image, []string{"other", "bin", "image"}},
		{other, []string{"other", "image"}}, // called by its path
		{"", []string{"image", "bin"}},
		{"", []string{"bin", "hard"}},
	} {
		var path []string
		for _, p := range tt.path {
			path = append(path, filepath.Join(root, p))
		}
		got, err := LookPast("ssh", []string{"PATH=" + strings.Join(path, ":")}, self)
		require.Equal(t, tt.want, got, "%v", tt.path)
		if tt.want == "" {
			require.ErrorContains(t, err, "there is no other ssh in PATH")
			var le *LookError
			require.ErrorAs(t, err, &le)
			require.Equal(t, 127, le.Status)
		}
	}
	t.Chdir(filepath.Join(root, "image"))
	_, err = LookPast("ssh", []string{"PATH=.:" + root + "/bin"}, self)
	require.Error(t, err, "a relative entry of PATH")
}
