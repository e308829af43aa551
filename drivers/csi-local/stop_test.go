package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

// TestStopLeavesMounts stops the driver like a supervisor. Its volumes stay mounted, and the next driver
// recognises them.
func TestStopLeavesMounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := mount(writer, "")
	id := r.create("v", 32*mib, c)
	r.stage(id, c)
	target := r.publish(id, "a", c, false)
	writeFile(t, filepath.Join(target, "f"), []byte("hello"))
	check.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	check.NoError(t, r.cmd.Wait())
	if _, err := os.Stat(r.sock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if readFile(t, filepath.Join(target, "f")) != "hello" {
		t.Error("the volume is gone")
	}
	r.start()
	r.stage(id, c)
	r.publish(id, "a", c, false)
	if n := len(mountsBelow(t, r.dir)); n != 2 {
		t.Errorf("%d mounts, want 2", n)
	}
	r.unpublish(id, target)
	r.unstage(id)
	r.checkNothingLeft()
}

// TestStopDuringSnapshot stops the driver while a snapshot holds a file system frozen: the call is answered, the
// file system is thawed, and then the driver exits. Meanwhile other calls for the volume are refused.
func TestStopDuringSnapshot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.needSlowCopies()
	c := mount(writer, "ext4")
	id := r.create("v", 512*mib, c)
	stage := r.stage(id, c)
	writeFile(t, filepath.Join(stage, "big"), bytes.Repeat(pattern(1, mib), 200))
	answer := make(chan error, 1)
	go func() {
		_, err := r.CreateSnapshot(r.ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
		answer <- err
	}()
	check.Eventually(t, "the copy begins", r.copying)
	_, err := r.DeleteVolume(r.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	expectCode(t, err, codes.Aborted, "CreateSnapshot")
	_, err = r.NodeUnstageVolume(r.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: stage})
	expectCode(t, err, codes.Aborted, "CreateSnapshot")
	check.NoError(t, r.cmd.Process.Signal(syscall.SIGTERM))
	if err := <-answer; err != nil {
		t.Errorf("the snapshot: %v", err)
	}
	check.NoError(t, r.cmd.Wait())
	if r.isFrozen(stage) {
		t.Error("the file system is still frozen")
	}
	r.start()
	r.unstage(id)
	r.checkNothingLeft()
}
