package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/powerloss"
)

// eachFS runs a test with every file system that a volume can have, with a suitable volume size.
func eachFS(t *testing.T, fn func(t *testing.T, fsType string, size int64)) {
	t.Parallel()
	for fsType, size := range map[string]int64{"ext4": 32 * mib, "xfs": 300 * mib} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()
			if err := filesystem.Supported(fsType); err != nil {
				t.Skipf("not covered: %v", err)
			}
			fn(t, fsType, size)
		})
	}
}

func TestMountedVolume(t *testing.T) {
	eachFS(t, func(t *testing.T, fsType string, size int64) {
		r := newRig(t)
		c := mount(multiWriter, fsType, "noatime")
		id := r.create("v", size, c)
		stage := r.stage(id, c)
		a, b := r.publish(id, "a", c, false), r.publish(id, "b", c, true)

		writeFile(t, filepath.Join(a, "f"), []byte("hello"))
		if got := readFile(t, filepath.Join(b, "f")); got != "hello" {
			t.Errorf("read %q through the second target", got)
		}
		if err := os.WriteFile(filepath.Join(b, "g"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
			t.Errorf("write to a read-only target: %v", err)
		}
		for _, path := range []string{stage, a, b} {
			m := mountsBelow(t, path)[0]
			if m.FSType != fsType || !strings.Contains(m.Options, "noatime") {
				t.Errorf("%s is %s with %s", path, m.FSType, m.Options)
			}
		}
		if n := len(loopsBelow(r.data)); n != 1 {
			t.Errorf("%d loop devices for one volume", n)
		}
		_, err := r.DeleteVolume(r.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		expectCode(t, err, codes.FailedPrecondition, "/dev/loop", stage)

		// Repeat everything: every call can be repeated.
		r.stage(id, c)
		r.publish(id, "a", c, false)
		for range 2 {
			r.unpublish(id, a)
			r.unpublish(id, b)
		}
		for range 2 {
			r.unstage(id)
		}
		// The data is still there the next time, even in another mode.
		stage = r.stage(id, mount(reader, ""))
		if got := readFile(t, filepath.Join(stage, "f")); got != "hello" {
			t.Errorf("read %q after staging again", got)
		}
		if err := os.WriteFile(filepath.Join(stage, "g"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
			t.Errorf("write in the reader mode: %v", err)
		}
		err = r.tryPublish(id, a, mount(writer, ""), false)
		expectCode(t, err, codes.FailedPrecondition, "staged read-only")
		r.unstage(id)
		for range 2 {
			r.delete(id)
		}
		r.checkNothingLeft()
	})
}

// TestStageInAnotherModeAfterACopy stages a volume read-only while a process that was started when it was staged to be
// written to still has a copy of that mount, as a container has at its start.
func TestStageInAnotherModeAfterACopy(t *testing.T) {
	r := newRig(t)
	id := r.create("v", 64<<20, mount(writer, "ext4"))
	r.stage(id, mount(writer, "ext4"))
	holder := exec.Command("unshare", "--mount", "sh", "-c", "echo ready && exec cat")
	in, err := holder.StdinPipe()
	check.NoError(t, err)
	out, err := holder.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, holder.Start())
	end := sync.OnceFunc(func() { _ = in.Close(); _ = holder.Wait() })
	t.Cleanup(end)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	r.unstage(id)

	stage, staged := r.path("stage", id), make(chan error, 1)
	go func() { staged <- r.tryStage(id, stage, mount(reader, "ext4")) }()
	select {
	case err = <-staged: // it did not wait
	case <-time.After(100 * time.Millisecond):
		end()
		err = <-staged
	}
	check.NoError(t, err)
	r.unstage(id)
	r.delete(id)
}

// TestCapacityIsEnforced writes until there is no space left, which must happen before the volume's size is
// reached.
func TestCapacityIsEnforced(t *testing.T) {
	eachFS(t, func(t *testing.T, fsType string, size int64) {
		r := newRig(t)
		c := mount(writer, fsType)
		id := r.create("v", size, c)
		r.stage(id, c)
		f, err := os.Create(filepath.Join(r.publish(id, "a", c, false), "f"))
		check.NoError(t, err)
		defer f.Close()
		var written int64
		for err == nil {
			var n int
			n, err = f.Write(make([]byte, mib))
			written += int64(n)
		}
		if !errors.Is(err, syscall.ENOSPC) || written >= size || written < size/2 {
			t.Errorf("%v after %d bytes of %d", err, written, size)
		}
	})
}

func TestExpand(t *testing.T) {
	eachFS(t, func(t *testing.T, fsType string, size int64) {
		r := newRig(t)
		c := mount(writer, fsType)
		id := r.create("v", size, c)
		r.stage(id, c)
		target := r.publish(id, "a", c, false)
		data := pattern(1, 4*mib)
		writeFile(t, filepath.Join(target, "f"), data)

		bigger := &csi.CapacityRange{RequiredBytes: 2 * size}
		resp, err := r.ControllerExpandVolume(r.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: bigger})
		check.NoError(t, err)
		if resp.GetCapacityBytes() != 2*size || !resp.GetNodeExpansionRequired() {
			t.Errorf("got %v", resp)
		}
		_, err = r.NodeExpandVolume(r.ctx,
			&csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: target, CapacityRange: bigger})
		if filesystem.GrowsMounted(fsType) {
			check.NoError(t, err)
		} else {
			t.Log("no CAP_SYS_RESOURCE here: ext4 is grown when it is staged next")
			expectCode(t, err, codes.FailedPrecondition, "CAP_SYS_RESOURCE", "stage it again")
			r.unpublish(id, target)
			r.unstage(id)
			r.stage(id, c)
			r.publish(id, "a", c, false)
		}
		stats, err := r.NodeGetVolumeStats(r.ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: target})
		check.NoError(t, err)
		if total := stats.GetUsage()[0].GetTotal(); total < 2*size*8/10 {
			t.Errorf("the file system has %d bytes in a volume of %d", total, 2*size)
		}
		if readFile(t, filepath.Join(target, "f")) != string(data) {
			t.Error("the data changed")
		}
		writeFile(t, filepath.Join(target, "g"), make([]byte, size))

		// Expanded while unused: the new size is visible after staging.
		r.unpublish(id, target)
		r.unstage(id)
		bigger = &csi.CapacityRange{RequiredBytes: 3 * size}
		resp, err = r.ControllerExpandVolume(r.ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: bigger})
		check.NoError(t, err)
		if resp.GetNodeExpansionRequired() {
			t.Error("node expansion is required for a volume that is not staged")
		}
		stage := r.stage(id, c)
		var st unix.Statfs_t
		check.NoError(t, unix.Statfs(stage, &st))
		if total := int64(st.Blocks) * st.Bsize; total < 3*size*8/10 {
			t.Errorf("the file system has %d bytes in a volume of %d", total, 3*size)
		}
		_, err = r.NodeExpandVolume(r.ctx, &csi.NodeExpandVolumeRequest{
			VolumeId: id, VolumePath: stage, CapacityRange: &csi.CapacityRange{RequiredBytes: 4 * size},
		})
		expectCode(t, err, codes.OutOfRange, "ControllerExpandVolume")
		r.unstage(id)
		if fsType == "ext4" {
			shell(t, "e2fsck", "-f", "-n", r.image(id))
		} else {
			shell(t, "xfs_repair", "-n", r.image(id))
		}
		r.checkNothingLeft()
	})
}

