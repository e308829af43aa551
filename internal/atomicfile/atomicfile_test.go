package atomicfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/powerloss"
)

func TestWriteFileReplacesTheWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, want := range []string{"a longer text", "short"} {
		if err := WriteFile(path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	left(t, dir, 1)
}

func TestAFailureLeavesTheOldAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := os.MkdirAll(filepath.Join(path, "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x")); err == nil {
		t.Error("a directory was replaced")
	}
	left(t, dir, 1)
}

func left(t *testing.T, dir string, want int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != want {
		t.Errorf("in the directory are %v, %v", entries, err)
	}
}

// After a loss of power a file has all that was last written, on file systems that write the name of a file before its
// contents too.
func TestLossOfPower(t *testing.T) {
	for _, fstype := range powerloss.FileSystems {
		t.Run(fstype, func(t *testing.T) {
			dir, cut := powerloss.Disk(t, fstype)
			path := filepath.Join(dir, "f")
			for _, want := range []string{"first", strings.Repeat("a longer text ", 10_000), "short"} {
				if err := WriteFile(path, []byte(want)); err != nil {
					t.Fatal(err)
				}
				cut()
				if got, err := os.ReadFile(path); err != nil || string(got) != want {
					t.Errorf("after the loss of power there are %d bytes, %v, want %d", len(got), err, len(want))
				}
			}
		})
	}
}
