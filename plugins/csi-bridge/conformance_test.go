package main

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testplugin"
)

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
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			endpoint := driver.start(t, dir)
			answers(t, strings.TrimPrefix(endpoint, "unix://"))
			d := storage.Driver{ID: name, Endpoint: endpoint}
			report, err := conformance.Run(t.Context(), conformance.Config{
				Binary: testbin.Build(t, "plugins/csi-bridge"), Kind: storage.Kind, Driver: d,
			})
			if err != nil {
				t.Fatal(err)
			}
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
			plugin := storage.NewClient(testplugin.Start(t, "csi-bridge").Conn)
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
