package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pannier/pannier/internal/bounded"
	"github.com/pannier/pannier/test/lib/hungfs"
)

// Only an empty lost+found that is alone is removed.
func TestEmpty(t *testing.T) {
	for name, c := range map[string]struct{ dirs, files, want []string }{
		"nothing":             {nil, nil, nil},
		"new":                 {[]string{"lost+found"}, nil, nil},
		"used":                {[]string{"lost+found"}, []string{"data"}, []string{"data", "lost+found"}},
		"something was found": {[]string{"lost+found"}, []string{"lost+found/#12"}, []string{"lost+found"}},
		"a file of that name": {nil, []string{"lost+found"}, []string{"lost+found"}},
		"another directory":   {[]string{"data"}, nil, []string{"data"}},
	} {
		dir := t.TempDir()
		for _, d := range c.dirs {
			if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range c.files {
			if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := empty(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		left, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range left {
			names = append(names, e.Name())
		}
		if !slices.Equal(names, c.want) {
			t.Errorf("%s: %q is left, want %q", name, names, c.want)
		}
	}
	if err := empty(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a directory that is not there has no error")
	}
}

// A file system does not answer: a Mount goes on without it, and however many there are, one thread waits.
func TestEmptyOfWhatHangs(t *testing.T) {
	dir := t.TempDir()
	hungfs.Mount(t, dir, 0)
	for range 3 {
		if err := empty(dir); !errors.Is(err, bounded.ErrNoAnswer) {
			t.Errorf("got %v", err)
		}
	}
}
