package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A file is made whole or not at all, for its owner alone, and replaces nothing.
func TestCreate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	write := func(text string, fails error) func(f *os.File) error {
		return func(f *os.File) error {
			if _, err := os.Lstat(path); err == nil {
				t.Error("it is there before it is complete")
			}
			_, err := f.WriteString(text)
			return errors.Join(err, fails)
		}
	}
	files := func() int {
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	broken := errors.New("cut off")
	if err := Create(path, write("half", broken)); !errors.Is(err, broken) || files() != 0 {
		t.Errorf("%v, and %d files are left", err, files())
	}
	if err := Create(path, write("whole", nil)); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || files() != 1 {
		t.Errorf("%v, %v, %d files", info.Mode(), err, files())
	}
	again := Create(path, func(*os.File) error { t.Error("it writes"); return nil })
	meanwhile := Create(path+"2", func(*os.File) error { return os.WriteFile(path+"2", []byte("theirs"), 0o600) })
	for what, err := range map[string]error{"there before": again, "made meanwhile": meanwhile} {
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if text, err := os.ReadFile(path + "2"); err != nil || string(text) != "theirs" || files() != 2 {
		t.Errorf("replaced by %q, %v; %d files", text, err, files())
	}
}
