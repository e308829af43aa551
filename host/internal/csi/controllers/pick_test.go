package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// many is a cluster in memory: its nodes' reports on driver "d", and a plugin for each node.
type many struct {
	mu      sync.Mutex
	nodes   map[string]claim.NodeDriver
	status  map[string]claim.NodeStatus
	bound   map[string][]string
	trusted []string // the nodes that are approved
	plugins map[string]*plugin
	changed chan struct{}
}

func (m *many) Driver(id string) (claim.Driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id != "d" {
		return claim.Driver{}, fmt.Errorf("driver %q %w", id, claim.ErrDriverNotFound)
	}
	return claim.Driver{ID: "d", Nodes: maps.Clone(m.nodes)}, nil
}

func (m *many) Node(name string) (claim.Node, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := claim.Node{Name: name, Status: m.status[name], Namespaces: m.bound[name]}
	n.Approve("d", slices.Contains(m.trusted, name))
	return n, nil
}

func (m *many) Servers() ([]string, error) { return []string{"n1"}, nil }

func (m *many) Changed(context.Context, string) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

func (m *many) Storage(node string) storage.Client { return m.plugins[node] }

// set changes a node's report.
func (m *many) set(node string, change func(d *claim.NodeDriver)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.nodes[node]
	change(&d)
	m.nodes[node] = d
	close(m.changed)
	m.changed = make(chan struct{})
}

// openMany returns the controllers of the leader "n1" of a cluster whose nodes all have driver "d".
func openMany(names ...string) (*Controllers, *many) {
	m := &many{
		nodes: map[string]claim.NodeDriver{}, status: map[string]claim.NodeStatus{}, plugins: map[string]*plugin{},
		changed: make(chan struct{}),
	}
	for _, n := range names {
		m.nodes[n] = claim.NodeDriver{
			ID: "d", Type: claim.Monolith, Healthy: true, Provider: "p", NodeID: "driver-" + n,
			Controller: &claim.ControllerCapabilities{
				AttachDetach: true,
				CreateDelete: true,
			}, Topology: map[string]string{"rack": "r-" + n},
		}
		m.plugins[n] = &plugin{}
	}
	here := registry{}
	local := &plugin{}
	if own := m.plugins["n1"]; own != nil {
		here["d"], local = driver("d"), own
	}
	c := New(Config{
		Node: "n1", ClusterID: func(context.Context) (string, error) {
			return "c1",
				nil
		}, Calls: drivers.Caller{Drivers: here, Storage: local.do}, Cluster: m,
		Secrets: func(context.Context, claim.Volume) (map[string]string, error) { return nil, nil },
	})
	c.attachWait, c.wait = 0, 0
	return c, m
}

// asked returns the number of calls that each node's driver got.
func (m *many) asked() map[string]int {
	out := map[string]int{}
	for n, p := range m.plugins {
		p.mu.Lock()
		out[n] = len(p.volumes)
		p.mu.Unlock()
	}
	return out
}

