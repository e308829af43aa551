// Package hungfs mounts a file system that does not answer. It is for tests only.
package hungfs

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testbin"
)

// Mount mounts a FUSE file system at a path, whose server reads no request until the end of the test. It belongs to a
// user, and nobody else may ask it anything (fuse(4), allow_other).
func Mount(t testing.TB, path string, user int) {
	t.Helper()
	testbin.RequireRoot(t, "a file system that does not answer")
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs /dev/fuse (%v); not covered: a file system that does not answer", err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil { // the kernel ends all calls
			t.Error(err)
		}
		_ = unix.Unmount(path, unix.MNT_DETACH)
	})
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=0", fd, user)
	if err := unix.Mount("hung", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Fatalf("mount at %s: %v", path, err)
	}
}
