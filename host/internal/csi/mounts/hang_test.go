package mounts

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/hungfs"
)

// Nothing that is made, looked at or unmounted at a path waits for the file system that is mounted there, and an abort
// ends the calls of others that do.
func TestFileSystemThatHangs(t *testing.T) {
	l := newLayout(t)
	path := l.Target("d", redis, data, rw, "r")
	check.NoError(t, l.Make(path))
	hungfs.Mount(t, path, 0)
	check.NoError(t, l.MakeParent(path))
	check.NoError(t, l.Restrict(path, 0))
	if number, err := Device(path); number != "" || err != nil {
		t.Errorf("its block device is %q (%v)", number, err)
	}
	busy := check.Must(unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0))(t)
	read := make(chan error, 1)
	go func() {
		_, err := os.ReadDir(path)
		read <- err
	}()
	check.NoError(t, l.Abort(path))
	select {
	case err := <-read:
		if err == nil {
			t.Error("a call to it has succeeded")
		}
	case <-time.After(check.Patience):
		t.Fatal("a call to it still waits")
	}
	check.NoError(t, unix.Close(busy))
	check.NoError(t, l.Unmount(path))
	check.NoError(t, l.Remove(path))
}
