package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/host/internal/apiserver/agentapi"
	"github.com/pannier/pannier/host/internal/apiserver/asknode"
	driversapi "github.com/pannier/pannier/host/internal/apiserver/drivers"
	"github.com/pannier/pannier/host/internal/apiserver/nodes"
	"github.com/pannier/pannier/host/internal/apiserver/operator"
	"github.com/pannier/pannier/host/internal/apiserver/plugins"
	"github.com/pannier/pannier/host/internal/apiserver/volumes"
	"github.com/pannier/pannier/host/internal/apiserver/workloads"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/peer/watcher"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// storageFake is a storage plugin and a driver in memory. What it publishes is a
// real mount.
type storageFake struct {
	storage.Client // nil: unexpected calls panic

	mu        sync.Mutex
	volumes   map[string]storage.CreateRequest // by external id
	answers   string                           // the external id of what it makes; empty: one for each name
	secrets   map[string]string                // of the last call
	deleted   []string
	snapshots []storage.Snapshot
	modified  map[string]string // the parameters of the last call
	condition *storage.Condition
	members   []string // of the group in the last call
	expanded  []storage.ExpandNodeRequest
	grown     int64 // what an expansion answers; 0: what was asked for
	warnings  []string
	fail      map[string]error  // by the call's name
	during    func(call string) // called in the middle of a delete or an expansion
	caps      storage.ControllerCapabilities
}

func (f *storageFake) lease(context.Context, string) (storage.Client, func(), error) {
	return f, func() {}, nil
}

func (f *storageFake) failure(call string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fail[call]
}

func (f *storageFake) setFailure(call string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[call] = err
}

