package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

// TestVolumeHeldInAnotherNamespace leaves a mount in the private mount namespace of a process. The volume counts
// as in use until the process ends, and then nothing is left, without any cleanup.
//
// It is not parallel, because its namespace would hold the volumes of other tests too.
func TestVolumeHeldInAnotherNamespace(t *testing.T) {
	r := newRig(t)
	c := mount(writer, "")
	id := r.create("v", 32*mib, c)
	stage := r.stage(id, c)
	target := r.publish(id, "with a space", c, false)
	writeFile(t, filepath.Join(target, "f"), []byte("hello"))

	holder := exec.Command("cat") // ends with its input, or with this process
	in, err := holder.StdinPipe()
	check.NoError(t, err)
	holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	check.NoError(t, holder.Start())
	t.Cleanup(func() {
		in.Close()
		holder.Wait()
	})

	r.unpublish(id, target)
	r.unstage(id)
	if n := len(mountsBelow(t, r.dir)); n != 0 {
		t.Errorf("%d mounts left here", n)
	}
	if n := len(loopsBelow(r.data)); n != 1 {
		t.Fatalf("%d loop devices: the other namespace does not hold it", n)
	}
	_, err = r.DeleteVolume(r.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	expectCode(t, err, codes.FailedPrecondition, "in use")
	_, err = r.CreateSnapshot(r.ctx, &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: id})
	expectCode(t, err, codes.FailedPrecondition, "cannot freeze")
	expectCode(t, r.tryStage(id, stage, block(writer)), codes.Aborted, "in use as a file system")

	// It can be staged again meanwhile, because it is the same file system.
	r.stage(id, c)
	if readFile(t, filepath.Join(stage, "f")) != "hello" {
		t.Error("the data changed")
	}
	if n := len(loopsBelow(r.data)); n != 1 {
		t.Errorf("%d loop devices for one volume", n)
	}
	r.unstage(id)
	check.NoError(t, in.Close()) // the deletion may have to wait for the process to end
	r.delete(id)
	check.NoError(t, holder.Wait())
	r.checkNothingLeft()
	if _, err := os.Stat(target); err == nil {
		t.Error("the target is left")
	}
}
