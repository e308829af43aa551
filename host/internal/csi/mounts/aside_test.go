package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

func TestSetAsideMovesAndDeletesNothing(t *testing.T) {
	l := newLayout(t)
	path := target(t, l)
	now := time.Now()
	for _, empty := range []string{path, filepath.Join(path, "not", "there"), l.Staging("never", data, rw)} {
		if to, err := l.SetAside(empty, now); to != "" || err != nil {
			t.Errorf("%s is empty, and is moved to %q (%v)", empty, to, err)
		}
	}
	for name, put := range map[string]func() error{
		"directory": func() error {
			return errors.Join(os.MkdirAll(filepath.Join(path, "a/b"), 0o700),
				os.WriteFile(filepath.Join(path, "a/b/file"), []byte("kept"), 0o600))
		},
		"link": func() error {
			return errors.Join(os.MkdirAll(path, 0o700), os.Symlink("/etc/passwd", filepath.Join(path, "link")))
		},
		"file": func() error {
			return errors.Join(l.Remove(path), l.Make(filepath.Dir(path)), os.WriteFile(path, []byte("kept"), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			check.NoError(t, put())
			if err := l.CheckEmpty(path); !errors.Is(err, ErrHoldsData) || !strings.Contains(err.Error(), path) {
				t.Errorf("what holds data is %v", err)
			}
			now = now.Add(time.Nanosecond)
			to, err := l.SetAside(path, now)
			check.NoError(t, err)
			if !strings.HasPrefix(to, l.Driver("d")+"/set-aside/") ||
				!strings.HasSuffix(to, strings.TrimPrefix(path, l.Driver("d"))) {
				t.Errorf("it was moved to %s", to)
			}
			switch name {
			case "directory":
				to += "/a/b/file"
				fallthrough
			case "file":
				if raw, err := os.ReadFile(to); err != nil || string(raw) != "kept" {
					t.Errorf("%s holds %q (%v)", to, raw, err)
				}
			case "link":
				if got, err := os.Readlink(to + "/link"); err != nil || got != "/etc/passwd" {
					t.Errorf("the link leads to %q (%v)", got, err)
				}
			}
			check.NoError(t, l.CheckEmpty(path))
			check.NoError(t, l.Remove(path))
		})
	}
}

// A second move at the same moment overwrites nothing.
func TestSetAsideOverwritesNothing(t *testing.T) {
	l := newLayout(t)
	path, now := l.Target("d", redis, data, rw, "r"), time.Now()
	for n, content := range []string{"first", "second"} {
		check.NoError(t, l.Make(filepath.Dir(path)))
		check.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		to, err := l.SetAside(path, now)
		if stays := (*os.LinkError)(nil); n == 1 && (!errors.As(err, &stays) || to != "") {
			t.Errorf("it was moved to %q over what is there: %v", to, err)
		}
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "second" {
		t.Errorf("it holds %q (%v)", raw, err)
	}
}

// A volume's own files, which a mount shows, are never moved; nor is anything outside of the drivers' folders.
func TestSetAsideLeavesWhatIsMounted(t *testing.T) {
	testbin.RequireRoot(t, "mounts in the way")
	l := newLayout(t)
	path := target(t, l)
	for _, at := range []string{path, filepath.Join(path, "below")} {
		check.NoError(t, os.MkdirAll(at, 0o700))
		mount(t, "volume", at, "tmpfs", 0)
		check.NoError(t, os.WriteFile(filepath.Join(at, "file"), []byte("kept"), 0o600))
		if to, err := l.SetAside(path, time.Now()); err == nil || to != "" {
			t.Errorf("with a mount at %s it was moved to %q", at, to)
		}
		check.NoError(t, os.Remove(filepath.Join(at, "file")))
		check.NoError(t, l.Unmount(at))
	}
	outside := filepath.Join(l.Driver("d"), "elsewhere", "x")
	check.NoError(t, os.MkdirAll(outside, 0o700))
	check.NoError(t, os.WriteFile(filepath.Join(outside, "file"), nil, 0o600))
	if to, err := l.SetAside(outside, time.Now()); !errors.Is(err, ErrOutside) || to != "" {
		t.Errorf("what lies elsewhere was moved to %q (%v)", to, err)
	}
}
