package mountgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The group gets all that is in the volume, and nothing outside. A second time the root decides.
func TestSet(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root; not covered: groups of files")
	}
	top := t.TempDir()
	dir, outside := filepath.Join(top, "volume"), filepath.Join(top, "outside")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"volume/sub", "outside"} {
		must(os.MkdirAll(filepath.Join(top, d), 0o700))
	}
	must(os.WriteFile(filepath.Join(dir, "sub/data"), nil, 0o600))
	must(os.WriteFile(filepath.Join(dir, "run"), nil, 0o700))
	must(os.Symlink("../outside", filepath.Join(dir, "link")))
	check := func(path string, gid uint32, mode fs.FileMode) {
		t.Helper()
		info, err := os.Lstat(path)
		must(err)
		if got := info.Sys().(*syscall.Stat_t).Gid; got != gid || mode != 0 && info.Mode() != mode {
			t.Errorf("%s has group %d and mode %s, want %d and %s", path, got, info.Mode(), gid, mode)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Set(ended, dir, 4242); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	check(dir, 0, fs.ModeDir|0o755&^0o055) // the root comes last
	must(Set(t.Context(), dir, 4242))
	const group = fs.ModeDir | fs.ModeSetgid | 0o770
	check(dir, 4242, group)
	check(filepath.Join(dir, "sub"), 4242, group)
	check(filepath.Join(dir, "sub/data"), 4242, 0o660)
	check(filepath.Join(dir, "run"), 4242, 0o770)
	check(filepath.Join(dir, "link"), 4242, 0)
	check(outside, 0, fs.ModeDir|0o700)
	must(os.WriteFile(filepath.Join(dir, "later"), nil, 0o600))
	must(os.Chown(filepath.Join(dir, "later"), 0, 7))
	must(Set(t.Context(), dir, 4242))
	check(filepath.Join(dir, "later"), 7, 0o600)
}
