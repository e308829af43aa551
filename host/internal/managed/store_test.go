package managed

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/powerloss"
)

// After a loss of power the copy of a plugin is whole, or is not there.
func TestCopyAfterALossOfPower(t *testing.T) {
	for _, fstype := range powerloss.FileSystems {
		t.Run(fstype, func(t *testing.T) {
			dir, cut := powerloss.Disk(t, fstype)
			plugin := filepath.Join(t.TempDir(), "plugin")
			check.NoError(t, os.WriteFile(plugin, []byte("#!/bin/sh"), 0o700)) //nolint:gosec // it is a program
			s := NewStore(dir)
			bin, unpin, err := s.Add(plugin, "plugin", nil)
			check.NoError(t, err)
			unpin()
			cut()
			_, unpinAgain, err := s.Use(bin.SHA256, "plugin", nil)
			check.NoError(t, err)
			unpinAgain()
		})
	}
}

// A file is read again only if it has changed.
func TestFilesAreReadOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin")
	check.NoError(t, os.WriteFile(path, []byte("#!/bin/sh"), 0o700)) //nolint:gosec // it is a program
	i := New(Config{})
	right, err := i.Sum(path)
	check.NoError(t, err)
	seen := i.sums[path]
	seen.SHA256 = "seen"
	i.sums[path] = seen
	if got, err := i.Sum(path); err != nil || got != "seen" {
		t.Errorf("a file that has not changed was read again: %s, %v", got, err)
	}
	check.NoError(t, os.Chmod(path, 0o755)) //nolint:gosec // it is a program
	if got, err := i.Sum(path); err != nil || got != right {
		t.Errorf("the checksum of a changed file is %s, %v, want %s", got, err, right)
	}
}

func TestNewestCopiesAreKept(t *testing.T) {
	r := Record{Served: "5", LastGood: "2", Pinned: "1"}
	for _, sha := range []string{"1", "2", "3", "4", "5"} {
		r.Kept = append(r.Kept, Copy{SHA256: sha})
	}
	for n, want := range map[int]string{5: "12345", 4: "1245", 3: "125", 0: "125"} {
		one, kept := r, ""
		one.KeepNewest(n)
		for _, c := range one.Kept {
			kept += c.SHA256
		}
		if kept != want {
			t.Errorf("of %d: kept are %s, want %s", n, kept, want)
		}
	}
}
