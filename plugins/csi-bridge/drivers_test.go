package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testplugin"
)

// TestRealDrivers takes a volume through its whole life with the built plugin, on the bundled driver and on a
// third-party driver.
func TestRealDrivers(t *testing.T) {
	testbin.RequireRoot(t, "the plugin on real drivers")
	plugin := storage.NewClient(testplugin.Start(t, "csi-bridge").Conn)
	for name, start := range map[string]func(*testing.T, string) string{
		"csi-local": startLocal,
		"hostpath": func(t *testing.T, dir string) string {
			return hostpath.Start(t, dir, "-enable-attach")
		},
	} {
		t.Run(name, func(t *testing.T) {
			// t.TempDir includes the test's name, which could make the path too long for a socket's address.
			dir, err := os.MkdirTemp("", "bridge")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			life(t, plugin, storage.Driver{ID: name, Endpoint: start(t, dir)}, dir)
		})
	}
}

// startLocal runs the bundled driver and returns its endpoint.
func startLocal(t *testing.T, dir string) string {
	t.Helper()
	endpoint := "unix://" + filepath.Join(dir, "csi.sock")
	cmd := exec.Command(testbin.Build(t, "drivers/csi-local"), "-endpoint", endpoint, "-node-id", "n", "-data-dir",
		filepath.Join(dir, "data"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		releaseBelow(t, dir)
	})
	return endpoint
}

func life(t *testing.T, plugin storage.Client, d storage.Driver, dir string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	fp := fingerprint(ctx, t, plugin, d)
	t.Logf("%s %s: %+v %+v", fp.Provider, fp.Version, *fp.Controller, *fp.Node)

	mode := storage.Capability{AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem}
	made, err := plugin.Create(ctx, d,
		storage.CreateRequest{Name: "db", CapacityMin: 64 << 20, Capabilities: []storage.Capability{mode}})
	must("create", err)
	v := storage.Volume{Name: "db", ExternalID: made.ExternalID, Context: made.Context, Capability: mode}
	if _, err := plugin.ValidateVolume(ctx, d,
		storage.ValidateRequest{Volume: v, Capabilities: []storage.Capability{mode}}); err != nil {
		t.Errorf("validate: %v", err)
	}
	var publishContext map[string]string
	if fp.Controller.AttachDetach {
		publishContext, err = plugin.Attach(ctx, d, storage.AttachRequest{Volume: v, NodeID: fp.Node.NodeID})
		must("attach", err)
	}
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	must("make the staging folder", os.Mkdir(staging, 0o700))
	for range 2 { // each call may be repeated
		must("stage", plugin.Stage(ctx, d,
			storage.StageRequest{Volume: v, PublishContext: publishContext, StagingPath: staging}))
		must("publish", plugin.Publish(ctx, d,
			storage.PublishRequest{Volume: v, PublishContext: publishContext, StagingPath: staging, TargetPath: target}))
	}
	if mounted, err := mountinfo.Mounted(target); err != nil || !mounted {
		t.Errorf("the target is mounted: %v, %v", mounted, err)
	}
	must("write", os.WriteFile(filepath.Join(target, "data"), []byte("carried"), 0o600))

	stats, err := plugin.VolumeStats(ctx, d, storage.StatsRequest{Volume: v, VolumePath: target, StagingPath: staging})
	must("stats", err)
	// hostpath recognises only mounts below kubelet's directory, and reports all others as abnormal.
	if len(stats.Usage) == 0 || stats.Usage[0].Total == 0 || stats.Condition == nil || stats.Condition.Abnormal &&
		d.ID != "hostpath" {
		t.Errorf("got %+v %+v", stats, stats.Condition)
	}
	snap, err := plugin.CreateSnapshot(ctx, d, storage.CreateSnapshotRequest{Name: "s", Volume: v})
	must("snapshot", err)
	must("delete the snapshot", plugin.DeleteSnapshot(ctx, d, snap.ID, nil))
	list, err := plugin.List(ctx, d, storage.Page{})
	must("list", err)
	if len(list.Volumes) != 1 || list.Volumes[0].ExternalID != v.ExternalID {
		t.Errorf("got %+v", list)
	}

	for range 2 {
		must("unpublish", plugin.Unpublish(ctx, d, v, target))
		must("unstage", plugin.Unstage(ctx, d, v, staging))
		if fp.Controller.AttachDetach {
			must("detach", plugin.Detach(ctx, d, v, fp.Node.NodeID))
		}
	}
	if mounted, err := mountinfo.Mounted(staging); err != nil || mounted {
		t.Errorf("the staging folder is still mounted: %v, %v", mounted, err)
	}
	for range 2 {
		must("delete", plugin.Delete(ctx, d, v))
	}
}

// fingerprint waits until the driver is healthy and returns its fingerprint.
func fingerprint(ctx context.Context, t *testing.T, plugin storage.Client, d storage.Driver) storage.Fingerprint {
	t.Helper()
	healthy := errors.New("healthy")
	var got storage.Fingerprint
	err := plugin.Fingerprint(ctx, d, storage.FingerprintOptions{}, func(fp storage.Fingerprint) error {
		if got = fp; fp.Healthy {
			return healthy
		}
		return nil
	})
	if !errors.Is(err, healthy) {
		t.Fatalf("the driver does not become healthy: %v, last %q", err, got.Message)
	}
	return got
}

// releaseBelow removes the mounts and loop devices that a failed test left.
func releaseBelow(t *testing.T, dir string) {
	t.Helper()
	left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Error(err)
	}
	for _, m := range slices.Backward(left) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Error(err)
	}
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(backing), dir+"/") {
			continue // detached meanwhile, or not one of this test
		}
		device := "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(file)))
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", device, err, out)
		}
	}
}
