package hostpath_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/test/lib/hostpath"
)

// driver is a running driver with its clients.
type driver struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient
	dir string
}

func start(t *testing.T, dir string, args ...string) driver {
	t.Helper()
	conn, err := grpc.NewClient(hostpath.Start(t, dir, args...), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return driver{csi.NewIdentityClient(conn), csi.NewControllerClient(conn), csi.NewNodeClient(conn), dir}
}

var (
	writer     = &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}
	fileSystem = &csi.VolumeCapability{
		AccessMode: writer,
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	block = &csi.VolumeCapability{
		AccessMode: writer,
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
)

// up creates a volume, stages it and publishes it at its target.
func (d driver) up(t *testing.T, capability *csi.VolumeCapability) (id, staging, target string) {
	t.Helper()
	created, err := d.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
		Name:               "data",
		CapacityRange:      &csi.CapacityRange{RequiredBytes: 4 << 20},
		VolumeCapabilities: []*csi.VolumeCapability{capability},
	})
	if err != nil {
		t.Fatal(err)
	}
	id, staging, target = created.GetVolume().GetVolumeId(), filepath.Join(d.dir, "staging"), filepath.Join(d.dir,
		"target")
	if err := os.MkdirAll(staging, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, VolumeCapability: capability,
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability,
	}); err != nil {
		t.Fatal(err)
	}
	return id, staging, target
}

// down unpublishes, unstages and deletes the volume.
func (d driver) down(t *testing.T, id, staging, target string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if _, err := d.NodeUnpublishVolume(ctx,
		&csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.NodeUnstageVolume(ctx,
		&csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Fatal(err)
	}
}

func TestRound(t *testing.T) {
	d := start(t, t.TempDir())
	info, err := d.GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetVendorVersion() != hostpath.Version {
		t.Fatalf("GetPluginInfo = %v, %v; want version %s", info, err, hostpath.Version)
	}
	node, err := d.NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil || node.GetNodeId() != hostpath.NodeID {
		t.Fatalf("NodeGetInfo = %v, %v; want node %s", node, err, hostpath.NodeID)
	}

	id, staging, target := d.up(t, fileSystem)
	if err := os.WriteFile(filepath.Join(target, "greeting"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A file written at the target appears in the volume's directory, so the right directory is mounted.
	if got, err := os.ReadFile(filepath.Join(d.dir, "state", id, "greeting")); err != nil || string(got) != "hello" {
		t.Fatalf("in the volume: %q, %v; want hello", got, err)
	}
	d.down(t, id, staging, target)
	wantNothingLeft(t, d.dir)
}

// TestCleanup leaves a mount, and a loop device that is mounted itself.
func TestCleanup(t *testing.T) {
	for name, capability := range map[string]*csi.VolumeCapability{"file system": fileSystem, "block": block} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Run("left standing", func(t *testing.T) {
				d := start(t, dir)
				d.up(t, capability)
				mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
				if err != nil || len(mounts) == 0 {
					t.Fatalf("mounts below %s: %v, %v; want some", dir, mounts, err)
				}
				if capability == block && len(loopFiles(t, dir)) == 0 {
					t.Fatal("no loop device is attached, so there is nothing to clean up")
				}
			})
			wantNothingLeft(t, dir)
		})
	}
}

// wantNothingLeft fails the test if something below dir is mounted or attached.
func wantNothingLeft(t *testing.T, dir string) {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		t.Errorf("still mounted: %s", m.Mountpoint)
	}
	for _, file := range loopFiles(t, dir) {
		t.Errorf("still attached: %s", file)
	}
}

// loopFiles lists the files below dir that back a loop device.
func loopFiles(t *testing.T, dir string) (files []string) {
	t.Helper()
	paths, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		// A device that was detached after the directory was listed has no backing file.
		if name, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(name), dir+"/") {
			files = append(files, strings.TrimSpace(string(name)))
		}
	}
	return files
}
