package main

import (
	"errors"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// drawPlots draws the plots of docs/benchmarks.md from its tables, each as an SVG image in the directory plots beside
// it.
func drawPlots(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	images, err := plots(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	dir := filepath.Join(filepath.Dir(file), "plots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, image := range images {
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), []byte(image), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// plots returns the images by the sections that they belong to.
func plots(page string) (map[string]string, error) {
	images := make(map[string]string)
	for name, draw := range map[string]func(t table) (string, error){
		"scale": scalePlot, "restarts": restartsPlot, "rsh": shellPlot,
	} {
		t, err := tableOf(page, name)
		if err == nil {
			images[name], err = draw(t)
		}
		if err != nil {
			return nil, fmt.Errorf("section %s: %w", name, err)
		}
	}
	return images, nil
}

// table is the table of a section.
type table struct {
	columns []string
	rows    map[string][]string
}

func tableOf(page, section string) (table, error) {
	r := report{name: section}
	_, rest, found := strings.Cut(page, r.begin())
	text, _, ended := strings.Cut(rest, r.end())
	if !found || !ended {
		return table{}, errors.New("not found")
	}
	t := table{rows: make(map[string][]string)}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|\n"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if t.columns == nil {
			t.columns = cells[1:]
		}
		t.rows[cells[0]] = cells[1:]
	}
	return t, nil
}

// median returns the number at the beginning of a cell.
func (t table) median(row string, column int) (float64, error) {
	cells := t.rows[row]
	if column >= len(cells) {
		return 0, fmt.Errorf("no row %q with %d columns", row, column+1)
	}
	text, _, _ := strings.Cut(cells[column], " ")
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("row %q: %w", row, err)
	}
	return value, nil
}

// medians returns the numbers of a row from the first columns.
func (t table) medians(row string, columns int) (out []float64, err error) {
	for column := range columns {
		value, err := t.median(row, column)
		if err != nil {
			return nil, err
		}
		out = append(out, value)
	}
	return out, nil
}

func scalePlot(t table) (string, error) {
	var sizes []float64
	for _, column := range t.columns {
		var n float64
		if _, err := fmt.Sscanf(column, "%f containers", &n); err != nil {
			return "", fmt.Errorf("column %q: %w", column, err)
		}
		sizes = append(sizes, n)
	}
	var curves []curve
	for _, c := range []struct {
		row, name string
		factor    float64
	}{
		{"all at once: start to launch, s", "all start at once: until the launch", 1},
		{"CPU of rank 0 until then, s", "CPU of rank 0 until then", 1},
		{"the last container's start to launch, ms", "the last one starts: until the launch", 1e-3},
	} {
		values, err := t.medians(c.row, len(t.columns))
		if err != nil {
			return "", err
		}
		for i := range values {
			values[i] *= c.factor
		}
		name := fmt.Sprintf("%s, ~ N^%.2f", c.name, exponent(sizes, values))
		curves = append(curves, curve{name, sizes, values})
	}
	return lines("Seconds by the number of containers N, on one machine", curves), nil
}

// exponent returns k of the power law y = c·x^k that fits best, by least squares of the logarithms.
func exponent(x, y []float64) float64 {
	var sx, sy, sxx, sxy float64
	for i := range x {
		lx, ly := math.Log(x[i]), math.Log(y[i])
		sx, sy, sxx, sxy = sx+lx, sy+ly, sxx+lx*lx, sxy+lx*ly
	}
	n := float64(len(x))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

func restartsPlot(t table) (string, error) {
	var bars []bar
	for _, row := range []struct{ row, name string }{
		{"a process is killed", "paiinit --restarts"},
		{"the same; all containers are started again", "all containers started again"},
	} {
		values, err := t.medians(row.row, len(t.columns))
		if err != nil {
			return "", err
		}
		for i, value := range values {
			bars = append(bars, bar{row.name + ", " + t.columns[i], value})
		}
	}
	return barPlot("A rank's process is killed: ms until the job runs again", bars), nil
}

func shellPlot(t table) (string, error) {
	const shells = 4 // the columns after them are no remote shells
	values, err := t.medians("one command, ms", shells)
	if err != nil {
		return "", err
	}
	var bars []bar
	for i, value := range values {
		bars = append(bars, bar{t.columns[i], value})
	}
	return barPlot("A command on another host: ms from start to end", bars), nil
}

// curve is a line of a plot, whose x and y are above 0.
type curve struct {
	name string
	x, y []float64
}

// bar is a value above 0 with its name.
type bar struct {
	name  string
	value float64
}

// Sizes in pixels.
const (
	plotWidth                              = 720
	plotLeft, plotRight, plotTop, plotFoot = 64, 24, 44, 40
	barLeft, barStep                       = 260, 30
	curvesHeight                           = 300
)

// style fits pages that are light or dark.
const style = `<style>
text{font:13px sans-serif;fill:#222}.t{font-size:15px;font-weight:600}.g{stroke:#8884;fill:none}
.c0,.b{fill:#2563eb}.c1{fill:#d97706}.c2{fill:#059669}.l0{stroke:#2563eb}.l1{stroke:#d97706}.l2{stroke:#059669}
.l0,.l1,.l2{fill:none;stroke-width:2}
@media(prefers-color-scheme:dark){text{fill:#ddd}}
</style>
`

// svg returns an image with a title. Screen readers read alt instead of the drawing.
func svg(height int, title, alt, body string) string {
	return fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\">\n"+
		"<title>%s</title><desc>%s</desc>\n%s<text class=\"t\" x=\"12\" y=\"24\">%[3]s</text>\n%[6]s</svg>\n",
		plotWidth, height, html.EscapeString(title), html.EscapeString(alt), style, body)
}

