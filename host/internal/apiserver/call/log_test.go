package call

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// The last lines of a file of any length, wherever its lines end.
func TestLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, text := range []string{
		"", "\n", "a", "a\n", "a\nb", "a\nb\n", "a\n\nb\n", strings.Repeat("line\n", 30_000),
		strings.Repeat("x", maxLogLine-1) + "\nb\n",
	} {
		check.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		f := check.Must(os.Open(path))(t)
		t.Cleanup(func() { f.Close() })
		lines := strings.SplitAfter(text, "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		for _, n := range []int{0, 1, 2, 3, 20_000, 1_000_000} {
			want := len(strings.Join(lines[len(lines)-min(n, len(lines)):], ""))
			if got, err := lastLines(f, n); err != nil || int(got) != len(text)-want {
				t.Errorf("the last %d lines of %.20q begin at %d, %v; want %d", n, text, got, err, len(text)-want)
			}
		}
	}
}
