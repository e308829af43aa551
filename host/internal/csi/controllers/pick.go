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

// Cluster is all nodes as the ledger knows them, and the way to their drivers.
type Cluster interface {
	// Driver reads a driver with what each node says of it. The error of an unknown one is
	// claim.ErrDriverNotFound.
	Driver(id string) (claim.Driver, error)
	// Node reads a node's record.
	Node(name string) (claim.Node, error)
	// Changed is closed by the next change of the driver's health, and when ctx ends.
	Changed(ctx context.Context, driver string) <-chan struct{}
	// Storage makes calls to the drivers of a node. A node that is away, and one whose
	// driver is, answer with the code Unavailable.
	Storage(node string) storage.Client
}

const (
	// sparedFor is how long a controller that was away is tried after the others.
	sparedFor = 30 * time.Second
	// askAgain is how soon controllers that are all away are asked again by a call that
	// may wait.
	askAgain = time.Second
)

// picker is the reach of a cluster's leader: it picks one of the nodes that have a
// healthy controller of the driver, the one with the fewest calls under way, and takes
// the next where that is away.
type picker struct {
	host    host
	cluster Cluster

	mu    sync.Mutex
	turn  uint64
	nodes map[string]*load
}

// load is what this host has asked of a node's controllers.
type load struct {
	inFlight int
	turn     uint64    // when it was last picked
	awayAt   time.Time // when it was last found to be away
}

func (p *picker) call(ctx context.Context, driver string, need ability, wait time.Duration, fn call) error {
	late := time.NewTimer(wait)
	defer late.Stop()
	for {
		watching, cancel := context.WithCancel(ctx)
		changed := p.cluster.Changed(watching, driver)
		err := p.once(ctx, driver, need, fn)
		if wait <= 0 || !errors.As(err, new(*awayError)) {
			cancel()
			return err
		}
		again := time.NewTimer(askAgain)
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

// once asks the controllers of a driver, one after the other, until one is not away.
func (p *picker) once(ctx context.Context, driver string, need ability, fn call) error {
	d, err := p.cluster.Driver(driver)
	if err != nil {
		return fmt.Errorf("%w: no node has it (see: pannier driver status)", err)
	}
	candidates, err := able(d, need)
	if err != nil || len(candidates) == 0 {
		return err
	}
	away := &awayError{}
	for _, node := range p.ordered(candidates) {
		on := d.Nodes[node]
		if why := p.unfit(node, on); why != nil {
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

// able are the nodes whose controller of the driver has the ability, or may have it. None
// and no error: the driver spares the call.
func able(d claim.Driver, need ability) (nodes []string, err error) {
	var have, may, others []string
	told := false
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		switch on := d.Nodes[node]; {
		case on.Type == claim.NodeService:
			others = append(others, node)
		case on.Controller != nil:
			told = true
			capabilities := storage.ControllerCapabilities(*on.Controller)
			if need.has(&capabilities) {
				have = append(have, node)
			}
		case on.Healthy:
			told = true
			others = append(others, node) // it has no controller service after all
		default:
			may = append(may, node) // it has not said yet what it can do
		}
	}
	switch {
	case len(have) > 0:
		return append(have, may...), nil
	case !told && len(may) > 0:
		return may, nil
	case need.spared:
		return nil, nil
	case len(have)+len(may) == 0 && !hasController(d):
		return others, nil // the storage plugin says what a driver without one means
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

// unfit says why a node's controller is not asked at all.
func (p *picker) unfit(node string, on claim.NodeDriver) error {
	if !on.Healthy {
		return fmt.Errorf("%w: %s", drivers.ErrUnhealthy, on.Message)
	}
	n, err := p.cluster.Node(node)
	if err != nil {
		return err
	}
	if n.Status != "" && n.Status != claim.NodeReady {
		return fmt.Errorf("the node is %s (see: pannier node status %s)", n.Status, node)
	}
	return nil
}

// ordered puts those that were away of late last, then those with the fewest calls under
// way first, then those that had no turn for the longest time.
func (p *picker) ordered(nodes []string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	spared := func(l *load) int {
		if !l.awayAt.IsZero() && time.Since(l.awayAt) < sparedFor {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(nodes, func(a, b string) int {
		la, lb := p.load(a), p.load(b)
		return cmp.Or(cmp.Compare(spared(la), spared(lb)), cmp.Compare(la.inFlight, lb.inFlight), cmp.Compare(la.turn, lb.turn))
	})
	return nodes
}

// load is that of a node; the caller holds the lock.
func (p *picker) load(node string) *load {
	l := p.nodes[node]
	if l == nil {
		l = &load{}
		p.nodes[node] = l
	}
	return l
}

// ask makes the call on one node.
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
		return p.host.calls.Call(ctx, on.ID, 0, fn)
	}
	if err := fn(ctx, p.cluster.Storage(node), there(on)); err != nil {
		return fmt.Errorf("on node %q: %w", node, err)
	}
	return nil
}

// there is a driver of another node: where its socket is, that node knows.
func there(on claim.NodeDriver) drivers.Driver {
	d := drivers.Driver{
		Spec: drivers.Spec{ID: on.ID, Type: drivers.Type(on.Type)}, Healthy: on.Healthy, Message: on.Message,
		Fingerprint: storage.Fingerprint{Healthy: on.Healthy, Provider: on.Provider, Version: on.Version},
	}
	if on.Controller != nil {
		capabilities := storage.ControllerCapabilities(*on.Controller)
		d.Fingerprint.Controller = &capabilities
	}
	return d
}

func (p *picker) attaches(driver string) (bool, error) {
	d, err := p.cluster.Driver(driver)
	if err != nil {
		return false, err
	}
	nodes, err := able(d, attaching)
	if err != nil || len(nodes) == 0 {
		return false, err
	}
	for _, node := range nodes {
		if d.Nodes[node].Controller != nil {
			return true, nil
		}
	}
	return false, fmt.Errorf("driver %q: %w on any node that may have its controller, so it is not known whether it attaches volumes (see: pannier driver status %s)",
		driver, drivers.ErrUnhealthy, driver)
}

func (p *picker) on(driver, node string) (claim.NodeDriver, error) {
	d, err := p.cluster.Driver(driver)
	if err != nil {
		return claim.NodeDriver{}, err
	}
	on, ok := d.Nodes[node]
	if !ok {
		return on, fmt.Errorf("driver %q is not on node %q (see: pannier driver status %s)", driver, node, driver)
	}
	return on, nil
}

// isAway says that another controller may do what this one could not be asked: the node
// or its driver is away. What a driver answered stands.
func isAway(err error) bool {
	return errors.Is(err, drivers.ErrUnhealthy) || errors.Is(err, drivers.ErrNotFound) || status.Code(err) == codes.Unavailable
}

// awayError: no controller of the driver could be asked. It is a drivers.ErrUnhealthy,
// and names every node that was tried.
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
