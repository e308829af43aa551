package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// snapshot takes a snapshot, or fails the test.
func (r *rig) snapshot(name, volume string) string {
	r.t.Helper()
	resp, err := r.CreateSnapshot(r.ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	check.NoError(r.t, err)
	if !resp.GetSnapshot().GetReadyToUse() {
		r.t.Error("the snapshot is not ready")
	}
	return resp.GetSnapshot().GetSnapshotId()
}

func fromSnapshot(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id},
	}}
}

func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id},
	}}
}

func TestSnapshotCloneRestore(t *testing.T) {
	eachFS(t, func(t *testing.T, fsType string, size int64) {
		r := newRig(t)
		c := mount(writer, fsType)
		id := r.create("v", size, c)
		stage := r.stage(id, c)
		// The data is not synced, so the freeze has to write it to disk before the copy.
		data := pattern(1, 5*mib)
		check.NoError(t, os.WriteFile(filepath.Join(stage, "f"), data, 0o600))
		snap := r.snapshot("s", id)
		check.NoError(t, os.WriteFile(filepath.Join(stage, "f"), []byte("later"), 0o600))

		req := createRequest("restored", 2*size, c)
		req.VolumeContentSource = fromSnapshot(snap)
		restored, err := r.CreateVolume(r.ctx, req)
		check.NoError(t, err)
		req = createRequest("clone", size, mount(writer, ""))
		req.VolumeContentSource = fromVolume(id)
		clone, err := r.CreateVolume(r.ctx, req)
		check.NoError(t, err)

		// All three are staged at once, although the copies have the same UUID.
		restoredID, cloneID := restored.GetVolume().GetVolumeId(), clone.GetVolume().GetVolumeId()
		if readFile(t, filepath.Join(r.stage(restoredID, c), "f")) != string(data) {
			t.Error("the restored volume has other data")
		}
		if got := readFile(t, filepath.Join(r.stage(cloneID, c), "f")); got != "later" {
			t.Errorf("the clone has %.20q", got)
		}
		var st unix.Statfs_t
		check.NoError(t, unix.Statfs(filepath.Join(r.dir, "stage", restoredID), &st))
		if total := int64(st.Blocks) * st.Bsize; total < 2*size*8/10 {
			t.Errorf("the restored file system has %d bytes in a volume of %d", total, 2*size)
		}

		req = createRequest("small", 0, c)
		req.CapacityRange = &csi.CapacityRange{LimitBytes: size / 2}
		req.VolumeContentSource = fromSnapshot(snap)
		_, err = r.CreateVolume(r.ctx, req)
		expectCode(t, err, codes.OutOfRange, "limit_bytes")
		other := map[string]string{"ext4": "xfs", "xfs": "ext4"}[fsType]
		req = createRequest("other", size, mount(writer, other))
		req.VolumeContentSource = fromSnapshot(snap)
		_, err = r.CreateVolume(r.ctx, req)
		expectCode(t, err, codes.InvalidArgument, fsType, other)

		for _, v := range []string{id, restoredID, cloneID} {
			r.unstage(v)
			r.delete(v)
		}
		_, err = r.DeleteSnapshot(r.ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap})
		check.NoError(t, err)
		r.checkNothingLeft()
	})
}

