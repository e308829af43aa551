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

func TestWriteFileKeepsWhatIsTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	write := func(text string) os.FileInfo {
		t.Helper()
		if err := WriteFile(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if got, readErr := os.ReadFile(path); err != nil || readErr != nil || string(got) != text || info.Mode() != 0o600 {
			t.Fatalf("got %q, %v, %v, %v", got, info, err, readErr)
		}
		return info
	}
	first := write("one")
	if !os.SameFile(first, write("one")) {
		t.Error("the same contents were written again")
	}
	if os.SameFile(first, write("two")) {
		t.Error("other contents of the same size were not written as a new file")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	write("two")
}
