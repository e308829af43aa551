// Command plots draws the curves that test/bench/curves has written, each into an SVG with both axes in logarithms:
//
//	plots curves.json DIR
//
// It is a module of its own, so that Pannier does not depend on a library for plots.
package main

import (
	"encoding/json"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

type curve struct {
	File, Title, X, Y, Words string
	Limit                    float64
	Points                   plotter.XYs
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: plots curves.json DIR")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "bench-plots:", err)
		os.Exit(1)
	}
}

func run(from, dir string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var all []curve
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	for _, c := range all {
		if err := c.draw(filepath.Join(dir, c.File+".svg")); err != nil {
			return fmt.Errorf("draw %s: %w", c.Title, err)
		}
	}
	return nil
}

func (c curve) draw(path string) error {
	p := plot.New()
	p.Title.Text = c.Title
	p.X.Label.Text = c.X + "\n" + strings.ReplaceAll(c.Words, "; ", "\n")
	p.Y.Label.Text = c.Y
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.Scale, axis.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	line, points, err := plotter.NewLinePoints(c.Points)
	if err != nil {
		return err
	}
	p.Add(plotter.NewGrid(), line, points)
	x0, x1, y0, y1 := plotter.XYRange(c.Points)
	if c.Limit > 0 {
		limit, err := plotter.NewLine(plotter.XYs{{X: x0, Y: c.Limit}, {X: x1, Y: c.Limit}})
		if err != nil {
			return err
		}
		limit.Color, limit.Dashes = color.RGBA{R: 200, A: 255}, []vg.Length{vg.Points(4), vg.Points(4)}
		p.Add(limit)
		p.Legend.Add("limit", limit)
		p.Legend.Left, p.Legend.Top = true, true
		y0, y1 = min(y0, c.Limit), max(y1, c.Limit)
	}
	p.X.Min, p.X.Max = decades(x0, x1)
	p.Y.Min, p.Y.Max = decades(y0, y1)
	return p.Save(16*vg.Centimeter, 12*vg.Centimeter, path)
}

// decades widens a range to powers of ten, at least to one decade.
func decades(low, high float64) (from, to float64) {
	from, to = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))
	return from, max(to, 10*from)
}
