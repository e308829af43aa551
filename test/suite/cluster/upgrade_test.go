package cluster_test

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestClusterIsUpgraded replaces the program of each agent of a cluster, the leader's too, while all of them are
// called. No call fails, and a program on a node writes on into its volume.
func TestClusterIsUpgraded(t *testing.T) {
	t.Parallel()
	program := func(version string) []byte {
		data, err := os.ReadFile(testbin.BuildVersion(t, "host/cmd/pannier-agent", version))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	c := testcluster.New(t, testcluster.Options{Servers: 3, Nodes: 1, Config: quickVotes})
	for _, h := range c.Hosts {
		h.Install(program("1.0.0"))
	}
	launch(c.Hosts...)
	n1 := c.Host("node-1")
	awaitVoters(t, n1, "server-1", "server-2", "server-3")
	c.Volume(n1, "busy", "single-node-writer")
	p := run(t, c, n1, "busy", "busy")
	lead(c, "server-1")

	over := make(chan struct{})
	var callers sync.WaitGroup
	end := sync.OnceFunc(func() { close(over); callers.Wait() })
	t.Cleanup(end)
	call := func(what string, h *testhost.Host, do func(client *api.Client) error) {
		client := h.Client()
		callers.Go(func() {
			var longest time.Duration
			n := 0
			for ; ; n++ {
				select {
				case <-over:
					t.Logf("%s: %s: %d calls, the longest took %s", h.Name, what, n, longest)
					return
				default:
				}
				began := time.Now()
				if err := do(client); err != nil {
					t.Errorf("%s: %s: %v", h.Name, what, err)
				}
				longest = max(longest, time.Since(began))
			}
		})
	}
	for _, h := range c.Hosts {
		call("read the latest", h, func(client *api.Client) error {
			_, err := client.Volumes.ListVolumes(t.Context(), &hostv1.ListVolumesRequest{})
			return err
		})
		call("write", h, func(client *api.Client) error {
			id := "short-lived-" + h.Name
			_, err := client.Volumes.CreateVolume(t.Context(), &hostv1.CreateVolumeRequest{
				Spec: &hostv1.VolumeSpec{
					Id: id, Type: "csi", PluginId: "shared", CapacityMin: 1 << 20,
					Capabilities: []*hostv1.VolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
				},
			})
			if err == nil {
				_, err = client.Volumes.DeleteVolume(t.Context(), &hostv1.DeleteVolumeRequest{Id: id})
			}
			return err
		})
	}
	next := program("2.0.0")
	for _, h := range []*testhost.Host{c.Host("server-2"), c.Host("server-3"), c.Host("server-1"), n1} {
		before := processes(t, h)
		h.Install(next)
		h.Run("agent", "upgrade")
		if after := processes(t, h); after != before {
			t.Errorf("%s: its processes were %s, and are %s", h.Name, before, after)
		}
		awaitVoters(t, n1, "server-1", "server-2", "server-3")
	}
	end()
	p.writesOn(t)
	n1.Run("workload", "stop", "busy")
}

// processes describes those that go on when the agent's program is replaced.
func processes(t *testing.T, h *testhost.Host) string {
	t.Helper()
	s, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(s.GetPid(), s.GetPlugins()[0].GetPid(), s.GetDrivers()[0].GetPid())
}
