package cabundle

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	b, a := write("b.pem", "b"), write("a.pem", "a\n")
	link := filepath.Join(dir, "c.pem")
	if err := errors.Join(os.Symlink("a.pem", link), os.Mkdir(filepath.Join(dir, "d"), 0o700)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{b: "b\n", a: "a\n", dir: "a\nb\na\n", filepath.Join(dir, "d"): ""} {
		if got, err := Read(path); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	if got, err := Files(dir); err != nil || !slices.Equal(got, []string{a, b, link}) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Read(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
}