func (f *storageFake) Fingerprint(ctx context.Context, _ storage.Driver, _ storage.FingerprintOptions,
	report func(storage.Fingerprint) error,
) error {
	caps := f.caps
	if err := report(storage.Fingerprint{
		Healthy: true, Provider: "fake.example.com", Version: "1.2", Controller: &caps,
		Node: &storage.NodeCapabilities{
			NodeID: "fake-n1", VolumeStats: true, MaxVolumes: 9,
			AccessibleTopology: storage.Topology{"rack": "r1"},
		},
	}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (f *storageFake) ValidateVolume(_ context.Context, _ storage.Driver, req storage.ValidateRequest) ([]string,
	error,
) {
	f.mu.Lock()
	f.secrets = req.Volume.Secrets
	f.mu.Unlock()
	return f.warnings, f.failure("validate")
}

func (f *storageFake) Create(_ context.Context, _ storage.Driver, req storage.CreateRequest) (storage.CreateResponse,
	error,
) {
	if err := f.failure("create"); err != nil {
		return storage.CreateResponse{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := cmp.Or(f.answers, "ext-"+req.Name)
	f.volumes[id] = req
	return storage.CreateResponse{
		ExternalID: id, Capacity: max(req.CapacityMin, 1<<20),
		Context: map[string]string{"by": "fake"}, Warnings: f.warnings,
	}, nil
}

func (f *storageFake) Delete(_ context.Context, _ storage.Driver, v storage.Volume) error {
	if f.during != nil {
		f.during("delete")
	}
	if err := f.failure("delete"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deleted, f.secrets = append(f.deleted, v.ExternalID), v.Secrets
	delete(f.volumes, v.ExternalID)
	return nil
}

func (f *storageFake) List(_ context.Context, _ storage.Driver, page storage.Page) (storage.ListResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := storage.ListResponse{Next: "next of " + page.Token}
	for id := range f.volumes {
		out.Volumes = append(out.Volumes,
			storage.ListedVolume{ExternalID: id, Condition: &storage.Condition{Abnormal: true, Message: "worn"}})
	}
	return out, nil
}

func (f *storageFake) Get(_ context.Context, _ storage.Driver, v storage.Volume) (storage.ListedVolume, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return storage.ListedVolume{ExternalID: v.ExternalID, Condition: f.condition}, f.fail["get"]
}

func (f *storageFake) Modify(_ context.Context, _ storage.Driver, req storage.ModifyRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail["modify"] == nil {
		f.modified, f.secrets = req.Parameters, req.Volume.Secrets
	}
	return f.fail["modify"]
}

func (f *storageFake) Expand(_ context.Context, _ storage.Driver, req storage.ExpandRequest) (storage.ExpandResponse,
	error,
) {
	if f.during != nil {
		f.during("expand")
	}
	grown := storage.ExpandResponse{Capacity: cmp.Or(f.grown, req.CapacityMin), NodeExpansionRequired: true}
	return grown, f.failure("expand")
}

func (f *storageFake) ExpandNode(_ context.Context, _ storage.Driver, req storage.ExpandNodeRequest) (int64, error) {
	if err := f.failure("expand node"); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expanded = append(f.expanded, req)
	return 0, nil
}

// CreateSnapshot never ends for a snapshot named hangs.
func (f *storageFake) CreateSnapshot(ctx context.Context, _ storage.Driver,
	req storage.CreateSnapshotRequest,
) (storage.Snapshot, error) {
	if strings.Contains(req.Name, "-hangs-") {
		<-ctx.Done()
		return storage.Snapshot{}, driverSays(codes.Canceled, "cut off")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s := storage.Snapshot{
		ID: "snap-" + req.Name, VolumeExternalID: req.Volume.ExternalID, Size: 5, Ready: true,
		CreatedAt: time.Unix(1, 0),
	}
	if !slices.ContainsFunc(f.snapshots, func(have storage.Snapshot) bool { return have.ID == s.ID }) {
		f.snapshots = append(f.snapshots, s)
	}
	return s, nil
}

func (f *storageFake) DeleteSnapshot(_ context.Context, _ storage.Driver, id string, s map[string]string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snapshots = slices.DeleteFunc(f.snapshots, func(have storage.Snapshot) bool { return have.ID == id })
	f.secrets = s
	return nil
}

func (f *storageFake) ListSnapshots(_ context.Context, _ storage.Driver,
	req storage.ListSnapshotsRequest,
) (storage.ListSnapshotsResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.secrets = req.Secrets
	if req.Page.Token != "" {
		return storage.ListSnapshotsResponse{}, nil
	}
	return storage.ListSnapshotsResponse{Snapshots: f.snapshots, Next: "more"}, nil
}

func (f *storageFake) CreateGroupSnapshot(_ context.Context, _ storage.Driver,
	req storage.CreateGroupSnapshotRequest,
) (storage.GroupSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := storage.GroupSnapshot{ID: "group-" + req.Name, Ready: true, CreatedAt: time.Unix(1, 0)}
	for _, id := range req.VolumeExternalIDs {
		g.Snapshots = append(g.Snapshots, storage.Snapshot{ID: "snap-" + id, VolumeExternalID: id, GroupID: g.ID, Ready: true})
	}
	f.snapshots, f.secrets = append(f.snapshots, g.Snapshots...), req.Secrets
	return g, nil
}

func (f *storageFake) GetGroupSnapshot(_ context.Context, _ storage.Driver,
	req storage.GroupSnapshotRequest,
) (storage.GroupSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = req.SnapshotIDs
	g := storage.GroupSnapshot{ID: req.ID}
	for _, s := range f.snapshots {
		if s.GroupID == req.ID {
			g.Snapshots = append(g.Snapshots, s)
		}
	}
	if len(g.Snapshots) == 0 {
		return g, driverSays(codes.NotFound, "no such group")
	}
	return g, nil
}

func (f *storageFake) DeleteGroupSnapshot(_ context.Context, _ storage.Driver, req storage.GroupSnapshotRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members, f.snapshots = req.SnapshotIDs, nil
	return nil
}

func (f *storageFake) Publish(_ context.Context, _ storage.Driver, req storage.PublishRequest) error {
	if err := f.failure("publish"); err != nil {
		return err
	}
	if err := os.Mkdir(req.TargetPath, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	return unix.Mount("fake", req.TargetPath, "tmpfs", 0, "size=64k")
}

func (f *storageFake) Unpublish(_ context.Context, _ storage.Driver, _ storage.Volume, target string) error {
	if err := f.failure("unpublish"); err != nil {
		return err
	}
	if err := unix.Unmount(target, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	return nil
}

func (f *storageFake) VolumeStats(context.Context, storage.Driver, storage.StatsRequest) (storage.Stats, error) {
	return storage.Stats{
		Usage:     []storage.Usage{{Unit: storage.Bytes, Total: 10, Used: 4, Available: 6}, {Unit: storage.Inodes, Total: 3}},
		Condition: &storage.Condition{Message: "fine"},
	}, f.failure("stats")
}

// consulFake stands for services and tokens in Consul.
type consulFake struct {
	mu       sync.Mutex
	problems map[string]string
	tokens   []tokens.Listed
	report   tokens.Report
	dry      []bool // of the sweeps
	err      error

	forgotten []string // nodes
	forgetErr error
}

func (f *consulFake) Conflict(string, string) string { return "" }

func (f *consulFake) Forget(_ context.Context, node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgotten = append(f.forgotten, node)
	return f.forgetErr
}

func (f *consulFake) Problems() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.problems)
}

func (f *consulFake) List(_ context.Context, namespace, workload string) (all []tokens.Listed, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.tokens {
		if (namespace == "" || namespace == t.Workload.Namespace) && (workload == "" || workload == t.Workload.ID) {
			all = append(all, t)
		}
	}
	return all, f.err
}

func (f *consulFake) Sweep(_ context.Context, dryRun bool) (tokens.Report, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dry = append(f.dry, dryRun)
	return f.report, f.err
}

// host is a server with everything behind it.
type host struct {
	*Server
	fake   *storageFake
	ledger *clustertest.Server
	bus    *events.Bus
	consul *consulFake
	log    *check.Buffer
	client *api.Client
	ctx    context.Context
	naming []string // what names a plugin
}

func allCaps() storage.ControllerCapabilities {
	return storage.ControllerCapabilities{
		CreateDelete: true, ListVolumes: true, Expand: true, OnlineExpand: true,
		CreateDeleteSnapshot: true, ListSnapshots: true,
	}
}

// onePlugin is a plugin that only has a status.
type onePlugin struct{ plugins.Plugins }

func (onePlugin) Status() []supervisor.Status {
	return []supervisor.Status{{Name: "csi-bridge", State: supervisor.Running, Restarts: 2, PID: 7}}
}

// attacher attaches volumes, and records it nowhere.
type attacher struct{ *controllers.Controllers }

func (a attacher) Attach(ctx context.Context, v claim.Volume, modes claim.Capability, node string,
) (map[string]string, error) {
	return a.Controllers.Attach(ctx, v, modes, node, func(context.Context) error { return nil })
}

// noTokens is a node without tokens.
type noTokens struct{ servicesteps.Tokens }

func (noTokens) OnNode(context.Context, string) ([]claim.Token, error) { return nil, nil }

// parts are what tests change of a host: what several handlers need is there once.
type parts struct {
	Config
	Ledger    *cluster.Node
	Plugins   plugins.Plugins
	Workloads *workload.Manager
	Discovery nodes.Discovery
	Agents    http.RoundTripper
	Nodes     volumes.Nodes
	Heard     func(node string) (at, keepsTo time.Time)
	Stop      func(plugins bool) (pluginsStop, workloadsStop bool)
}

// config gives each handler its parts.
func (p parts) config() Config {
	c := p.Config
	others := &asknode.Asker{Name: c.Name, Direct: p.Nodes != nil, Leader: c.Leader, Agents: p.Agents, Traces: c.Traces}
	if p.Discovery != nil {
		others.Discovery = p.Discovery
	}
	c.Volumes.Name, c.Drivers.Name, c.Nodes.Name, c.Workloads.Name, c.Agent.Name, c.ACLs.Name = c.Name, c.Name, c.Name,
		c.Name, c.Name, c.Name
	l := p.Ledger
	c.Ledger, c.Drivers.Ledger, c.Nodes.Ledger, c.Workloads.Ledger, c.Operator.Ledger = l, l, l, l, l
	if c.ACLs.Ledger, c.Agent.Ledger = l, l; c.Volumes.Ledger == nil {
		c.Volumes.Ledger = l
	}
	c.Plugins.Plugins, c.Plugins.Workloads, c.Plugins.Nodes = p.Plugins, p.Workloads, others
	if c.Workloads.Nodes = others; c.Workloads.Workloads == nil {
		c.Workloads.Workloads = p.Workloads
	}
	c.Volumes.Nodes, c.Volumes.Heard = p.Nodes, p.Heard
	c.Nodes.Discovery, c.Nodes.Leader, c.Nodes.Heard, c.Nodes.Workloads = p.Discovery, c.Leader, p.Heard, p.Workloads
	c.Nodes.Stop = func() { p.Stop(false) }
	c.Agent.Nodes, c.Agent.Health, c.Agent.Metrics, c.Agent.Socket = others, c.Health, c.Metrics, c.Socket
	c.Agent.End = p.Stop
	c.ACLs.DataDir, c.ACLs.Log = c.Agent.DataDir, c.Logger
	return c
}

func openHost(t *testing.T, change ...func(c *parts)) *host {
	t.Helper()
	return openHostWith(t, allCaps(), change...)
}

// openHostWith is openHost with a driver that can do less.
func openHostWith(t *testing.T, caps storage.ControllerCapabilities, change ...func(c *parts)) *host {
	t.Helper()
	check.Parallel(t)
	dir := t.TempDir()
	h := &host{
		fake: &storageFake{volumes: map[string]storage.CreateRequest{}, fail: map[string]error{}, caps: caps},
		bus:  events.New(0), consul: &consulFake{problems: map[string]string{}}, log: &check.Buffer{},
	}
	var cancel context.CancelFunc
	h.ctx, cancel = context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	log := hclog.New(&hclog.LoggerOptions{Output: h.log, Level: hclog.Debug})
	h.ledger = clustertest.Start(t)
	sealer := check.Must(secrets.Open(filepath.Join(dir, "key")))(t)
	unseal := func(_ context.Context, v claim.Volume) (map[string]string, error) {
		return sealer.Unseal(v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID))
	}
	j := check.Must(journal.Open(filepath.Join(dir, "journal"), hclog.NewNullLogger()))(t)
	t.Cleanup(func() { check.NoError(t, j.Close()) })

	registry := drivers.New(drivers.Config{DataDir: dir, Logger: log, Storage: h.fake.lease, Events: h.bus})
	check.NoError(t, registry.Open(h.ctx, []drivers.Spec{{
		ID: "fake", Endpoint: "unix://" + dir + "/fake.sock", AllowedMountFlags: []string{"password"},
	}}))
	t.Cleanup(func() { check.NoError(t, registry.Close(true)) })
	calls := drivers.Caller{
		Drivers: registry,
		Storage: func(ctx context.Context, _ string, fn func(ctx context.Context, c storage.Client) error) error {
			return fn(ctx, h.fake)
		},
	}
	ctl := controllers.New(controllers.Config{
		Node:      "n1",
		ClusterID: func(context.Context) (string, error) { return "c1", nil }, Calls: calls, Secrets: unseal,
	})
	pseudo := devices.New(pseudoDevices{}, h.bus, log)
	manager := workload.New("n1", mounts.Layout{Dir: filepath.Join(dir, "csi")}, j, log, workload.Deps{
		Ledger: h.ledger.Node, Controller: attacher{ctl}, Drivers: registry, Devices: pseudo, Calls: calls,
		Events:  h.bus,
		Secrets: unseal,
		Tokens:  noTokens{}, Ports: ports.New(ports.DefaultMin,
			ports.DefaultMax, 2000), SecretsDir: secretsdir.New(filepath.Join(dir, "secrets")),
	})
	_, err := manager.Open(h.ctx)
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, manager.Close()) })
	t.Cleanup(func() { stopAll(t, manager) })
	releases := watcher.New(watcher.Config{
		NodeName: "n1", Node: manager, Cluster: h.ledger.Node, Controllers: ctl, DriversChanged: registry.Changed,
		Events: h.bus, Log: log,
		GC: watcher.GC{Interval: time.Hour, Claims: time.Hour, Drivers: time.Hour, Workloads: time.Hour},
	})
	registrar := &noderecord.Registrar{
		Name: "n1", BootID: "b", Cluster: h.ledger.Node, Drivers: registry, Devices: pseudo,
		Log: log,
	}
	loops, stopLoops := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { h.ledger.WhileLeader(loops, releases.Run) })
	running.Go(func() { registrar.Run(loops) })
	running.Go(func() { pseudo.Run(loops) })
	// Cleanups run in reverse: the manager's workloads stop while the releases run.
	t.Cleanup(func() { stopAll(t, manager); stopLoops(); running.Wait() })

	cfg := parts{
		Config: Config{
			Socket: filepath.Join(dir, "run", "p.sock"), HTTPAddress: "127.0.0.1:0", Logger: log,
			Metrics: prometheus.NewRegistry(), Name: "n1", Health: func() []string { return nil },
			Drivers: driversapi.Handler{Drivers: registry, Controllers: ctl},
			Agent: agentapi.Handler{
				Version: "0.0-test", Datacenter: "dc1", DataDir: dir, StartedAt: time.Now(), Bus: h.bus, Services: h.consul,
				Leftovers: func() []string { return []string{"/left"} }, Upgraded: func() *handover.Outcome { return nil },
			},
		},
		Ledger: h.ledger.Node, Plugins: onePlugin{}, Workloads: manager,
	}
	cfg.Volumes = volumes.Handler{
		Log: log, Controllers: ctl, Drivers: registry, Workloads: manager, Watcher: releases, Events: h.bus, Sealer: sealer,
	}
	cfg.Config.Plugins = plugins.Handler{Drivers: registry, Devices: pseudo, Uses: func() (all []catalog.Use) {
		for _, d := range registry.List() {
			all = append(all, catalog.Use{Of: fmt.Sprintf("csi_driver %q", d.ID), ID: d.ID, Kind: storage.Kind})
		}
		return all
	}, Naming: func(string) []string { return h.naming }}
	cfg.Config.Nodes = nodes.Handler{Version: "0.0-test", Datacenter: "dc1", Log: log, Services: h.consul}
	cfg.Config.Workloads = workloads.Handler{Services: h.consul, Tokens: h.consul}
	cfg.Operator = operator.Handler{Log: log, Watcher: releases}
	for _, c := range change {
		c(&cfg)
	}
	h.Server = New(cfg.config())
	check.NoError(t, h.Open(h.ctx))
	t.Cleanup(func() { check.NoError(t, h.Close()) })
	h.client, err = api.New("unix://" + cfg.Socket)
	check.NoError(t, err)
	t.Cleanup(func() { h.client.Close() })
	check.Eventually(t, "the driver is healthy, and the ledger knows", func() bool {
		d, err := h.client.Drivers.GetDriver(h.ctx, &hostv1.GetDriverRequest{Id: "fake"})
		return err == nil && d.Driver.Healthy && d.Driver.NodesHealthy == 1
	})
	return h
}

// stopAll unmounts everything, whatever a test did.
func stopAll(t *testing.T, m *workload.Manager) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, w := range m.List() {
		if _, err := m.Stop(ctx, w.Spec.WorkloadRef, "the test is over", nil); err != nil {
			t.Errorf("stop workload %q: %v", w.Spec.ID, err)
		}
	}
}