// TestOddSizes stages volumes with sizes that are multiples only of the granule or of a sector, and stages them again:
// unusable remainders are no error.
func TestOddSizes(t *testing.T) {
	eachFS(t, func(t *testing.T, fsType string, size int64) {
		r := newRig(t)
		c := mount(writer, fsType)
		id := r.create("v", size+4096*7, c)
		for i := range 3 {
			stage := r.stage(id, c)
			_, err := r.ControllerExpandVolume(r.ctx, &csi.ControllerExpandVolumeRequest{
				VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: size + 4096*int64(7+i)},
			})
			check.NoError(t, err)
			if filesystem.GrowsMounted(fsType) {
				_, err = r.NodeExpandVolume(r.ctx, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: stage})
				check.NoError(t, err)
			}
			r.unstage(id)
		}
		exact := size + 512*3
		resp, err := r.CreateVolume(r.ctx, &csi.CreateVolumeRequest{
			Name: "sectors", VolumeCapabilities: []*csi.VolumeCapability{c},
			CapacityRange: &csi.CapacityRange{RequiredBytes: exact, LimitBytes: exact},
		})
		check.NoError(t, err)
		if got := resp.GetVolume().GetCapacityBytes(); got != exact {
			t.Errorf("%d bytes, asked for %d", got, exact)
		}
		for range 2 {
			r.stage(resp.GetVolume().GetVolumeId(), c)
			r.unstage(resp.GetVolume().GetVolumeId())
		}
	})
}

