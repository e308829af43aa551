package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

// The id of an ephemeral volume, as a kubelet makes it.
const inline = "csi-2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"

// tryEphemeral publishes an ephemeral volume at <dir>/pub/<target>.
func (r *rig) tryEphemeral(target string, c *csi.VolumeCapability, readOnly bool,
	attributes ...string,
) (string, error) {
	path := filepath.Join(r.path("pub"), target)
	vc := map[string]string{"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "w"}
	for n := 0; n < len(attributes); n += 2 {
		vc[attributes[n]] = attributes[n+1]
	}
	_, err := r.NodePublishVolume(r.ctx, &csi.NodePublishVolumeRequest{
		VolumeId: inline, TargetPath: path, VolumeCapability: c, Readonly: readOnly, VolumeContext: vc,
	})
	return path, err
}

// volumes lists the directories of volumes in the data directory.
func (r *rig) volumes() []string {
	found, err := filepath.Glob(filepath.Join(r.data, "volumes", "*"))
	check.NoError(r.t, err)
	return found
}

// The volume is there from its publish until its unpublish, with the size of its attribute. No other call sees it.
func TestEphemeralVolume(t *testing.T) {
	eachFS(t, func(t *testing.T, fsType string, size int64) {
		r := newRig(t)
		c := mount(writer, fsType, "noatime")
		var path string
		for range 2 { // the call can be repeated
			var err error
			path, err = r.tryEphemeral("a", c, false, "size", "400Mi")
			check.NoError(t, err)
		}
		var st unix.Statfs_t
		check.NoError(t, unix.Statfs(path, &st))
		if got := int64(st.Blocks) * st.Bsize; got < 300*mib || got > 400*mib {
			t.Errorf("it has %d bytes", got)
		}
		writeFile(t, filepath.Join(path, "f"), []byte("gone with it"))
		if m := mountsBelow(t, path); len(m) != 1 || m[0].FSType != fsType {
			t.Errorf("mounted: %+v", m)
		}
		id := filepath.Base(r.volumes()[0])
		resp, err := r.ListVolumes(r.ctx, &csi.ListVolumesRequest{})
		if err != nil || len(resp.GetEntries()) > 0 {
			t.Errorf("it is listed: %v, %v", resp, err)
		}
		for _, name := range []string{id, inline} {
			_, err = r.ControllerGetVolume(r.ctx, &csi.ControllerGetVolumeRequest{VolumeId: name})
			expectCode(t, err, codes.NotFound)
			expectCode(t, r.tryStage(name, r.path("stage", name), c), codes.NotFound)
		}
		_, err = r.tryEphemeral("b", c, false)
		expectCode(t, err, codes.FailedPrecondition, inline, "pub/a")
		_, err = r.tryEphemeral("a", c, true)
		expectCode(t, err, codes.AlreadyExists, inline, "pub/a")

		r.kill() // it survives the driver
		r.start()
		if got := readFile(t, filepath.Join(path, "f")); got != "gone with it" {
			t.Errorf("after a restart of the driver it has %q", got)
		}
		r.unpublish(inline, path)
		if left := r.volumes(); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		_, err = r.NodeUnpublishVolume(r.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: inline, TargetPath: path})
		expectCode(t, err, codes.NotFound)
		r.checkNothingLeft()
	})
}

func TestReadOnlyEphemeralVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	path, err := r.tryEphemeral("a", mount(writer, ""), true, "size", "16MiB")
	check.NoError(t, err)
	if err := os.WriteFile(filepath.Join(path, "f"), nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write: %v", err)
	}
	r.unpublish(inline, path)
	r.checkNothingLeft()
}

func TestEphemeralVolumeIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for name, c := range map[string]struct {
		cap        *csi.VolumeCapability
		attributes []string
		want       string
	}{
		"an unknown attribute": {mount(writer, ""), []string{"capacity", "1GiB"}, `attribute "capacity" is unknown`},
		"no size":              {mount(writer, ""), []string{"size", "much"}, `attribute "size" is "much": write such as 1GiB`},
		"a block device":       {block(writer), nil, "is a file system with a writer"},
		"a reader":             {mount(reader, ""), nil, "is a file system with a writer"},
	} {
		_, err := r.tryEphemeral("a", c.cap, false, c.attributes...)
		t.Log(name)
		expectCode(t, err, codes.InvalidArgument, c.want)
	}
	if left := r.volumes(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// The driver is killed at any moment of the calls. Repeated, they have the same effect; without a repetition the next
// driver deletes what is not mounted.
func TestKilledWithAnEphemeralVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := mount(writer, "")
	publish := step{"publish", func(context.Context) error { _, err := r.tryEphemeral("a", c, false); return err }}
	unpublish := step{"unpublish", func(context.Context) error {
		_, err := r.NodeUnpublishVolume(r.ctx, &csi.NodeUnpublishVolumeRequest{
			VolumeId: inline, TargetPath: filepath.Join(r.dir, "pub", "a"),
		})
		return err
	}}
	for _, n := range []int{1, 5, 10, 20, 40, 80} {
		after := time.Duration(n) * time.Millisecond
		r.interrupt(publish, after)
		if mounted := len(mountsBelow(t, filepath.Join(r.dir, "pub"))); mounted != len(r.volumes()) {
			t.Errorf("killed after %s: %d volumes, %d mounted", after, len(r.volumes()), mounted)
		}
		r.repeat(publish)
		r.interrupt(unpublish, after)
		if len(r.volumes()) > 0 {
			r.repeat(unpublish)
		}
		if left := r.volumes(); len(left) > 0 {
			t.Errorf("killed after %s: left: %q", after, left)
		}
	}
	_ = os.Remove(filepath.Join(r.dir, "pub", "a")) // of a publish that was interrupted when it had no volume
	r.checkNothingLeft()
}