// withHeader is the context of a call with these headers.
func withHeader(ctx context.Context, header http.Header) context.Context {
	ctx, call := connect.NewClientContext(ctx)
	maps.Copy(call.RequestHeader(), header)
	return ctx
}

// wantError checks the code of an error, and that its text contains all parts.
func wantError(t *testing.T, err error, code connect.Code, says ...string) {
	t.Helper()
	if connect.CodeOf(err) != code || err == nil {
		t.Errorf("got %v (%v), want %v", err, connect.CodeOf(err), code)
		return
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q lacks %q", err, s)
		}
	}
}

const secretValue, secretFlag = "hunter2-the-secret", "password=hunter2-the-flag"

// spec returns a volume's definition with secrets.
func spec(id string, change ...func(s *hostv1.VolumeSpec)) *hostv1.VolumeSpec {
	s := &hostv1.VolumeSpec{
		Id: id, Type: "csi", PluginId: "fake", CapacityMin: 1 << 20,
		Capabilities: []*hostv1.VolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
		MountOptions: &hostv1.MountOptions{FsType: "ext4", MountFlags: []string{secretFlag}},
		Secrets:      map[string]string{"password": secretValue}, Parameters: map[string]string{"sku": "x"},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func (h *host) create(t *testing.T, s *hostv1.VolumeSpec) *hostv1.Volume {
	t.Helper()
	resp := check.Must(h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: s}))(t)
	return resp.Volume
}

