package peer

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc/metadata"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/heartbeat"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/clustertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// timeout is long enough for a slow machine.
const timeout = 2 * time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return ctx
}

// world is a cluster: real servers with their ledgers, and other agents, that call each other over real TLS.
type world struct {
	servers *clustertest.Cluster
	ca      pkitest.Authority
	log     *logs

	mu      sync.Mutex
	agents  map[string]*agent
	audited []Change
}

// audit records the lines of all agents' audit logs.
func (w *world) audit(_ context.Context, c Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.audited = append(w.audited, c)
}

// agent is one host's part in the calls between agents.
type agent struct {
	*Servers
	name   string
	role   pki.Role
	secret Secret
	server *Server
	port   *transport.Port
	dialer *transport.Dialer
	leader *Leader // nil: it is no server
	node   *Node
	nodes  *Nodes
	works  *works
	beats  *beats
	tokens *tokens
}

// logs collect what is logged.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// form makes a cluster of servers and nodes.
func form(t *testing.T, servers int, nodes ...string) *world {
	t.Helper()
	w := &world{ca: pkitest.New(t), log: &logs{}, agents: map[string]*agent{}}
	w.servers = clustertest.Form(t, servers, clustertest.Options{})
	for _, h := range w.servers.Hosts() {
		w.add(t, h.Name, pki.Server, h.Node)
	}
	for _, n := range nodes {
		w.add(t, n, pki.Node, nil)
	}
	return w
}

// add starts an agent; one with a ledger is a server.
func (w *world) add(t *testing.T, name string, role pki.Role, ledger *cluster.Node, change ...func(*agent)) *agent {
	t.Helper()
	certs := w.ca.Certs(t, role, name)
	a := &agent{
		name: name, role: role, works: &works{}, beats: &beats{}, tokens: &tokens{},
		dialer: transport.NewDialer(certs),
	}
	var err error
	a.secret, err = OpenSecret(filepath.Join(t.TempDir(), "node.secret"))
	must(t, err)
	log := hclog.New(&hclog.LoggerOptions{Output: w.log})
	a.port, err = transport.Open(t.Context(), transport.Config{Addr: "127.0.0.1:0", Certs: certs, Logger: log})
	must(t, err)
	terms := &Terms{answered: true}
	a.node = &Node{
		Info: Info{Name: name, Version: "1.2.3", BootID: "b"}, Workloads: a.works, Mounted: a.works,
		Calls: drivers.Caller{Drivers: noDrivers{}},
	}
	a.node.Info.SecretHash = a.secret.Hash()
	reach := NodesConfig{
		Name: name, Local: a.node, Member: w.member, Dialer: a.dialer, Term: func() uint64 { return 0 },
	}
	if ledger != nil {
		reach.Ledger, reach.Term = ledger, ledger.Term
	}
	a.nodes = NewNodes(reach)
	if ledger != nil {
		a.leader = &Leader{
			Ledger: ledger, Tokens: a.tokens, Heartbeats: a.beats, Stop: a.nodes.StopWorkload, Servers: w.known,
			Secrets: func(_ context.Context, v claim.Volume) (map[string]string, error) {
				return map[string]string{"password": "of " + v.ID}, nil
			},
		}
	}
	a.Servers = NewServers(ServersConfig{Name: name, Secret: a.secret, BootID: "b", Servers: w.known, Dialer: a.dialer, Terms: terms})
	if a.leader != nil {
		a.SetLocal(a.leader)
	}
	for _, c := range change {
		c(a)
	}
	a.server = Serve(a.port.GRPC(), Config{Leader: a.leader, Node: a.node, Terms: terms, Log: log, Audit: w.audit},
		a.port.ServerOptions()...)
	w.mu.Lock()
	w.agents[name] = a
	w.mu.Unlock()
	t.Cleanup(func() { must(t, a.close()) })
	return a
}

// close stops the agent's server; its ledger continues.
func (a *agent) close() error { return errors.Join(a.server.Close(), a.port.Close(), a.dialer.Close()) }

func (w *world) members() []route.Member {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []route.Member
	for _, a := range w.agents {
		out = append(out, route.Member{Name: a.name, Addr: a.port.Addr().String(), Server: a.role == pki.Server})
	}
	return out
}

func (w *world) known() []route.Member {
	return slices.DeleteFunc(w.members(), func(m route.Member) bool { return !m.Server })
}

func (w *world) member(name string) (route.Member, bool) {
	all := w.members()
	at := slices.IndexFunc(all, func(m route.Member) bool { return m.Name == name })
	if at < 0 {
		return route.Member{}, false
	}
	return all[at], true
}

// leader returns the agent that leads.
func (w *world) leader(t *testing.T) *agent { return w.agents[w.servers.WaitLeader(t).Name] }

// register puts the agent's node record.
func (a *agent) register(t *testing.T) {
	t.Helper()
	_, err := cluster.Apply(within(t), a.Servers,
		&command.PutNode{Node: claim.Node{Name: a.name, BootID: "b", SecretHash: a.secret.Hash()}})
	must(t, err)
}

func ref(id string) claim.WorkloadRef {
	return claim.WorkloadRef{Namespace: claim.DefaultNamespace, ID: id}
}

var writer = claim.Capability{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}