// TestSnapshotIsOfOneMoment takes snapshots while a program writes a number to one file after the other. In
// every copy the numbers differ by at most one, and the file system is clean.
func TestSnapshotIsOfOneMoment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := mount(writer, "ext4")
	id := r.create("v", 64*mib, c)
	stage := r.stage(id, c)
	// Enough data for the copy to take a while.
	check.NoError(t, os.WriteFile(filepath.Join(stage, "big"), bytes.Repeat(pattern(1, mib), 30), 0o600))
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			for _, name := range []string{"first", "second"} {
				if err := os.WriteFile(filepath.Join(stage, name+".tmp"), []byte(strconv.Itoa(i)), 0o600); err != nil {
					done <- err
					return
				}
				if err := os.Rename(filepath.Join(stage, name+".tmp"), filepath.Join(stage, name)); err != nil {
					done <- err
					return
				}
			}
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
		}
	}()
	check.Eventually(t, "the writer writes",
		func() bool { _, err := os.Stat(filepath.Join(stage, "second")); return err == nil })
	for i := range 3 {
		snap := r.snapshot("s"+strconv.Itoa(i), id)
		shell(t, "e2fsck", "-f", "-n", filepath.Join(r.data, "snapshots", snap, snap+".img"))
		req := createRequest("r"+strconv.Itoa(i), 0, c)
		req.VolumeContentSource = fromSnapshot(snap)
		resp, err := r.CreateVolume(r.ctx, req)
		check.NoError(t, err)
		restored := resp.GetVolume().GetVolumeId()
		at := r.stage(restored, c)
		first, err1 := strconv.Atoi(readFile(t, filepath.Join(at, "first")))
		second, err2 := strconv.Atoi(readFile(t, filepath.Join(at, "second")))
		if err1 != nil || err2 != nil || first-second < 0 || first-second > 1 {
			t.Errorf("first %d (%v), second %d (%v)", first, err1, second, err2)
		}
		r.unstage(restored)
	}
	close(stop)
	check.NoError(t, <-done)
	r.unstage(id)
	r.checkNothingLeft()
}

// TestReflinks uses a disk that can share blocks: a snapshot needs no space there, and a block device in use
// can be copied.
func TestReflinks(t *testing.T) {
	t.Parallel()
	r := newRigOnXFS(t)
	c := block(writer)
	id := r.create("v", 64*mib, c)
	r.stage(id, c)
	device := r.publish(id, "a", c, false)
	data := bytes.Repeat(pattern(1, mib), 32)
	writeDevice(t, device, data)
	used := func() int64 {
		var st unix.Statfs_t
		check.NoError(t, unix.Statfs(r.data, &st))
		return int64(st.Blocks-st.Bfree) * st.Bsize
	}
	before := used()
	snap := r.snapshot("s", id)
	if more := used() - before; more > 4*mib {
		t.Errorf("the snapshot takes %d bytes", more)
	}
	writeDevice(t, device, pattern(2, mib))
	req := createRequest("restored", 0, c)
	req.VolumeContentSource = fromSnapshot(snap)
	resp, err := r.CreateVolume(r.ctx, req)
	check.NoError(t, err)
	restored := resp.GetVolume().GetVolumeId()
	r.stage(restored, c)
	if readDevice(t, r.publish(restored, "b", c, false), len(data)) != string(data) {
		t.Error("the restored device has other data")
	}
	r.unpublish(id, device)
	r.unpublish(restored, filepath.Join(r.dir, "pub", "b"))
	r.unstage(id)
	r.unstage(restored)
	r.checkNothingLeft()
}

// newRigOnXFS has its data directory on a separate xfs, which has reflinks.
func newRigOnXFS(t *testing.T) *rig {
	t.Helper()
	testbin.RequireRoot(t, "volumes on a disk with reflinks")
	if err := filesystem.Supported("xfs"); err != nil {
		t.Skipf("not covered: volumes on a disk with reflinks: %v", err)
	}
	dir := t.TempDir()
	data, image := filepath.Join(dir, "data"), filepath.Join(dir, "disk.img")
	check.NoError(t, os.Mkdir(data, 0o700))
	f, err := os.Create(image)
	check.NoError(t, err)
	check.NoError(t, f.Truncate(512*mib))
	check.NoError(t, f.Close())
	shell(t, "mkfs.xfs", "-q", "-m", "reflink=1", image)
	// The rig's own cleanup, which runs first, removes this mount too.
	t.Cleanup(func() { cleanUp(t, dir) })
	shell(t, "mount", "-o", "loop", image, data)
	return newRigIn(t, dir, data)
}
