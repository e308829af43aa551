package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

func TestBlockVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := block(multiWriter)
	id := r.create("v", 8*mib, c)
	stage := r.stage(id, c)
	a, b := r.publish(id, "a", c, false), r.publish(id, "b", c, true)
	data := pattern(2, mib)
	writeDevice(t, a, data)
	if got := readDevice(t, b, len(data)); got != string(data) {
		t.Error("the read-only target reads other data")
	}
	expectReadOnly(t, b)
	expectCode(t, r.tryPublish(id, a, c, true), codes.AlreadyExists, "read-only")
	expectCode(t, r.tryStage(id, r.path("stage", "other"), mount(writer, "")), codes.FailedPrecondition, "block device",
		stage)

	_, err := r.ControllerExpandVolume(r.ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 * mib},
	})
	check.NoError(t, err)
	_, err = r.NodeExpandVolume(r.ctx, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: a})
	check.NoError(t, err)
	for _, path := range []string{a, b, stage} {
		stats, err := r.NodeGetVolumeStats(r.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
		check.NoError(t, err)
		if total := stats.GetUsage()[0].GetTotal(); total != 16*mib {
			t.Errorf("%s has %d bytes", path, total)
		}
	}
	// A snapshot of a device that is being written to would be inconsistent on a disk without reflinks; one of a
	// device that is only staged is not.
	_, err = r.CreateSnapshot(r.ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	if err != nil {
		expectCode(t, err, codes.FailedPrecondition, "published as a block device")
	}
	r.unpublish(id, a)
	r.unpublish(id, b)
	_, err = r.CreateSnapshot(r.ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	check.NoError(t, err)
	if n := len(loopsBelow(r.data)); n != 1 {
		t.Errorf("%d loop devices for a staged volume", n)
	}
	r.unstage(id)
	r.checkNothingLeft()

	// Data that a workload wrote to a block device is never overwritten by formatting.
	expectCode(t, r.tryStage(id, r.path("stage", id), mount(writer, "")), codes.FailedPrecondition, "not overwritten")
	r.checkNothingLeft()
	r.stage(id, c)
	a = r.publish(id, "a", c, false)
	if got := readDevice(t, a, len(data)); got != string(data) {
		t.Error("the data changed")
	}
	r.unpublish(id, a)
	r.unstage(id)
	r.delete(id)
	r.checkNothingLeft()
}

func TestReaderOnlyBlockVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.create("v", 8*mib, block(writer))
	r.stage(id, block(reader))
	expectCode(t, r.tryPublish(id, filepath.Join(r.path("pub"), "a"), block(writer), false), codes.FailedPrecondition,
		"not staged")
	a := r.publish(id, "a", block(reader), false)
	expectReadOnly(t, a)
	r.unpublish(id, a)
	r.unstage(id)
	r.checkNothingLeft()
}

func writeDevice(t testing.TB, path string, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	check.NoError(t, err)
	_, err = f.Write(data)
	check.NoError(t, errors.Join(err, f.Sync(), f.Close()))
}

func readDevice(t testing.TB, path string, n int) string {
	t.Helper()
	f, err := os.Open(path)
	check.NoError(t, err)
	defer f.Close()
	buf := make([]byte, n)
	_, err = f.ReadAt(buf, 0)
	check.NoError(t, err)
	return string(buf)
}

// expectReadOnly tries to write to a device.
func expectReadOnly(t testing.TB, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return
	}
	_, err = f.Write(make([]byte, 4096))
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		t.Errorf("%s can be written", path)
	}
}
