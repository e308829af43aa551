package watcher

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/internal/kmutex"
)

// Node is what the watcher needs of the node that it runs on.
type Node interface {
	// Owns reports whether the node will stop the workload itself. Its claims then become node-detached without the
	// watcher.
	Owns(ref claim.WorkloadRef) bool
	// DetachUnknown unmounts what a claim of a workload that the node does not own may have left mounted.
	DetachUnknown(ctx context.Context, c claim.Claim, v claim.Volume) error
	// Detach stops the workload of a claim and returns what it did, or why it could not.
	Detach(ctx context.Context, c claim.Claim, v claim.Volume) (did string, err error)
}

// Nodes are the cluster's other nodes. The claim's Node is asked. An error is one of reaching it, or the node's own.
type Nodes interface {
	Owns(ctx context.Context, c claim.Claim) (bool, error)
	DetachUnknown(ctx context.Context, c claim.Claim, v claim.Volume) error
	Detach(ctx context.Context, c claim.Claim, v claim.Volume) (did string, err error)
}

// Controllers are the drivers' controller services.
type Controllers interface {
	// Detach detaches a volume from a node, unless stillNeeded returns true. It is called when no attach can come in
	// between.
	Detach(ctx context.Context, v claim.Volume, node, driverNodeID string,
		stillNeeded func(ctx context.Context) (bool, error)) (called bool, err error)
}

// Config is what a Watcher works with.
type Config struct {
	NodeName string
	Node     Node
	// Nodes are the other nodes; nil: there are none.
	Nodes       Nodes
	Cluster     *cluster.Node
	Controllers Controllers
	// DriversChanged is closed on the next change of a driver of this node. Releases that wait are then attempted
	// again.
	DriversChanged func() <-chan struct{}
	// SweepTokens revokes the tokens whose workload is gone (tokens.Authority.Sweep); nil: services get no tokens.
	SweepTokens func(ctx context.Context) error
	// Forget removes what a node that is gone for good has left in Consul (services.Registrar.Forget); nil: nothing.
	Forget func(ctx context.Context, node string) error
	Events *events.Bus
	Log    hclog.Logger
	GC     GC
}

// Watcher does the leader's background work: it releases claims and collects garbage.
type Watcher struct {
	Config

	// Tests change these.
	sweepDelay, forceDelay, firstPause time.Duration

	calls    kmutex.Locks[string] // to nodes
	detaches kmutex.Locks[string] // by drivers

	mu      sync.Mutex
	backlog *backlog // of the current leader term; nil: this server does not lead
}

// New makes a watcher. Call Run while this server leads.
func New(cfg Config) *Watcher {
	w := &Watcher{Config: cfg, sweepDelay: sweepDelay, forceDelay: forceDelay, firstPause: firstPause}
	w.calls.Slots, w.detaches.Slots = callsPerDependency, callsPerDependency
	return w
}

// Run works until ctx ends, and waits for the goroutines that it has started. It needs only the ledger to
// begin.
func (w *Watcher) Run(ctx context.Context) {
	b := newBacklog(ctx, w)
	w.setBacklog(b)
	var loops sync.WaitGroup
	loops.Go(func() { w.follow(ctx, state.TopicReleasing, b.look) })
	loops.Go(func() { w.followNodes(ctx, b) })
	loops.Go(func() { w.followDrivers(ctx, b) })
	loops.Go(func() { w.collect(ctx) })
	if w.SweepTokens != nil {
		loops.Go(func() { w.sweepTokens(ctx) })
	}
	loops.Wait()
	w.setBacklog(nil)
	b.close()
}

func (w *Watcher) setBacklog(b *backlog) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.backlog = b
}

func (w *Watcher) present() *backlog {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.backlog
}

// follow calls look at once and after changes of a topic, until ctx ends. It spends at most a quarter of the time in
// look, and retries if look fails.
func (w *Watcher) follow(ctx context.Context, topic state.Topic, look func(ctx context.Context) error) {
	for ctx.Err() == nil {
		watching, cancel := context.WithCancel(ctx)
		changed := w.Cluster.Watch(watching, topic)
		began := time.Now()
		err := look(ctx)
		rest := time.After(3 * time.Since(began))
		if err != nil {
			if ctx.Err() == nil {
				w.Log.Error("the ledger cannot be read, so not all claims are released: retrying", "error", err)
			}
			cancel()
			rest = time.After(readRetry)
		}
		<-changed // also when ctx ends
		cancel()
		select {
		case <-rest:
		case <-ctx.Done():
		}
	}
}

// followNodes attempts the releases that wait for a node, or for a driver on it, when the node's record changes: it is
// back, it is down, or its driver is healthy again.
func (w *Watcher) followNodes(ctx context.Context, b *backlog) {
	var read uint64 // the index up to which changes were seen
	w.follow(ctx, state.TopicNodes, func(ctx context.Context) error {
		var nodes []claim.Node
		var index uint64
		err := w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
			if index, err = tx.Index(); err != nil {
				return err
			}
			nodes, err = tx.Nodes()
			return err
		})
		if err != nil {
			return err
		}
		names, drivers := map[string]bool{}, map[string]bool{}
		for _, n := range nodes {
			if max(n.ModifyIndex, n.LostIndex) <= read { // a restored ledger changes the latter
				continue
			}
			names[n.Name] = true
			for id := range n.Drivers {
				drivers[id] = true
			}
		}
		read = index
		if len(names) > 0 {
			b.nudge(func(_ claim.VolumeRef, r *release) bool {
				return drivers[r.driver] || slices.ContainsFunc(r.nodes, func(n string) bool { return names[n] })
			})
		}
		return nil
	})
}

// followDrivers attempts all waiting releases when a driver of this node changes.
func (w *Watcher) followDrivers(ctx context.Context, b *backlog) {
	for changed := w.DriversChanged(); ; {
		select {
		case <-changed:
			changed = w.DriversChanged() // before the releases read the drivers
			b.nudge(func(claim.VolumeRef, *release) bool { return true })
		case <-ctx.Done():
			return
		}
	}
}

// waiting reports that a release waits, and why.
func (w *Watcher) waiting(ref claim.VolumeRef, err error) {
	w.Log.Warn("the release of a volume waits", "volume", ref, "error", err)
	w.Events.Publish(events.Event{Topic: events.TopicClaim, Type: "waiting", Subject: ref.String(), Message: err.Error()})
}

// Attempt returns the progress of the release of a volume's claims. ok is false if none is being released by this
// server.
func (w *Watcher) Attempt(ref claim.VolumeRef) (a Attempt, ok bool) {
	b := w.present()
	if b == nil {
		return Attempt{}, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.volumes[ref]; r != nil {
		return r.Attempt, true
	}
	return Attempt{}, false
}

// tryNow attempts a waiting release at once.
func (w *Watcher) tryNow(ref claim.VolumeRef) {
	if b := w.present(); b != nil {
		b.retry(ref)
	}
}
