package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// Cluster is what the ledger knows of all nodes, and the way to their drivers.
type Cluster interface {
	// Driver returns a driver with each node's report on it; claim.ErrDriverNotFound for an unknown
	// one.
	Driver(id string) (claim.Driver, error)
	// Node reads a node's record.
	Node(name string) (claim.Node, error)
	// Servers returns the names of the nodes that keep the ledger.
	Servers() ([]string, error)
	// Changed returns a channel that is closed by the next change of the driver's health, and when
	// ctx ends.
	Changed(ctx context.Context, driver string) <-chan struct{}
	// Storage makes calls to the drivers of a node. An unreachable node or driver answers with the
	// code Unavailable.
	Storage(node string) storage.Client
}

const (
	// avoidFor is how long a controller that was unreachable is tried after the others.
	avoidFor = 30 * time.Second
	// retryEvery is how soon unreachable controllers are tried again by a call that may wait.
	retryEvery = time.Second
)

// picker is the reach of a cluster's leader. It picks the node with a healthy controller of the
// driver that has the fewest calls in flight, and tries the next one if that is unreachable.
type picker struct {
	host    host
	cluster Cluster

	mu    sync.Mutex
	turn  uint64
	nodes map[string]*load
}

// load is what this host has sent to a node's controllers.
type load struct {
	inFlight int
	turn     uint64    // when it was last picked
	awayAt   time.Time // when it was last unreachable
}