// volume registers a volume that has secrets.
func (w *world) volume(t *testing.T, id, driver string) claim.Volume {
	t.Helper()
	result, err := cluster.Apply(within(t), w.leader(t).Servers, &command.RegisterVolume{Volume: claim.Volume{
		Definition: claim.Definition{
			VolumeRef: claim.VolumeRef{
				Namespace: claim.DefaultNamespace,
				ID:        id,
			}, Name: id, PluginID: driver, ExternalID: "ext-" + id,
			Capabilities: []claim.Capability{writer},
		}, SealedSecrets: []byte("sealed"),
	}})
	must(t, err)
	return result.Volume
}

func wants(v claim.Volume) claim.Claim {
	return claim.Claim{
		Volume: v.VolumeRef, Mode: claim.Write, AccessMode: writer.AccessMode,
		AttachmentMode: writer.AttachmentMode,
	}
}

// call returns a client of the leader with this agent's certificate and the given secret.
func (a *agent) call(t *testing.T, w *world, secret string) (context.Context, peerv1.ServersServiceClient) {
	t.Helper()
	at, _ := w.member(w.leader(t).name)
	conn, err := a.dialer.Conn(at.Addr, at.Name, pki.Server)
	must(t, err)
	return metadata.AppendToOutgoingContext(within(t), secretKey, secret), peerv1.NewServersServiceClient(conn)
}

// callAs is call in the boot with this ID.
func (a *agent) callAs(t *testing.T, w *world, secret, boot string) (context.Context, peerv1.ServersServiceClient) {
	t.Helper()
	ctx, c := a.call(t, w, secret)
	return metadata.AppendToOutgoingContext(ctx, bootKey, boot), c
}

// noDrivers is a node without drivers.
type noDrivers struct{}

func (noDrivers) Get(id string) (drivers.Driver, error) {
	return drivers.Driver{}, drivers.ErrNotFound
}
func (noDrivers) Changed() <-chan struct{} { return nil }

// works are the workloads of a node; they record their calls.
type works struct {
	mu    sync.Mutex
	asked []string
	err   error
	stuck chan struct{} // not nil: a stop waits for it
}

func (w *works) note(what ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, strings.Join(what, " "))
	return w.err
}

func (w *works) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

func (w *works) Owns(ref claim.WorkloadRef) bool { return ref.ID == "own" }

func (w *works) Get(ref claim.WorkloadRef) (workload.Workload, error) {
	if ref.ID != "stuck" {
		return workload.Workload{}, workload.ErrNotFound
	}
	return workload.Workload{Release: workload.Release{Tries: 31, Error: "busy", Command: "docker stop web"}}, nil
}

func (w *works) DetachUnknown(_ context.Context, c claim.Claim, v claim.Volume) error {
	return w.note("detach unknown", c.Workload.ID, v.ExternalID)
}

func (w *works) Detach(_ context.Context, c claim.Claim, v claim.Volume) (string, error) {
	return "stopped it", w.note("detach", c.Workload.ID, v.ExternalID)
}

func (w *works) Stop(ctx context.Context, ref claim.WorkloadRef, reason string,
	_ func(workload.Step),
) (workload.Workload, error) {
	err := w.note("stop", ref.ID, reason)
	if w.stuck != nil {
		select {
		case <-w.stuck:
		case <-ctx.Done():
			return workload.Workload{}, context.Cause(ctx)
		}
	}
	return workload.Workload{}, err
}

func (w *works) Placements(ref claim.VolumeRef) []workload.Placement {
	if ref.ID == "mounted" {
		return []workload.Placement{
			{Place: mounts.Place{Target: "/t/1", Staging: "/s"}},
			{Place: mounts.Place{Target: "/t/2"}},
		}
	}
	return nil
}

func (w *works) Expand(v claim.Volume, do func(at mounts.Place) error) (places int, err error) {
	for _, p := range w.Placements(v.VolumeRef) {
		return 1, do(p.Place)
	}
	return 0, nil
}

func (w *works) ExpandNode(_ context.Context, v claim.Volume, at mounts.Place, _, _ int64) error {
	return w.note("expand", v.ID, at.Target)
}

func (w *works) Stats(_ context.Context, v claim.Definition, at mounts.Place) (storage.Stats, error) {
	return storage.Stats{Usage: []storage.Usage{{Unit: storage.Bytes, Total: 9}}}, w.note("stats", v.ID, at.Target)
}

// beats answers heartbeats, except the first ones.
type beats struct {
	mu      sync.Mutex
	refuse  int
	answers int
}

func (b *beats) Answer(_ context.Context, _, _ string) (lease.Answer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refuse > 0 {
		b.refuse--
		return lease.Answer{}, heartbeat.ErrNotAnswered
	}
	b.answers++
	return lease.Answer{Status: claim.NodeReady, Liveness: claim.DefaultLiveness, Index: 7}, nil
}

// tokens is Consul's part.
type tokens struct {
	mu    sync.Mutex
	asked []string
}

func (k *tokens) note(what string, t claim.Token) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, what+" "+t.ID+" "+t.Accessor)
}

func (k *tokens) Intend(_ context.Context, t claim.Token) error { k.note("intend", t); return nil }

func (k *tokens) Derive(_ context.Context, t claim.Token) (claim.Token, string, error) {
	k.note("derive", t)
	t.Accessor = "accessor"
	return t, "the secret", nil
}

func (k *tokens) Revoke(_ context.Context, t claim.Token, _ string) error {
	k.note("revoke", t)
	return nil
}