func TestMountGroup(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := mount(writer, "")
	c.GetMount().VolumeMountGroup = "4242"
	id := r.create("v", 32*mib, c)
	stage := r.stage(id, c)
	info, err := os.Stat(stage)
	check.NoError(t, err)
	if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 4242 || info.Mode()&os.ModeSetgid == 0 ||
		info.Mode().Perm()&0o070 != 0o070 {
		t.Errorf("group %d, mode %s", gid, info.Mode())
	}
	writeFile(t, filepath.Join(stage, "f"), nil)
	info, err = os.Stat(filepath.Join(stage, "f"))
	check.NoError(t, err)
	if gid := info.Sys().(*syscall.Stat_t).Gid; gid != 4242 {
		t.Errorf("a new file has group %d", gid)
	}
	r.unstage(id)
	c.GetMount().VolumeMountGroup = "staff"
	expectCode(t, r.tryStage(id, stage, c), codes.InvalidArgument, "numeric")
	r.checkNothingLeft()
}

func TestPublishRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := mount(singleWriter, "")
	id := r.create("v", 32*mib, c)
	target := filepath.Join(r.path("pub"), "a")
	expectCode(t, r.tryPublish(id, target, c, false), codes.FailedPrecondition, "call NodeStageVolume first")
	stage := r.stage(id, c)
	expectCode(t, r.tryStage(id, stage, mount(singleWriter, "", "noexec")), codes.AlreadyExists, "noexec")
	expectCode(t, r.tryStage(id, stage, mount(singleWriter, "xfs")), codes.AlreadyExists, "ext4")
	expectCode(t, r.tryStage(id, stage, mount(reader, "")), codes.AlreadyExists, "read-write")
	expectCode(t, r.tryStage(id, r.path("stage", "other"), block(writer)), codes.FailedPrecondition, "file system", stage)
	expectCode(t, r.tryStage(id, stage, mount(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "")),
		codes.FailedPrecondition, "MULTI_NODE")
	expectCode(t, r.tryStage(id, stage, mount(writer, "btrfs")), codes.FailedPrecondition, "btrfs", "ext4")
	expectCode(t, r.tryStage(id, stage, mount(writer, "", "remount")), codes.InvalidArgument, "number 1")
	expectCode(t, r.tryStage(id, "relative", c), codes.InvalidArgument, "absolute")
	expectCode(t, r.tryStage(id, filepath.Join(r.dir, "none"), c), codes.InvalidArgument, "does not exist")
	expectCode(t, r.tryPublish(id, stage, c, false), codes.InvalidArgument, "both")
	expectCode(t, r.tryPublish(id, r.log.path, c, false), codes.InvalidArgument, "not a directory")
	expectCode(t, r.tryPublish(id, target, mount(singleWriter, "xfs"), false), codes.FailedPrecondition, "holds ext4")

	check.NoError(t, r.tryPublish(id, target, c, false))
	expectCode(t, r.tryPublish(id, target, c, true), codes.AlreadyExists, "read-write")
	expectCode(t, r.tryPublish(id, filepath.Join(r.dir, "pub", "b"), c, false), codes.FailedPrecondition, "single writer",
		target)

	// Another mount is named in the error and left alone.
	foreign := r.path("pub", "foreign")
	check.NoError(t, unix.Mount("tmpfs", foreign, "tmpfs", 0, "size=1m"))
	c2 := mount(writer, "")
	expectCode(t, r.tryPublish(id, foreign, c2, false), codes.FailedPrecondition, "tmpfs", foreign)
	_, err := r.NodeUnpublishVolume(r.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: foreign})
	expectCode(t, err, codes.FailedPrecondition, "tmpfs")
	check.NoError(t, unix.Unmount(foreign, 0))

	// A foreign file at the target is left alone too.
	writeFile(t, filepath.Join(foreign, "f"), []byte("x"))
	_, err = r.NodeUnpublishVolume(r.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: foreign})
	expectCode(t, err, codes.FailedPrecondition, "not empty")
	check.NoError(t, os.RemoveAll(foreign))

	// A mount that a process uses stays until the process has ended.
	f, err := os.Open(target)
	check.NoError(t, err)
	_, err = r.NodeUnpublishVolume(r.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	expectCode(t, err, codes.FailedPrecondition, "in use")
	check.NoError(t, f.Close())
	r.unpublish(id, target)
	r.unstage(id)
	r.checkNothingLeft()

	_, err = r.NodeUnpublishVolume(r.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "../../etc", TargetPath: target})
	expectCode(t, err, codes.NotFound)
	_, err = r.NodeUnstageVolume(r.ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "vol-0", StagingTargetPath: stage})
	expectCode(t, err, codes.NotFound)
}

