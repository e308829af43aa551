package filesystem

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
)

func TestParseOptions(t *testing.T) {
	for _, tc := range []struct {
		in    string
		flags uintptr
		set   uint64
		data  string
	}{
		{"", 0, 0, ""},
		{"defaults", 0, 0, ""},
		{"ro,noatime", unix.MS_RDONLY | unix.MS_NOATIME, unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOATIME, ""},
		{"ro rw", 0, 0, ""},
		{"noexec,discard,errors=continue", unix.MS_NOEXEC, unix.MOUNT_ATTR_NOEXEC, "discard errors=continue"},
		{"noatime strictatime", unix.MS_NOATIME | unix.MS_STRICTATIME, unix.MOUNT_ATTR_STRICTATIME, ""},
	} {
		o, err := ParseOptions(strings.Fields(tc.in))
		if err != nil || o.flags != tc.flags || o.set != tc.set || strings.Join(o.data, " ") != tc.data {
			t.Errorf("%q: got %+v, %v", tc.in, o, err)
		}
	}
	for _, bad := range []string{"bind", "remount,rw", "loop=/dev/loop1", "offset=4096", "shared", "x\ny", "errors=panic", "logdev=/dev/x"} {
		_, err := ParseOptions([]string{"noatime", bad})
		if !errors.Is(err, ErrMountFlag) {
			t.Errorf("%q: %v", bad, err)
		} else if strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "number 2") {
			t.Errorf("%q: the error is %q", bad, err)
		}
	}
}

func TestWithReadOnlyDoesNotChangeItsReceiver(t *testing.T) {
	o, err := ParseOptions([]string{"noatime"})
	check.NoError(t, err)
	if ro := o.WithReadOnly(); !ro.ReadOnly() || o.ReadOnly() || o.set&unix.MOUNT_ATTR_RDONLY != 0 {
		t.Errorf("%+v and %+v", o, ro)
	}
}

func TestErrorState(t *testing.T) {
	for _, tc := range []struct {
		mount, super string
		bad          bool
	}{
		{"rw,relatime", "rw", false},
		{"ro,relatime", "ro", false},
		{"ro,relatime", "rw", false},
		{"rw,relatime", "ro", true},
		{"rw,relatime", "rw,emergency_ro", true},
		{"rw,relatime", "rw,shutdown", true},
	} {
		if got := ErrorState(&mountinfo.Info{Options: tc.mount, VFSOptions: tc.super}); (got != "") != tc.bad {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

func TestDetect(t *testing.T) {
	for _, fsType := range []string{Ext4, XFS} {
		size := MinSize(fsType)
		path := filepath.Join(t.TempDir(), "image")
		check.NoError(t, errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)))
		if got, _, err := DetectFile(path); err != nil || got != "" {
			t.Errorf("blank: %q, %v", got, err)
		}
		if err := Supported(fsType); err != nil {
			t.Logf("not covered: %v", err)
			continue
		}
		check.NoError(t, (Programs{}).Format(t.Context(), fsType, path, false))
		if got, n, err := DetectFile(path); err != nil || got != fsType || n > size || n < size*9/10 {
			t.Errorf("%s: got %q with %d bytes of %d, %v", fsType, got, n, size, err)
		}
	}
	if got, _, err := Detect(bytes.NewReader([]byte("XFSB"))); err != nil || got != "" {
		t.Errorf("a short file: %q, %v", got, err)
	}
}

func TestSupported(t *testing.T) {
	if err := Supported("btrfs"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := Supported(Ext4); err != nil {
		t.Errorf("not found outside PATH: %v", err)
	}
	old := sbin
	defer func() { sbin = old }()
	sbin = nil
	if err := Supported(XFS); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "xfsprogs") {
		t.Errorf("got %v", err)
	}
}
