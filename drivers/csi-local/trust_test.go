package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/test/lib/check"
)

// A caller that chooses the flags of a mount must neither stop the host nor reach other files and devices than the
// volume's.
func TestFlagsThatStopTheHostOrLeaveTheVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.create("v", 32*mib, mount(writer, "ext4"))
	path := r.path("stage", id)
	check.NoError(t, os.MkdirAll(path, 0o700))
	for _, flag := range []string{
		"errors=panic", "noatime,errors=panic", "journal_dev=0x0701", "journal_path=/dev/null", "logdev=/dev/null",
		"rtdev=/dev/null", "loop", "source=/dev/null", "context=system_u:object_r:etc_t:s0", "rootcontext=x", "smackfsroot=_",
	} {
		err := r.tryStage(id, path, mount(writer, "ext4", flag))
		if err == nil {
			t.Errorf("%s: it is mounted with %s", flag, mountsBelow(t, path)[0].VFSOptions)
			r.unstage(id)
			check.NoError(t, os.MkdirAll(path, 0o700))
			continue
		}
		expectCode(t, err, codes.InvalidArgument, "mount flag not allowed")
	}
	check.NoError(t, r.tryStage(id, path, mount(writer, "ext4", "errors=continue", "commit=10")))
	r.unstage(id)
}

// Who can write a volume as a block device chooses what its file system's superblock says, and the kernel takes the
// journal's device and the reaction to errors from there.
func TestContentThatLeavesTheVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := filesystem.Supported("ext4"); err != nil {
		t.Skipf("not covered: %v", err)
	}
	victim := r.create("victim", 32*mib, block(writer))
	r.stage(victim, block(writer))
	device := r.publish(victim, "victim", block(writer), false)
	shell(t, "mke2fs", "-q", "-F", "-b", "4096", "-O", "journal_dev", device)

	id := r.create("journal elsewhere", 32*mib, mount(writer, ""))
	victims, _, _ := strings.Cut(loopsBelow(r.data)[0], " ")
	shell(t, "mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "device="+victims, r.image(id))
	before := readDevice(t, device, 1*mib)
	path := r.path("stage", id)
	if err := r.tryStage(id, path, mount(writer, "")); err == nil {
		writeFile(t, filepath.Join(path, "file"), []byte("data"))
		shell(t, "sync", "-f", path)
		r.unstage(id)
		t.Errorf("it is mounted; the other volume is written: %t", readDevice(t, device, 1*mib) != before)
	} else {
		expectCode(t, err, codes.FailedPrecondition, "journal on another device")
	}

	id = r.create("panic", 32*mib, mount(writer, ""))
	shell(t, "mkfs.ext4", "-q", "-F", r.image(id))
	shell(t, "tune2fs", "-e", "panic", "-E", "mount_opts=errors=panic", r.image(id))
	path = r.stage(id, mount(writer, ""))
	if have := mountsBelow(t, path)[0].VFSOptions; strings.Contains(have, "panic") {
		t.Errorf("the superblock chose %s", have)
	}
	r.unstage(id)
	r.unpublish(victim, device)
	r.unstage(victim)
}