// A file system that the kernel has shut down is not normal, though statfs answers.
func TestHealthOfAShutDownFileSystem(t *testing.T) {
	t.Parallel()
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c := mount(writer, fsType)
			id := r.create("v", 512*mib, c)
			powerloss.ShutDown(t, r.stage(id, c))
			resp, err := r.NodeGetVolumeHealth(r.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id})
			check.NoError(t, err)
			entries := resp.GetVolumeHealth().GetHealthStatuses()
			if len(entries) != 1 {
				t.Errorf("got %v", resp)
			}
			r.unstage(id)
		})
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := mount(writer, "ext4")
	id := r.create("v", 32*mib, c)
	stage := r.stage(id, c)
	wantHealth := func(want csi.VolumeHealthErrorType, reason string) {
		t.Helper()
		resp, err := r.NodeGetVolumeHealth(r.ctx, &csi.NodeGetVolumeHealthRequest{VolumeId: id})
		check.NoError(t, err)
		var got []string
		for _, e := range resp.GetVolumeHealth().GetHealthStatuses() {
			got = append(got, e.GetReason())
			if e.GetStatus() != want {
				t.Errorf("status %s, want %s", e.GetStatus(), want)
			}
		}
		if strings.Join(got, ",") != reason {
			t.Errorf("reasons %v, want %q", got, reason)
		}
	}
	wantHealth(csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE, "")

	// An error in the file system makes it read-only.
	device := mountsBelow(t, stage)[0].Source
	trigger := filepath.Join("/sys/fs/ext4", filepath.Base(device), "trigger_fs_error")
	check.NoError(t, os.WriteFile(trigger, []byte("test"), 0))
	wantHealth(csi.VolumeHealthErrorType_DEGRADED, "FileSystemReadOnly")
	r.unstage(id)
	wantHealth(csi.VolumeHealthErrorType_UNKNOWN_VOLUME_HEALTH_TYPE, "")

	// The image is deleted below a staged volume, which can still be unstaged.
	r.stage(id, c)
	check.NoError(t, os.Remove(r.image(id)))
	wantHealth(csi.VolumeHealthErrorType_DATA_LOSS, "ImageMissing")
	resp, err := r.ControllerGetVolumeHealth(r.ctx, &csi.ControllerGetVolumeHealthRequest{VolumeId: id})
	check.NoError(t, err)
	if len(resp.GetVolumeHealth().GetHealthStatuses()) != 1 {
		t.Errorf("the controller reports %v", resp)
	}
	_, err = r.DeleteVolume(r.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	expectCode(t, err, codes.FailedPrecondition, stage)
	r.unstage(id)
	r.delete(id)
	r.checkNothingLeft()
}