// start starts a workload with one volume and returns its steps.
func (h *host) start(t *testing.T, id, volume string) (*hostv1.Workload, []*hostv1.Step) {
	t.Helper()
	w, steps, err := h.tryStart(id, volume, false)
	check.NoError(t, err)
	return w, steps
}

func (h *host) tryStart(id, volume string, withCaller bool) (w *hostv1.Workload, steps []*hostv1.Step, err error) {
	stream, err := h.client.Workloads.StartWorkload(h.ctx, &hostv1.StartWorkloadRequest{
		Spec: &hostv1.WorkloadSpec{Id: id, Volumes: []*hostv1.VolumeRequest{{
			Name: "data", Source: volume, Destination: "/data",
			MountOptions: &hostv1.MountOptions{MountFlags: []string{secretFlag}},
		}}},
		ReleaseWithCaller: withCaller,
	})
	if err != nil {
		return nil, nil, err
	}
	defer stream.Close()
	for stream.Receive() {
		if s := stream.Msg().GetStep(); s != nil {
			steps = append(steps, s)
		}
		if found := stream.Msg().GetWorkload(); found != nil {
			w = found
		}
	}
	return w, steps, stream.Err()
}

func (h *host) stop(t *testing.T, id string) (w *hostv1.Workload, steps []*hostv1.Step) {
	t.Helper()
	stream := check.Must(h.client.Workloads.StopWorkload(h.ctx, &hostv1.StopWorkloadRequest{Id: id}))(t)
	defer stream.Close()
	for stream.Receive() {
		if s := stream.Msg().GetStep(); s != nil {
			steps = append(steps, s)
		}
		if found := stream.Msg().GetWorkload(); found != nil {
			w = found
		}
	}
	check.NoError(t, stream.Err())
	return w, steps
}

func driverSays(code codes.Code, format string, args ...any) error {
	return status.Error(code, fmt.Sprintf(format, args...))
}

func needsRoot(t *testing.T) { testbin.RequireRoot(t, "mounts and other users' connections") }
