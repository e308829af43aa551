package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/bridge"
	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"

	"github.com/pannier/pannier/internal/procfs"
)

// TestMain runs the tests in a mount namespace of their own: a namespace that another test makes meanwhile would have
// copies of their mounts, and what is unmounted here would stay in use there.
func TestMain(m *testing.M) { testns.Main(m, 0) }

// TestConformance runs the conformance kit on csi-bridge, with the bundled driver and with one that attaches. The kit
// leaves neither volumes nor snapshots at the driver.
func TestConformance(t *testing.T) {
	testbin.RequireRoot(t, "csi-bridge's conformance with drivers that mount")
	for name, driver := range map[string]struct {
		start func(*testing.T, string) string
		// faults are the driver's own, by the check that finds them.
		faults map[string]string
	}{
		"csi-local": {start: startLocal},
		"hostpath": {
			start: func(t *testing.T, dir string) string { return hostpath.Start(t, dir, "-enable-attach") },
			faults: map[string]string{
				"data.block":      "published read-only, and it is written to",
				"volume.listed":   "in pages of one the list lacks", // it has one page, and no token
				"snapshot.listed": "in pages of one the list lacks", // it forgets a volume's snapshots but the last
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			// t.TempDir includes the test's name, which could make the path too long for a socket's address.
			dir, err := os.MkdirTemp("", "bridge")
			check.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			endpoint := driver.start(t, dir)
			answers(t, strings.TrimPrefix(endpoint, "unix://"))
			d := storage.Driver{ID: name, Endpoint: endpoint}
			report, err := conformance.Run(t.Context(), conformance.Config{
				Binary: testbin.Build(t, "plugins/csi-bridge"), Kind: storage.Kind, Driver: d,
			})
			check.NoError(t, err)
			for _, res := range report.Results {
				fault, known := driver.faults[res.ID]
				switch {
				case !known && res.Status == conformance.Failed:
					t.Errorf("%s: %s", res.ID, res.Reason)
				case known && (res.Status != conformance.Failed || !strings.Contains(res.Reason, fault)):
					t.Errorf("%s is %s: %s, want the driver's fault %q", res.ID, res.Status, res.Reason, fault)
				}
				if res.Status == conformance.Skipped {
					t.Logf("%s is skipped: %s", res.ID, res.Reason)
				}
			}
			if len(report.Left) > 0 {
				t.Errorf("left: %q", report.Left)
			}
			plugin := bridge.New(hclog.NewNullLogger())
			defer func() { check.NoError(t, plugin.Close()) }()
			volumes, err := plugin.List(t.Context(), d, storage.Page{})
			check.NoError(t, err)
			snapshots, err := plugin.ListSnapshots(t.Context(), d, storage.ListSnapshotsRequest{})
			check.NoError(t, err)
			if len(volumes.Volumes)+len(snapshots.Snapshots) > 0 {
				t.Errorf("the kit has left %+v, %+v", volumes.Volumes, snapshots.Snapshots)
			}
		})
	}
}

// answers waits until a process listens on a socket.
func answers(t *testing.T, socket string) {
	t.Helper()
	check.Eventually(t, "a listener on "+socket, func() bool {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
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
	for name, file := range procfs.LoopFiles() {
		if !strings.HasPrefix(file, dir+"/") {
			continue // not one of this test
		}
		device := "/dev/" + name
		if out, err := exec.Command("losetup", "-d", device).CombinedOutput(); err != nil {
			t.Errorf("detach %s: %v: %s", device, err, out)
		}
	}
}
