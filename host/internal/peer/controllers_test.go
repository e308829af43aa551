package peer

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/testbin"
)

// plant is a node's real storage plugin and driver, whose volumes other nodes can reach.
type plant struct {
	calls    drivers.Caller
	registry *drivers.Registry
}

// grow starts csi-bridge and a driver with a controller that attaches on a node.
func grow(t *testing.T, name, shared, topology string) *plant {
	t.Helper()
	dir, err := os.MkdirTemp("", "peer") // a socket's path must be short
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	plugins := filepath.Join(dir, "plugins")
	must(t, os.Mkdir(plugins, 0o755))
	if out, err := exec.Command("cp", testbin.Build(t, "plugins/csi-bridge"),
		filepath.Join(plugins, "csi-bridge")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := supervisor.New(supervisor.Config{
		PluginDir: plugins, DataDir: filepath.Join(dir, "data"), StopPlugins: true,
		Logger: hclog.NewNullLogger(),
	})
	must(t, s.Open(t.Context()))
	t.Cleanup(func() { must(t, s.Close()) })
	c := catalog.New(s)
	p := &plant{registry: drivers.New(drivers.Config{
		DataDir: filepath.Join(dir, "data"), Logger: hclog.NewNullLogger(),
		Storage: c.Storage, Events: events.New(0),
	})}
	endpoint := "unix://" + filepath.Join(dir, "d.sock")
	must(t, p.registry.Open(t.Context(), []drivers.Spec{{ID: "shared", Endpoint: endpoint, Command: []string{
		testbin.Build(t, "test/lib/shareddriver"), "-endpoint", endpoint, "-node-id", "driver-" +
			name, "-dir", shared, "-topology", topology,
	}}}))
	t.Cleanup(func() { must(t, p.registry.Close(true)) })
	p.calls = drivers.Caller{Drivers: p.registry, Storage: c.DoStorage}
	_, err = p.calls.Await(within(t), "shared", timeout)
	must(t, err)
	return p
}

// record returns the node's report about its driver.
func (p *plant) record(t *testing.T) map[string]claim.NodeDriver {
	t.Helper()
	d, err := p.registry.Get("shared")
	must(t, err)
	ctl := claim.ControllerCapabilities(*d.Fingerprint.Controller)
	return map[string]claim.NodeDriver{"shared": {
		ID: "shared", Type: claim.Monolith, Healthy: d.Healthy, Provider: d.Fingerprint.Provider, Controller: &ctl,
		NodeID: d.Fingerprint.Node.NodeID, Topology: d.Fingerprint.Node.AccessibleTopology,
	}}
}

// The leader has no driver: it creates a volume and attaches it through the controllers of nodes, over real TLS, real
// plugins and real drivers, and then through the only one that is left.
func TestControllersOnNodes(t *testing.T) {
	w := form(t, 1)
	shared := t.TempDir()
	plants := map[string]*plant{}
	for name, topology := range map[string]string{"n1": "rack=R1", "n2": "rack=R2"} {
		p := grow(t, name, shared, topology)
		plants[name] = p
		a := w.add(t, name, pki.Node, nil, func(a *agent) { a.node.Calls = p.calls })
		_, err := cluster.Apply(within(t), a.Servers,
			&command.PutNode{Node: claim.Node{Name: name, SecretHash: a.secret.Hash(), Drivers: p.record(t)}})
		must(t, err)
	}
	leader := w.leader(t)
	ledger := w.servers.WaitLeader(t).Node
	ctl := controllers.New(controllers.Config{
		Node: leader.name, ClusterID: func(context.Context) (string, error) {
			return "c1",
				nil
		}, Calls: leader.node.Calls, Secrets: leader.leader.Secrets,
		Cluster: &noderecord.Directory{Cluster: ledger, Calls: leader.nodes.Storage},
	})
	leader.leader.Controllers = ctl

	v, err := ctl.Create(within(t), claim.Volume{
		Definition: claim.Definition{
			VolumeRef: claim.VolumeRef{
				Namespace: claim.DefaultNamespace,
				ID:        "v",
			}, Name: "v", PluginID: "shared", CapacityMin: 1 << 20,
			Capabilities: []claim.Capability{writer},
		},
	}, nil)
	must(t, err)
	_, err = cluster.Apply(within(t), ledger, &command.RegisterVolume{Volume: v})
	must(t, err)
	n1 := w.agents["n1"]
	capability := claim.Capability{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}
	if _, err := n1.Attach(within(t), v, capability, "n1"); !errors.Is(err, ErrDenied) {
		t.Errorf("without a claim: %v", err)
	}
	_, err = cluster.Apply(within(t), n1.Servers,
		command.Start(claim.Run{Ref: ref("a"), Node: "n1"}, []claim.Claim{wants(v)}))
	must(t, err)
	other := capability
	other.AccessMode = claim.MultiNodeMultiWriter
	if _, err := n1.Attach(within(t), v, other, "n1"); !errors.Is(err, ErrDenied) {
		t.Errorf("in another mode: %v", err)
	}
	attach := func() error {
		_, err := n1.Attach(within(t), v, capability, "n1")
		return err
	}
	for range 4 { // each controller has its turn
		must(t, attach())
	}

	// One driver is away: the other is used, even before the ledger knows.
	must(t, plants["n1"].registry.Close(true))
	for range 4 {
		must(t, attach())
	}
	// One node is away too: none is left, and the error explains why for each.
	must(t, w.agents["n2"].server.Close())
	must(t, w.agents["n2"].port.Close())
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	_, err = ctl.Detach(ctx, v, "n1", "driver-n1", func(context.Context) (bool, error) { return false, nil })
	if !errors.Is(err, drivers.ErrUnhealthy) || status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), `on node "n1": `) || !strings.Contains(err.Error(), `on node "n2": `) {
		t.Errorf("nobody is left: %v", err)
	}
	must(t, ledger.Read(within(t), func(tx *state.ReadTx) error { _, err := tx.Volume(v.VolumeRef); return err }))
}