func (p *picker) call(ctx context.Context, driver string, need ability, wait time.Duration, fn call) error {
	if wait <= 0 {
		return p.once(ctx, driver, need, fn)
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	for {
		watching, cancel := context.WithCancel(ctx)
		changed := p.cluster.Changed(watching, driver)
		err := p.once(ctx, driver, need, fn)
		if !errors.As(err, new(*awayError)) {
			cancel()
			return err
		}
		again := time.NewTimer(retryEvery)
		select {
		case <-changed:
			err = nil
		case <-again.C:
			err = nil
		case <-late.C:
			err = fmt.Errorf("after %s: %w", wait, err)
		}
		again.Stop()
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// once tries the controllers of a driver one after the other until one is reachable.
func (p *picker) once(ctx context.Context, driver string, need ability, fn call) error {
	d, err := p.cluster.Driver(driver)
	if err != nil {
		return fmt.Errorf("%w (see: pannier driver status)", err)
	}
	candidates, err := able(d, need)
	if err != nil || len(candidates) == 0 && need.optional {
		return err
	}
	in, others := inPlaces(d, candidates, need.places)
	order := p.ordered(in)
	if need.remote {
		order = append(order, p.ordered(others)...)
	} else if len(candidates) > 0 && len(in) == 0 {
		return notIn(driver, need.places)
	}
	away := &awayError{}
	if len(candidates) == 0 {
		away.text = []string{"no node has the driver"}
	}
	for _, node := range order {
		on := d.Nodes[node]
		if why := p.unfit(node, on, need); why != nil {
			away.tried(node, why)
			continue
		}
		err := p.ask(ctx, node, on, fn)
		if ctx.Err() != nil || !isAway(err) {
			return err
		}
		away.tried(node, err)
	}
	return away
}

// able returns the nodes whose controller of the driver has the ability, or may have it. None
// without an error means that the driver does not need the call.
func able(d claim.Driver, need ability) (nodes []string, err error) {
	var have, may, others []string
	reported := false
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		switch on := d.Nodes[node]; {
		case on.Type == claim.NodeService:
			others = append(others, node)
		case on.Controller != nil:
			reported = true
			capabilities := storage.ControllerCapabilities(*on.Controller)
			if need.has(&capabilities) {
				have = append(have, node)
			}
		case on.ForController().Healthy:
			reported = true
			others = append(others, node) // it has no controller service
		default:
			may = append(may, node) // it has not reported its capabilities yet
		}
	}
	switch {
	case len(have) > 0:
		return append(have, may...), nil
	case !reported && len(may) > 0:
		return may, nil
	case need.optional:
		return nil, nil
	case len(have)+len(may) == 0 && !hasController(d):
		return others, nil // the storage plugin returns the error for a driver without a controller
	default:
		return nil, status.Errorf(codes.Unimplemented, "none of its controllers can %s", need.what)
	}
}

func hasController(d claim.Driver) bool {
	for _, on := range d.Nodes {
		if on.Controller != nil {
			return true
		}
	}
	return false
}

// unfit returns why a node's controller is not tried at all for a call about a namespace's volume. Calls carry the
// volume's secrets, so a node that is bound to namespaces gets no others, and a node that whoever is root there can
// give the driver gets none. Servers can open all secrets anyway.
func (p *picker) unfit(node string, on claim.NodeDriver, need ability) error {
	if c := on.ForController(); !c.Healthy {
		return fmt.Errorf("%w: %s", drivers.ErrUnhealthy, c.Message)
	}
	n, err := p.cluster.Node(node)
	if err != nil {
		return err
	}
	if n.Status != "" && n.Status != claim.NodeReady {
		return fmt.Errorf("the node is %s (see: pannier node status %s)", n.Status, node)
	}
	if len(n.Namespaces) > 0 && (need.namespace == "" || n.CheckNamespace(need.namespace) != nil) {
		return fmt.Errorf("the node is bound to the namespaces %q (see: pannier node namespaces -h)", n.Namespaces)
	}
	if !need.secret || slices.Contains(n.ControllerOf, on.ID) {
		return nil
	}
	servers, err := p.cluster.Servers()
	if err == nil && !slices.Contains(servers, node) {
		err = fmt.Errorf("it may not have the secrets that the call carries: if you trust the driver there: pannier driver "+
			"approve %s %s", on.ID, node)
	}
	return err
}

// ordered sorts recently unreachable nodes last, then by calls in flight, then by the time of the
// last call.
func (p *picker) ordered(nodes []string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	avoided := func(l *load) int {
		if !l.awayAt.IsZero() && time.Since(l.awayAt) < avoidFor {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(nodes, func(a, b string) int {
		la, lb := p.load(a), p.load(b)
		return cmp.Or(cmp.Compare(avoided(la), avoided(lb)), cmp.Compare(la.inFlight, lb.inFlight),
			cmp.Compare(la.turn, lb.turn))
	})
	return nodes
}

// load returns a node's load; the caller holds the lock.
func (p *picker) load(node string) *load {
	l := p.nodes[node]
	if l == nil {
		l = &load{}
		p.nodes[node] = l
	}
	return l
}

// ask makes the call on one node and counts it.
func (p *picker) ask(ctx context.Context, node string, on claim.NodeDriver, fn call) error {
	p.mu.Lock()
	l := p.load(node)
	p.turn++
	l.turn = p.turn
	l.inFlight++
	p.mu.Unlock()
	err := p.askOn(ctx, node, on, fn)
	p.mu.Lock()
	defer p.mu.Unlock()
	l.inFlight--
	l.awayAt = time.Time{}
	if isAway(err) {
		l.awayAt = time.Now()
	}
	return err
}

func (p *picker) askOn(ctx context.Context, node string, on claim.NodeDriver, fn call) error {
	if node == p.host.name {
		return p.host.calls.CallController(ctx, on.ID, 0, fn)
	}
	if err := fn(ctx, p.cluster.Storage(node), there(on)); err != nil {
		return fmt.Errorf("on node %q: %w", node, err)
	}
	return nil
}

// there is a driver of another node. Only that node knows where its socket is.
func there(on claim.NodeDriver) drivers.Driver {
	health := on.ForController()
	d := drivers.Driver{
		Spec: drivers.Spec{ID: on.ID, Type: drivers.Type(on.Type)}, Healthy: health.Healthy, Message: health.Message,
		Fingerprint: storage.Fingerprint{Healthy: health.Healthy, Provider: on.Provider, Version: on.Version},
	}
	if on.Controller != nil {
		capabilities := storage.ControllerCapabilities(*on.Controller)
		d.Fingerprint.Controller = &capabilities
	}
	return d
}

func (p *picker) driver(id string) (claim.Driver, error) { return p.cluster.Driver(id) }

// isAway reports whether another controller may be tried because the node or its driver is
// unreachable. A driver's answer is final.
func isAway(err error) bool {
	return !errors.As(err, new(*finalError)) && (errors.Is(err, drivers.ErrUnhealthy) ||
		errors.Is(err, drivers.ErrNotFound) || errors.Is(err, claim.ErrUnreachable) || status.Code(err) == codes.Unavailable)
}

// finalError is an error of the ledger before a driver is called. No other controller is tried.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

// awayError means that no controller of the driver is reachable. It is a drivers.ErrUnhealthy, and names every node
// that was tried.
type awayError struct {
	text []string
	errs []error
}

func (e *awayError) tried(node string, err error) {
	at := fmt.Sprintf("on node %q: ", node)
	e.text = append(e.text, at+strings.TrimPrefix(err.Error(), at))
	e.errs = append(e.errs, err)
}

func (e *awayError) Error() string {
	return "none of its controllers can be reached: " + strings.Join(e.text, "; ")
}

func (e *awayError) Unwrap() []error { return append([]error{drivers.ErrUnhealthy}, e.errs...) }