// axis maps the logarithms of values to pixels.
type axis struct{ low, high, from, to float64 }

// newAxis returns an axis from the power of ten below the values to the one above.
func newAxis(values []float64, from, to float64) axis {
	low := math.Floor(math.Log10(slices.Min(values)))
	high := math.Ceil(math.Log10(slices.Max(values)))
	return axis{low, max(high, low+1), from, to}
}

func (a axis) at(value float64) float64 {
	return a.from + (math.Log10(value)-a.low)/(a.high-a.low)*(a.to-a.from)
}

// ticks returns the powers of ten on the axis.
func (a axis) ticks() (out []float64) {
	for e := a.low; e <= a.high; e++ {
		out = append(out, math.Pow(10, e))
	}
	return out
}

// number formats a value with up to four digits, and all digits before the point.
func number(v float64) string {
	if v >= 1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// lines draws curves whose axes are logarithmic.
func lines(title string, curves []curve) string {
	var xs, ys []float64
	for _, c := range curves {
		xs, ys = append(xs, c.x...), append(ys, c.y...)
	}
	slices.Sort(xs)
	xs = slices.Compact(xs)
	x := axis{math.Log10(xs[0]), math.Log10(xs[len(xs)-1]), plotLeft, plotWidth - plotRight}
	y := newAxis(ys, curvesHeight-plotFoot, plotTop+20*float64(len(curves)))
	var b, alt strings.Builder
	for _, tick := range y.ticks() {
		fmt.Fprintf(&b, "<path class=\"g\" d=\"M%d %.1fH%d\"/>", plotLeft, y.at(tick), plotWidth-plotRight)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			plotLeft-8, y.at(tick)+4, number(tick))
	}
	for _, n := range xs {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
			x.at(n), curvesHeight-plotFoot+20, number(n))
	}
	for i, c := range curves {
		var path strings.Builder
		fmt.Fprintf(&alt, "%s:", c.name)
		for j := range c.x {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(j, 1)], x.at(c.x[j]), y.at(c.y[j]))
			fmt.Fprintf(&b, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>", i, x.at(c.x[j]), y.at(c.y[j]))
			fmt.Fprintf(&alt, " %s at %s", number(c.y[j]), number(c.x[j]))
		}
		alt.WriteString(". ")
		fmt.Fprintf(&b, "<path class=\"l%d\" d=\"%s\"/>\n", i, path.String())
		fmt.Fprintf(&b, "<rect class=\"c%d\" x=\"%d\" y=\"%d\" width=\"12\" height=\"4\"/>",
			i, plotLeft, plotTop+20*i-2)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\">%s</text>\n",
			plotLeft+20, plotTop+20*i+4, html.EscapeString(c.name))
	}
	return svg(curvesHeight, title, strings.TrimSpace(alt.String()), b.String())
}

// barPlot draws bars with their values.
func barPlot(title string, bars []bar) string {
	longest := 0.0
	for _, bar := range bars {
		longest = max(longest, bar.value)
	}
	var b, alt strings.Builder
	for i, bar := range bars {
		y, length := plotTop+barStep*i, bar.value/longest*(plotWidth-plotLeft-barLeft)
		fmt.Fprintf(&b, "<rect class=\"b\" x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"18\"/>", barLeft, y, length)
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>",
			barLeft-8, y+14, html.EscapeString(bar.name))
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%d\">%s</text>\n", barLeft+length+6, y+14, number(bar.value))
		fmt.Fprintf(&alt, "%s %s; ", bar.name, number(bar.value))
	}
	return svg(plotTop+barStep*len(bars), title, strings.TrimSuffix(alt.String(), "; "), b.String())
}
