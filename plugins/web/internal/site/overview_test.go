package site

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pannier/pannier/plugins/web/internal/trend"
)

// A chart is as wide as its samples reach, however short a time that is, and a few have dots.
func TestPlot(t *testing.T) {
	for _, count := range []int{1, 2, 5, 288} {
		samples := make([]trend.Sample, count)
		for n := range samples {
			samples[n] = trend.Sample{At: 1_800_000_000 + int64(n)*int64(trend.Every.Seconds()), Used: uint64(n % 7)}
		}
		c := plot(samples, func(p trend.Sample) float64 { return float64(p.Used) },
			func(v float64) string { return fmt.Sprint(v) })
		points := strings.Fields(c.Points)
		if len(points) != count || !strings.HasPrefix(points[0], "0.0,") {
			t.Errorf("%d samples: the line is %s", count, c.Points)
		}
		if count > 1 && !strings.HasPrefix(points[count-1], "300.0,") {
			t.Errorf("%d samples: the line ends at %s", count, points[count-1])
		}
		if dots := strings.Count(c.Dots, "M"); count <= fewSamples && dots != count || count > fewSamples && dots > 0 {
			t.Errorf("%d samples have %d dots: %s", count, dots, c.Dots)
		}
		if c.Since.GetSeconds() != samples[0].At {
			t.Errorf("%d samples: since %s", count, c.Since.AsTime())
		}
	}
}
