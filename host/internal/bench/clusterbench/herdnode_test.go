package clusterbench

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

const (
	// herdPatience bounds each scenario.
	herdPatience = 5 * time.Minute
	// herdDriver is the driver of each node. It has no controller.
	herdDriver = "plain"
)

// herd is nodes whose clients of the servers run in this process.
type herd struct {
	t    testing.TB
	s    *formed
	all  []*herdNode
	lost atomic.Int64 // leases that ended though their nodes were there

	mu        sync.Mutex
	began     time.Time
	perSecond map[int]int
	counted   tally
}

// tally counts what the nodes have done since a scenario began.
type tally struct {
	calls, failed int
	dials         int
	peak          int // calls in one second, at most
}

// herdNode does what a node's agent does with the servers (agent.member): heartbeats, its record, the query that
// follows its drain, and the comparison with the ledger when it has its lease back. It mounts nothing. It has an
// address of its own, since servers bound the connections of one address.
type herdNode struct {
	herd    *herd
	name    string
	from    net.IP
	certs   *pki.Certs
	secret  peer.Secret
	servers *peer.Servers
	lease   *lease.Lease
	boots   int
	// renewed is when the last heartbeat that was answered was sent, in nanoseconds since 1970.
	renewed atomic.Int64
	end     func() // nil: it is not there
}

func newHerd(t testing.TB, s *formed, nodes int) *herd {
	t.Helper()
	h := &herd{t: t, s: s}
	for i := range nodes {
		h.all = append(h.all, &herdNode{
			herd: h, name: nodeName(i), from: net.IPv4(127, 1, byte(i>>8), byte(i)),
			certs:  s.ca.Certs(t, pki.Node, nodeName(i)),
			secret: check.Must(peer.OpenSecret(filepath.Join(t.TempDir(), "node.secret")))(t),
		})
	}
	t.Cleanup(func() { h.cut(h.all) })
	return h
}

// start boots nodes at once.
func (h *herd) start(nodes []*herdNode) {
	for _, n := range nodes {
		n.start()
	}
}

// cut ends nodes at once, without a word to the servers.
func (h *herd) cut(nodes []*herdNode) {
	var all sync.WaitGroup
	for _, n := range nodes {
		if n.end != nil {
			all.Go(n.end)
		}
	}
	all.Wait()
	for _, n := range nodes {
		n.end = nil
	}
}

// await waits until each node has a lease by a heartbeat that it sent since a moment, and returns how long that took.
func (h *herd) await(t testing.TB, since time.Time, nodes []*herdNode) time.Duration {
	t.Helper()
	for {
		missing := 0
		for _, n := range nodes {
			if n.renewed.Load() < since.UnixNano() || n.lease.Valid() != nil {
				missing++
			}
		}
		took := time.Since(since)
		if missing == 0 {
			return took
		}
		if took > herdPatience {
			t.Fatalf("%d of %d nodes have no lease after %v", missing, len(nodes), took)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// begin begins to count anew.
func (h *herd) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.began, h.perSecond, h.counted = time.Now(), map[int]int{}, tally{}
}

func (h *herd) sum() tally {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counted
}

// call counts a call of a node (grpc.UnaryClientInterceptor).
func (h *herd) call(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, do grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	h.mu.Lock()
	second := int(time.Since(h.began) / time.Second)
	h.perSecond[second]++
	h.counted.calls++
	h.counted.peak = max(h.counted.peak, h.perSecond[second])
	h.mu.Unlock()
	err := do(ctx, method, req, reply, cc, opts...)
	if err != nil && ctx.Err() == nil {
		h.mu.Lock()
		h.counted.failed++
		h.mu.Unlock()
	}
	return err
}

// dial connects from the node's address, and counts it.
func (n *herdNode) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.herd.mu.Lock()
	n.herd.counted.dials++
	n.herd.mu.Unlock()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: n.from}}
	return d.DialContext(ctx, "tcp", addr)
}

// start boots the node.
func (n *herdNode) start() {
	n.boots++
	boot, log := fmt.Sprint("boot-", n.boots), hclog.NewNullLogger()
	dialer := transport.NewDialer(n.certs, grpc.WithContextDialer(n.dial), grpc.WithChainUnaryInterceptor(n.herd.call))
	servers := peer.NewServers(peer.ServersConfig{
		Name: n.name, Secret: n.secret, BootID: boot, Servers: n.herd.s.members, Dialer: dialer, Terms: &peer.Terms{},
	})
	l := lease.New(&memoryFence{}, log)
	ctx, cancel := context.WithCancel(context.Background())
	record := &noderecord.Registrar{
		Name: n.name, BootID: boot, Address: net.JoinHostPort(n.from.String(), "7421"), SecretHash: n.secret.Hash(),
		Cluster: servers, Drivers: herdDrivers{n.name}, Devices: noDevices{}, Log: log,
	}
	keeper := &lease.Keeper{
		Node: n.name, Lease: l, Servers: n, Log: log,
		Lost: func(_ context.Context, why string) {
			if l.Epoch() > 0 { // it had one
				n.herd.lost.Add(1)
				n.herd.t.Logf("%s: %s", n.name, why)
			}
		},
		Back: func(ctx context.Context, a lease.Answer) error {
			_, _, err := cluster.Ask(ctx, servers, &command.QueryOnNode{Node: n.name}, cluster.Blocking{})
			if err != nil || a.Status != claim.NodeDown {
				return err
			}
			return record.Put(ctx)
		},
	}
	drains := &noderecord.Drainer{Name: n.name, Ledger: servers, Log: log} // nobody drains it
	n.servers, n.lease = servers, l
	var loops sync.WaitGroup
	for _, run := range []func(context.Context){record.Run, keeper.Run, drains.Run} {
		loops.Go(func() { run(ctx) })
	}
	n.end = func() {
		cancel()
		loops.Wait()
		_ = l.Close()
		_ = dialer.Close()
	}
}

// Heartbeat notes which heartbeats are answered (lease.Servers).
func (n *herdNode) Heartbeat(ctx context.Context, node string) (lease.Answer, error) {
	sent := time.Now()
	a, err := n.servers.Heartbeat(ctx, node)
	if err == nil && a.Status != claim.NodeDown {
		n.renewed.Store(sent.UnixNano())
	}
	return a, err
}

// memoryFence guards nothing (lease.Fence).
type memoryFence struct {
	mu    sync.Mutex
	state fence.State
}

func (f *memoryFence) State() fence.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *memoryFence) Update(_ context.Context, change func(fence.Change)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = f.state.With(change)
	return nil
}

// herdDrivers is the one driver of a node, which does not change.
type herdDrivers struct{ node string }

func (d herdDrivers) List() []drivers.Driver {
	return []drivers.Driver{{
		Spec: drivers.Spec{ID: herdDriver, Type: drivers.TypeNode}, Healthy: true,
		Fingerprint: storage.Fingerprint{
			Healthy: true, Provider: "plain.example.org", Version: "1.0",
			Node: &storage.NodeCapabilities{
				NodeID: d.node, StageUnstage: true, VolumeStats: true,
				AccessibleTopology: map[string]string{"rack": d.node[:len(d.node)-1]},
			},
		},
	}}
}

func (herdDrivers) Changed() <-chan struct{} { return nil }

// noDevices is a node without devices.
type noDevices struct{}

func (noDevices) List() []devices.Group    { return nil }
func (noDevices) Changed() <-chan struct{} { return nil }