// A driver's error comes back unchanged, with its code, and the call is made only once.
func TestADriversAnswerTravels(t *testing.T) {
	w := form(t, 1)
	p := grow(t, "n1", t.TempDir(), "rack=R1")
	w.add(t, "n1", pki.Node, nil, func(a *agent) { a.node.Calls = p.calls })
	c := w.leader(t).nodes.Storage("n1")
	err := c.Detach(within(t), storage.Driver{ID: "shared", Endpoint: "unix:///nonsense"},
		storage.Volume{Name: "v", ExternalID: "none"}, "driver-n1")
	if err != nil {
		t.Errorf("a detach of what is not there, by a driver whose socket the node knows: %v", err)
	}
	_, err = c.Attach(within(t), storage.Driver{ID: "shared"}, storage.AttachRequest{
		Volume: storage.Volume{
			Name: "v", ExternalID: "none",
			Capability: storage.Capability{AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem},
		},
		NodeID: "driver-n1",
	})
	if status.Code(err) != codes.NotFound || strings.Contains(err.Error(), "rpc error") {
		t.Errorf("no such volume: %v", err)
	}
	_, err = c.Create(within(t), storage.Driver{ID: "shared"}, storage.CreateRequest{
		Name: "v", Capabilities: []storage.Capability{{
			AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem, MountFlags: []string{"errors=panic"},
		}},
	})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), `"errors"`) {
		t.Errorf("a mount flag that this node does not allow: %v", err)
	}
	if _, err := c.List(within(t), storage.Driver{ID: "other"}, storage.Page{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a driver that the node has not: %v", err)
	}
	start := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Detach(ctx, storage.Driver{ID: "shared"}, storage.Volume{ExternalID: "v"}, "x"); !errors.Is(err,
		context.Canceled) || time.Since(start) > timeout {
		t.Errorf("the caller's end: %v", err)
	}
}

// slowControllers do something before they record an attachment and make it.
type slowControllers struct {
	before   func()
	attached int
}

func (c *slowControllers) Attach(ctx context.Context, _ claim.Volume, _ claim.Capability, _ string,
	intend func(ctx context.Context) error,
) (map[string]string, error) {
	c.before()
	if err := intend(ctx); err != nil {
		return nil, err
	}
	c.attached++
	return nil, nil
}

// An attach for a claim that is released meanwhile is not made, and before one is made the claim says so.
func TestLateAttach(t *testing.T) {
	w := form(t, 1)
	n1 := w.add(t, "n1", pki.Node, nil, func(*agent) {})
	_, err := cluster.Apply(within(t), n1.Servers, &command.PutNode{Node: claim.Node{Name: "n1", SecretHash: n1.secret.Hash()}})
	must(t, err)
	leader := w.leader(t)
	ledger := w.servers.WaitLeader(t).Node
	v := claim.Volume{Definition: claim.Definition{
		VolumeRef: claim.VolumeRef{Namespace: claim.DefaultNamespace, ID: "v"}, PluginID: "shared", ExternalID: "x",
		Capabilities: []claim.Capability{writer},
	}}
	_, err = cluster.Apply(within(t), ledger, &command.RegisterVolume{Volume: v})
	must(t, err)
	_, err = cluster.Apply(within(t), n1.Servers,
		command.Start(claim.Run{Ref: ref("a"), Node: "n1"}, []claim.Claim{wants(v)}))
	must(t, err)
	attachedBy := func() (by string) {
		must(t, ledger.ReadLatest(within(t), func(tx *state.ReadTx) error {
			c, err := tx.Claim(v.VolumeRef, ref("a"))
			by = c.AttachedBy
			return err
		}))
		return by
	}
	slow := &slowControllers{before: func() {
		if by := attachedBy(); by != "" {
			t.Errorf("attached by %q before the controller is about to be called", by)
		}
	}}
	leader.leader.Controllers = slow
	_, err = n1.Attach(within(t), v, writer, "n1")
	must(t, err)
	if by := attachedBy(); by != "shared" || slow.attached != 1 {
		t.Errorf("attached by %q, %d times", by, slow.attached)
	}
	slow.before = func() {
		_, err := cluster.Apply(within(t), ledger, command.End(claim.Run{Ref: ref("a"), Node: "n1"}))
		must(t, err)
	}
	if _, err := n1.Attach(within(t), v, writer, "n1"); !errors.Is(err, claim.ErrClaimNotFound) || slow.attached != 1 {
		t.Errorf("after the end of the workload: %v, attached %d times", err, slow.attached)
	}
	// A claim that is being released counts for nothing else either.
	v.SealedSecrets = []byte("x")
	if _, err := n1.VolumeSecrets(within(t), v); !errors.Is(err, ErrDenied) {
		t.Errorf("its secrets: %v", err)
	}
}
