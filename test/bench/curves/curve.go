package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/pannier/pannier/test/bench/table"
)

// curve is one quantity over one size.
type curve struct {
	File   string  `json:"file"` // of the picture, without its ending
	Title  string  `json:"title"`
	X      string  `json:"x"`
	Y      string  `json:"y"`
	Limit  float64 `json:"limit"` // that the quantity must not exceed; 0: none
	Points []point `json:"points"`
	Words  string  `json:"words"`
}

type point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// curvesOf groups the rows of a section, whose title is the size.
func curvesOf(s table.Section) (all []curve) {
	numbers := map[string]int{}
	for _, row := range s.Rows {
		if row.At <= 0 || row.Value <= 0 { // there is no logarithm of it
			continue
		}
		n, ok := numbers[row.What]
		if !ok {
			n = len(all)
			numbers[row.What] = n
			all = append(all, curve{
				File: word(row.What + " over " + s.Title), Title: row.What + " over " + s.Title, X: s.Title, Y: row.Unit,
			})
		}
		all[n].Limit = row.AtMost
		all[n].Points = append(all[n].Points, point{row.At, row.Value})
	}
	for n := range all {
		all[n].Words = all[n].words()
	}
	return all
}

func word(text string) string {
	return strings.Join(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}), "-")
}

// words says how the curve grows, and where it meets its limit.
func (c curve) words() string {
	first, last := c.Points[0], c.Points[len(c.Points)-1]
	if len(c.Points) < 2 {
		return fmt.Sprintf("%s at %s %s only", c.value(first.Y), count(first.X), c.X)
	}
	text := fmt.Sprintf("%s at %s, %s at %s %s; slope %.2f, at the end %.2f", c.value(first.Y), count(first.X),
		c.value(last.Y), count(last.X), c.X, slope(c.Points), slope(c.Points[len(c.Points)-2:]))
	if c.Limit == 0 {
		return text
	}
	wall, measured := c.wall()
	switch limit := c.value(c.Limit); {
	case measured && wall <= first.X:
		return fmt.Sprintf("%s; its limit of %s is passed everywhere", text, limit)
	case measured:
		return fmt.Sprintf("%s; its limit of %s was passed at about %s", text, limit, count(wall))
	case wall > 1000*last.X:
		return fmt.Sprintf("%s; its limit of %s is not in sight", text, limit)
	default:
		return fmt.Sprintf("%s; it goes on to its limit of %s at about %s", text, limit, count(wall))
	}
}

// wall is the size at which the curve first passes its limit, whether between measured points, or beyond them if it
// goes on as between the last two.
func (c curve) wall() (x float64, measured bool) {
	if c.Points[0].Y > c.Limit {
		return c.Points[0].X, true
	}
	for n := range c.Points[1:] {
		a, b := c.Points[n], c.Points[n+1]
		if b.Y > c.Limit {
			return meet(a, slope([]point{a, b}), c.Limit), true
		}
	}
	n := len(c.Points)
	rise := slope(c.Points[n-2:])
	if rise <= 0 {
		return math.Inf(1), false
	}
	return meet(c.Points[n-1], rise, c.Limit), false
}

// meet is where a line from a point, in logarithms, has a value.
func meet(from point, slope, y float64) float64 {
	return from.X * math.Pow(y/from.Y, 1/slope)
}

// slope is that of the least squares through the logarithms: the power of the size with which the quantity grows.
func slope(points []point) float64 {
	var sx, sy, sxx, sxy float64
	for _, p := range points {
		x, y := math.Log(p.X), math.Log(p.Y)
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	n := float64(len(points))
	return (n*sxy - sx*sy) / (n*sxx - sx*sx)
}

func (c curve) value(v float64) string {
	text := fmt.Sprintf("%.3g", v)
	if v >= 1000 {
		text = count(v)
	}
	return strings.TrimSpace(text + " " + c.Y)
}

// count writes a number of things with two digits that count and commas: 3,200,000.
func count(v float64) string {
	if v >= 100 {
		unit := math.Pow(10, math.Floor(math.Log10(v))-1)
		v = math.Round(v/unit) * unit
	}
	digits := fmt.Sprintf("%.0f", v)
	for n := len(digits) - 3; n > 0; n -= 3 {
		digits = digits[:n] + "," + digits[n:]
	}
	return digits
}
