package site

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// What is not text and has to be seen has a contrast of at least 3 with what is beside it, in both schemes (WCAG 2.2,
// 1.4.11): fields, the focus, and the state that a bar or a border shows.
func TestPalette(t *testing.T) {
	css := string(check.Must(files.ReadFile("static/web.css"))(t))
	light, rest, _ := strings.Cut(css, "@media (prefers-color-scheme: dark)")
	dark, _, _ := strings.Cut(rest, "\n}\n")
	for scheme, text := range map[string]string{"light": light, "dark": dark} {
		colours := map[string]float64{}
		for _, c := range regexp.MustCompile(`--([a-z-]+): #([0-9a-f]{6});`).FindAllStringSubmatch(text, -1) {
			colours[c[1]] = luminance(check.Must(strconv.ParseUint(c[2], 16, 24))(t))
		}
		for _, pair := range [][2]string{
			{"edge", "sheet"},
			{"edge", "ground"},
			{"accent", "sheet"},
			{"accent", "ground"},
			{"bar", "sheet"},
			{"bar", "bar-ground"},
			{"high", "bar-ground"},
			{"full", "bar-ground"},
			{"warn", "sheet"},
			{"bad", "sheet"},
		} {
			a, b := colours[pair[0]], colours[pair[1]]
			if ratio := (max(a, b) + 0.05) / (min(a, b) + 0.05); ratio < 3 {
				t.Errorf("%s: %s on %s has a contrast of %.2f", scheme, pair[0], pair[1], ratio)
			}
		}
	}
}

// luminance of a colour of sRGB, as WCAG 2.2 defines it.
func luminance(rgb uint64) float64 {
	part := func(shift int) float64 {
		v := float64(rgb>>shift&0xff) / 255
		if v <= 0.04045 {
			return v / 12.92
		}
		return math.Pow((v+0.055)/1.055, 2.4)
	}
	return 0.2126*part(16) + 0.7152*part(8) + 0.0722*part(0)
}