func TestCallsAreSpread(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	for range 12 {
		if _, err := c.Attach(t.Context(), vol, writer, "n3", begins); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.asked(); !maps.Equal(got, map[string]int{"n1": 4, "n2": 4, "n3": 4}) {
		t.Errorf("asked were %v", got)
	}
	for n, p := range m.plugins {
		if p.attached[0].NodeID != "driver-n3" {
			t.Errorf("%s was asked to attach to %q", n, p.attached[0].NodeID)
		}
	}
}

// Another driver under the same id is asked for none of a driver's volumes.
func TestAnotherProviderIsNotAsked(t *testing.T) {
	c, m := openMany("n1", "n2")
	m.set("n2", func(d *claim.NodeDriver) { d.Provider = "q" })
	v := vol
	v.Provider = "q"
	for range 3 {
		if _, err := c.Attach(t.Context(), v, writer, "n2", begins); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.asked(); got["n1"] != 0 || got["n2"] == 0 {
		t.Errorf("asked were %v", got)
	}
	m.set("n2", func(d *claim.NodeDriver) { d.Provider = "p" })
	if _, err := c.Attach(t.Context(), v, writer, "n2", begins); !errors.Is(err, claim.ErrUnreachable) {
		t.Errorf("another driver attached it: %v", err)
	}
}

// A call with secrets goes to servers and to the nodes that are approved, whatever else reports a controller.
func TestSecretsNeedAnApproval(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	m.trusted = []string{"n2"}
	secret, given := vol, map[string]string{"password": "x"}
	secret.SealedSecrets = []byte("sealed")
	attach := func() (err error) {
		for range 6 {
			_, failed := c.Attach(t.Context(), secret, writer, "n3", begins)
			err = errors.Join(err, failed)
		}
		return err
	}
	check.NoError(t, attach())
	if err := c.Delete(t.Context(), vol, given, begins); err == nil ||
		!strings.Contains(err.Error(), "pannier driver approve d n3") {
		t.Errorf("a volume that may be in n3's place is deleted with its caller's secrets: %v", err)
	}
	if got := m.asked(); got["n3"] != 0 || got["n1"] == 0 || got["n2"] == 0 {
		t.Errorf("asked with secrets were %v", got)
	}
	for range 6 {
		if _, err := c.Attach(t.Context(), vol, writer, "n3", begins); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.asked(); got["n3"] == 0 {
		t.Errorf("asked without secrets were %v", got)
	}
	for _, n := range []string{"n1", "n2"} {
		m.set(n, func(d *claim.NodeDriver) { d.Healthy = false })
	}
	if err := attach(); err == nil || !strings.Contains(err.Error(), "pannier driver approve d n3") {
		t.Errorf("with none but n3: %v", err)
	}
}

// A slow controller gets no more calls while others have fewer in flight.
func TestTheLeastBusyIsAsked(t *testing.T) {
	c, m := openMany("n1", "n2")
	m.plugins["n2"].entered, m.plugins["n2"].proceed = make(chan string), make(chan struct{})
	m.set("n1", func(d *claim.NodeDriver) { d.Healthy = false })
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Attach(t.Context(), vol, writer, "n2", begins); err != nil {
			t.Error(err)
		}
	})
	<-m.plugins["n2"].entered
	m.set("n1", func(d *claim.NodeDriver) { d.Healthy = true })
	for range 5 {
		if _, err := c.Attach(t.Context(), vol, writer, "n1", begins); err != nil {
			t.Error(err)
		}
	}
	m.plugins["n2"].proceed <- struct{}{}
	wg.Wait()
	if got := m.asked(); !maps.Equal(got, map[string]int{"n1": 5, "n2": 1}) {
		t.Errorf("asked were %v", got)
	}
}

// A volume is not detached, not even by another node's controller, before an attach that its caller gave up is done,
// and not attached before such a detach is.
func TestTheOppositeOfACallThatWasGivenUpWaits(t *testing.T) {
	for _, slow := range []string{"attach", "detach"} {
		t.Run(slow, func(t *testing.T) {
			c, m := openMany("n1", "n2")
			attach := func(ctx context.Context) error { _, err := c.Attach(ctx, vol, writer, "n2", begins); return err }
			detach := func(ctx context.Context) error { _, err := c.Detach(ctx, vol, "n2", "", never); return err }
			first, second := attach, detach
			if slow == "detach" {
				first, second = detach, attach
			}
			hangs := m.plugins["n2"]
			hangs.slow, hangs.entered, hangs.proceed = slow, make(chan string), make(chan struct{})
			m.set("n1", func(d *claim.NodeDriver) { d.Healthy = false })
			ctx, giveUp := context.WithCancel(t.Context())
			given := make(chan error, 1)
			go func() { given <- first(ctx) }()
			<-hangs.entered
			giveUp()
			if err := <-given; !errors.Is(err, context.Canceled) {
				t.Errorf("the call that was given up returned %v", err)
			}
			m.set("n1", func(d *claim.NodeDriver) { d.Healthy = true })
			m.set("n2", func(d *claim.NodeDriver) { d.Healthy = false })
			ctx, giveUp = context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer giveUp()
			if err := second(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("its opposite did not wait: %v", err)
			}
			if got := m.asked(); got["n1"]+got["n2"] > 0 {
				t.Errorf("drivers were called: %v", got)
			}
			close(hangs.proceed)
			check.NoError(t, second(t.Context()))
			if got := m.asked(); !maps.Equal(got, map[string]int{"n1": 1, "n2": 1}) {
				t.Errorf("asked were %v", got)
			}
		})
	}
}

func TestTheNextIsAskedIfOneIsUnreachable(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	m.plugins["n1"].err = status.Error(codes.Unavailable, "connection refused")
	m.plugins["n2"].err = fmt.Errorf("driver: %w", drivers.ErrUnhealthy)
	for range 6 {
		if _, err := c.Attach(t.Context(), vol, writer, "n1", begins); err != nil {
			t.Fatal(err)
		}
	}
	// Unreachable controllers are avoided for a while.
	if got := m.asked(); !maps.Equal(got, map[string]int{"n1": 1, "n2": 1, "n3": 6}) {
		t.Errorf("asked were %v", got)
	}
}

// TestAControllerApart: it is asked if it is healthy, whatever the node service beside it is.
func TestAControllerApart(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	m.set("n2", func(d *claim.NodeDriver) {
		d.ControllerApart = &claim.DriverHealth{Message: "it has just ended"}
	})
	m.set("n3", func(d *claim.NodeDriver) {
		d.Healthy, d.ControllerApart = false, &claim.DriverHealth{Healthy: true}
	})
	for range 4 {
		if _, err := c.Create(t.Context(), vol, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.asked(); got["n1"] != 2 || got["n3"] != 2 {
		t.Errorf("asked were %v", got)
	}
	for _, node := range []string{"n1", "n3"} {
		m.set(node, func(d *claim.NodeDriver) { d.ControllerApart = &claim.DriverHealth{Message: "so has this"} })
	}
	if _, err := c.Create(t.Context(), vol, nil); err == nil || !strings.Contains(err.Error(), "it has just ended") {
		t.Errorf("no controller is healthy: %v", err)
	}
}

// TestABoundNode: a controller gets calls, and with them secrets, of the namespaces that its node is bound to.
func TestABoundNode(t *testing.T) {
	c, m := openMany("n1", "n2")
	m.bound = map[string][]string{"n2": {vol.Namespace}}
	for range 4 {
		if _, err := c.Create(t.Context(), vol, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.asked(); got["n2"] != 2 {
		t.Errorf("asked were %v", got)
	}
	other := vol
	other.Namespace = "other"
	for range 4 {
		if _, err := c.Create(t.Context(), other, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.asked(); got["n2"] != 2 {
		t.Errorf("asked about another namespace's volume were %v", got)
	}
	m.bound["n1"] = m.bound["n2"]
	if _, err := c.Create(t.Context(), other, nil); err == nil ||
		!strings.Contains(err.Error(), "bound to the namespaces") {
		t.Errorf("no controller is left: %v", err)
	}
	for _, node := range []string{"n1", "n2"} {
		m.set(node, func(d *claim.NodeDriver) { d.Controller = &claim.ControllerCapabilities{ListVolumes: true} })
	}
	if _, err := c.List(t.Context(), "d", storage.Page{}); err == nil || !strings.Contains(err.Error(), "bound to the namespaces") {
		t.Errorf("the volumes of all namespaces were listed: %v", err)
	}
}

// The ledger's refusal of an attach is final, whatever its code.
func TestTheLedgersRefusalStands(t *testing.T) {
	c, m := openMany("n1", "n2", "n3")
	intended := 0
	_, err := c.Attach(t.Context(), vol, writer, "n2", func(context.Context) error {
		intended++
		return status.Error(codes.Unavailable, "the ledger is away")
	})
	if status.Code(err) != codes.Unavailable || intended != 1 {
		t.Errorf("after %d tries: %v", intended, err)
	}
	if got := m.asked(); got["n1"]+got["n2"]+got["n3"] > 0 {
		t.Errorf("drivers were called: %v", got)
	}
}

// A call that hangs, after its caller has given it up, holds its opposite up for a while, and not for ever.
func TestTheOppositeOfACallThatHangsIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &plugin{entered: make(chan string), proceed: make(chan struct{})}
		defer close(p.proceed)
		c := open(p, driver("d"))
		ctx, giveUp := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() { _, err := c.Attach(ctx, vol, writer, "n1", begins); given <- err }()
		<-p.entered
		giveUp()
		<-given
		begun := time.Now()
		ctx, giveUp = context.WithTimeout(t.Context(), time.Hour)
		defer giveUp()
		called, err := c.Detach(ctx, vol, "n1", "driver-n1", never)
		if took := time.Since(begun); err != nil || !called || took != answerWithin {
			t.Errorf("after %s: %t, %v", took, called, err)
		}
	})
}

func TestADriversAnswerStands(t *testing.T) {
	for _, code := range []codes.Code{
		codes.InvalidArgument, codes.ResourceExhausted, codes.FailedPrecondition,
		codes.Internal, codes.DeadlineExceeded,
	} {
		c, m := openMany("n2", "n3")
		for _, p := range m.plugins {
			p.err = status.Error(code, "no")
		}
		_, err := c.Attach(t.Context(), vol, writer, "n2", begins)
		if status.Code(err) != code ||
			!strings.Contains(err.Error(), `attach volume "mysql" (external id "ext-0") to node "n2" on driver "d": on node "n2": `) {
			t.Errorf("%s: %v", code, err)
		}
		if got := m.asked(); got["n2"]+got["n3"] != 1 {
			t.Errorf("%s: asked were %v", code, got)
		}
	}
}

func TestTheErrorNamesEveryNode(t *testing.T) {
	c, m := openMany("n1", "n2", "n3", "n4")
	m.plugins["n1"].err = status.Error(codes.Unavailable, "the plugin has ended")
	m.plugins["n2"].err = status.Error(codes.Unavailable, "connection refused")
	m.set("n3", func(d *claim.NodeDriver) { d.Healthy, d.Message = false, "the socket is gone" })
	m.status["n4"] = claim.NodeDisconnected
	_, err := c.Create(t.Context(), vol, nil)
	if !errors.Is(err, drivers.ErrUnhealthy) || status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	for _, says := range []string{
		`create volume "mysql" on driver "d"`, `on node "n1": the plugin has ended`, `on node "n2": `, "connection refused",
		`on node "n3": the driver is not healthy: the socket is gone`, `on node "n4": the node is disconnected`,
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v lacks %q", err, says)
		}
	}
	if got := m.asked(); got["n3"]+got["n4"] != 0 {
		t.Errorf("asked were %v", got)
	}
	if _, err := c.List(t.Context(), "other", storage.Page{}); !errors.Is(err, claim.ErrDriverNotFound) {
		t.Errorf("an unknown driver: %v", err)
	}
}

func TestWhatNoControllerCanIsRefused(t *testing.T) {
	c, m := openMany("n1", "n2")
	if _, err := c.List(t.Context(), "d", storage.Page{}); status.Code(err) != codes.Unimplemented ||
		!strings.Contains(err.Error(), "none of its controllers can list volumes") {
		t.Errorf("%v", err)
	}
	// Only the controller with the ability is called.
	m.set("n1", func(d *claim.NodeDriver) { d.Controller = &claim.ControllerCapabilities{AttachDetach: true} })
	for range 3 {
		if _, err := c.Create(t.Context(), vol, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.asked(); !maps.Equal(got, map[string]int{"n1": 0, "n2": 3}) {
		t.Errorf("asked were %v", got)
	}
}

// What was attached is detached by a controller, and by nothing else: its absence is never a success.
func TestDetachNeedsAController(t *testing.T) {
	none, noAttach, attaches := (*claim.ControllerCapabilities)(nil), &claim.ControllerCapabilities{},
		&claim.ControllerCapabilities{AttachDetach: true}
	for name, test := range map[string]struct {
		nodes map[string]claim.NodeDriver
		done  bool
	}{
		"purged with its node": {nodes: map[string]claim.NodeDriver{"a": {Type: claim.NodeService, Healthy: true}}},
		"no node at all":       {},
		"no PUBLISH": {nodes: map[string]claim.NodeDriver{"a": {
			Type: claim.Monolith, Healthy: true,
			Controller: noAttach,
		}}},
		"no service after all": {nodes: map[string]claim.NodeDriver{
			"a": {Type: claim.Monolith, Healthy: true, Controller: none},
		}},
		"unhealthy": {nodes: map[string]claim.NodeDriver{
			"a": {Type: claim.NodeService, Healthy: true}, "b": {Type: claim.ControllerService, Controller: attaches},
		}},
		"has not said yet": {nodes: map[string]claim.NodeDriver{
			"a": {Type: claim.NodeService, Healthy: true}, "b": {Type: claim.ControllerService},
		}},
		"attaches": {done: true, nodes: map[string]claim.NodeDriver{
			"a": {Type: claim.NodeService, Healthy: true},
			"b": {Type: claim.ControllerService, Healthy: true, Controller: attaches},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c, m := openMany()
			m.nodes = test.nodes
			m.plugins = map[string]*plugin{"a": {}, "b": {}}
			called, err := c.Detach(t.Context(), vol, "a", "driver-a", never)
			if called != test.done || (err == nil) != test.done {
				t.Errorf("detach: %v, %v", called, err)
			}
		})
	}
}

// A call that may wait continues when a controller has become healthy.
func TestACallWaitsForAController(t *testing.T) {
	c, m := openMany("n2")
	c.wait = time.Minute
	m.set("n2", func(d *claim.NodeDriver) { d.Healthy = false })
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Create(t.Context(), vol, nil); err != nil {
			t.Error(err)
		}
	})
	m.set("n2", func(d *claim.NodeDriver) { d.Healthy = true })
	wg.Wait()

	m.set("n2", func(d *claim.NodeDriver) { d.Healthy = false })
	gone := errors.New("the caller is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	wg.Go(func() {
		if _, err := c.Create(ctx, vol, nil); !errors.Is(err, gone) {
			t.Error(err)
		}
	})
	cancel(gone)
	wg.Wait()
	c.wait = time.Millisecond
	if _, err := c.Create(t.Context(), vol, nil); !errors.Is(err, drivers.ErrUnhealthy) ||
		!strings.Contains(err.Error(), "after 1ms: ") {
		t.Error(err)
	}
}

func TestAttachOnlyWhereTheVolumeCanBeReached(t *testing.T) {
	c, m := openMany("n1", "n2")
	far := vol
	far.Topologies = []claim.Topology{{Segments: map[string]string{"rack": "r-n2"}}}
	if _, err := c.Attach(t.Context(), far, writer, "n1", begins); !errors.Is(err, claim.ErrUnreachable) ||
		!strings.Contains(err.Error(), `attach volume "mysql" (external id "ext-0") to node "n1": `) ||
		!strings.Contains(err.Error(), "rack=r-n1") {
		t.Error(err)
	}
	if _, err := c.Attach(t.Context(), far, writer, "n2", begins); err != nil {
		t.Error(err)
	}
	if got := m.asked(); got["n1"]+got["n2"] != 1 {
		t.Errorf("asked were %v", got)
	}

	p := &plugin{}
	alone := open(p,
		driver("d", func(d *drivers.Driver) { d.Fingerprint.Node.AccessibleTopology = map[string]string{"rack": "r-n1"} }))
	if _, err := alone.Attach(t.Context(), far, writer, "n1", begins); !errors.Is(err, claim.ErrUnreachable) ||
		len(p.attached) > 0 {
		t.Errorf("a host alone: %v", err)
	}
}

func TestOrder(t *testing.T) {
	p := &picker{nodes: map[string]*load{
		"busy": {inFlight: 2}, "late": {turn: 9}, "early": {turn: 3}, "away": {awayAt: time.Now()}, "back": {
			turn:   1,
			awayAt: time.Now().Add(-avoidFor),
		},
	}}
	got := p.ordered([]string{"away", "busy", "late", "new", "early", "back"})
	if want := []string{"new", "back", "early", "late", "busy", "away"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
