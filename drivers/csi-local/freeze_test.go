package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/drivers/csi-local/internal/sparse"
	"github.com/pannier/pannier/test/lib/check"
)

// TestFreezeDoesNotOutliveTheDriver kills the driver while it holds a file system frozen. The next driver thaws
// it, even if it is not mounted any more.
func TestFreezeDoesNotOutliveTheDriver(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mounted", "unmounted meanwhile"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.needSlowCopies()
			c := mount(writer, "ext4")
			id := r.create("v", 512*mib, c)
			stage := r.stage(id, c)
			r.killWhileFrozen(id, stage)
			if name != "mounted" {
				check.NoError(t, unix.Unmount(stage, 0))
			}
			r.start()
			if !strings.Contains(r.log.tail(4000), "thawed a volume") {
				t.Error("the log does not say that it thawed")
			}
			if name != "mounted" {
				r.checkNothingLeft()
				r.stage(id, c)
			}
			if r.isFrozen(stage) {
				t.Fatal("still frozen after a restart")
			}
			writeFile(t, filepath.Join(stage, "f"), []byte("works"))
			r.snapshot("again", id)
			if r.isFrozen(stage) {
				t.Error("frozen after a snapshot")
			}
			r.unstage(id)
			r.checkNothingLeft()
		})
	}
}

// killWhileFrozen leaves the volume's file system frozen and no driver.
func (r *rig) killWhileFrozen(id, stage string) {
	r.t.Helper()
	writeFile(r.t, filepath.Join(stage, "big"), bytes.Repeat(pattern(1, mib), 200)) // makes the copy slow
	for try := range 5 {
		snapshot := r.CreateSnapshot // of this connection
		go snapshot(r.ctx, &csi.CreateSnapshotRequest{Name: "s" + strconv.Itoa(try), SourceVolumeId: id})
		check.Eventually(r.t, "the copy begins", r.copying)
		r.kill()
		if r.isFrozen(stage) {
			return
		}
		r.start()
	}
	r.t.Fatal("killed too late each time: nothing was tested")
}

// needSlowCopies skips a test that needs a snapshot to take some time.
func (r *rig) needSlowCopies() {
	r.t.Helper()
	src, err := os.Create(filepath.Join(r.data, "tmp", "src"))
	check.NoError(r.t, err)
	defer src.Close()
	dst, err := os.Create(filepath.Join(r.data, "tmp", "dst"))
	check.NoError(r.t, err)
	defer dst.Close()
	defer os.Remove(src.Name())
	defer os.Remove(dst.Name())
	if sparse.Clone(dst, src) == nil {
		r.t.Skip("the temporary directory's disk shares blocks; not covered: the end of the driver in the middle of a copy")
	}
}

// copying reports whether a snapshot is being copied: its source is frozen then.
func (r *rig) copying() bool {
	images, _ := filepath.Glob(filepath.Join(r.data, "tmp", "snap-*", "*.img"))
	for _, image := range images {
		if info, err := os.Stat(image); err == nil && info.Size() > 0 {
			return true
		}
	}
	return false
}

// isFrozen reports whether a file system is frozen: the kernel refuses to freeze it again.
func (r *rig) isFrozen(mountpoint string) bool {
	r.t.Helper()
	const freeze, thaw = 0xC0045877, 0xC0045878
	f, err := os.Open(mountpoint)
	check.NoError(r.t, err)
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), freeze, 0); errors.Is(err, unix.EBUSY) {
		return true
	}
	check.NoError(r.t, unix.IoctlSetInt(int(f.Fd()), thaw, 0))
	return false
}
