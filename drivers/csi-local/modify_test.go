package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

// TestReadAhead modifies the read-ahead of a volume, in use or not, as a file system and as a block device.
func TestReadAhead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]*csi.VolumeCapability{"mount": mount(writer, "ext4"), "block": block(writer)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			id := r.create("v", 32*mib, c)
			use := func(want int) {
				t.Helper()
				r.stage(id, c)
				if got := r.readAhead(id); got != want {
					t.Errorf("the kernel reads %d KiB ahead, want %d", got, want)
				}
			}
			use(128)
			check.NoError(t, r.modify(id, "readAheadKiB", "1024")) // while it is in use
			if got := r.readAhead(id); got != 1024 {
				t.Errorf("the kernel reads %d KiB ahead after the change", got)
			}
			r.kill()
			r.start()
			r.unstage(id)
			use(1024)
			r.unstage(id)
			check.NoError(t, r.modify(id, "readAheadKiB", "0")) // while it is not
			use(0)
			r.unstage(id)

			for key, value := range map[string]string{"readAheadKiB": "-1", "iops": "7"} {
				expectCode(t, r.modify(id, key, value), codes.InvalidArgument, key, value)
			}
			expectCode(t, r.modify(id, "readAheadKiB", "65537"), codes.InvalidArgument, "65536")
			expectCode(t, r.modify("vol-x", "readAheadKiB", "1"), codes.NotFound)
			r.delete(id)
			r.checkNothingLeft()
		})
	}
}

func (r *rig) modify(id, key, value string) error {
	_, err := r.ControllerModifyVolume(r.ctx, &csi.ControllerModifyVolumeRequest{
		VolumeId: id, MutableParameters: map[string]string{key: value},
	})
	return err
}

// readAhead returns the read-ahead of a volume's loop device, in KiB.
func (r *rig) readAhead(id string) int {
	r.t.Helper()
	for _, found := range loopsBelow(r.data) {
		device, image, _ := strings.Cut(found, " ")
		if filepath.Base(image) != id+".img" {
			continue
		}
		f, err := os.Open(device)
		check.NoError(r.t, err)
		sectors, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKRAGET)
		check.NoError(r.t, f.Close())
		check.NoError(r.t, err)
		return sectors / 2
	}
	r.t.Fatalf("volume %s has no loop device", id)
	return 0
}
