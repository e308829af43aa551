package watcher

import (
	"context"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/events"
)

// Node is what the watcher asks of the node that it runs on.
type Node interface {
	// Owns says whether the node takes the workload down by itself: then its claims
	// reach node-detached without the watcher.
	Owns(ref claim.WorkloadRef) bool
	// DetachUnknown undoes on the node what a claim of a workload that it does not
	// own may have left mounted.
	DetachUnknown(ctx context.Context, c claim.Claim, v claim.Volume) error
	// Detach stops the workload of a claim, or says why not, and what it did.
	Detach(ctx context.Context, c claim.Claim, v claim.Volume) (did string, err error)
}

// Controllers are the drivers' controller services.
type Controllers interface {
	// NeedsDetach says whether the driver's volumes are attached to nodes at all.
	NeedsDetach(driver string) (bool, error)
	// Detach detaches a volume from a node, unless stillNeeded says otherwise at the
	// moment when no attach of it can come in between.
	Detach(ctx context.Context, v claim.Volume, node, driverNodeID string, stillNeeded func(ctx context.Context) (bool, error)) (called bool, err error)
}

// Bounds of the watcher's work.
const (
	parallel     = 16 // volumes released at the same time
	firstPause   = 500 * time.Millisecond
	longestPause = time.Minute
)

// Config is what a Watcher works with.
type Config struct {
	NodeName    string
	Node        Node
	Cluster     *cluster.Node
	Controllers Controllers
	// DriversChanged is closed on the next change of a driver: what waits for one is
	// tried again then.
	DriversChanged func() <-chan struct{}
	// SweepTokens revokes the tokens whose workload is gone (tokens.Authority.Sweep); nil:
	// no services get any.
	SweepTokens func(ctx context.Context) error
	Events      *events.Bus
	Log         hclog.Logger
	GC          GC
}

// Watcher is the leader's loops.
type Watcher struct {
	Config

	slots      chan struct{}
	sweepDelay time.Duration // tests have less patience
	kick       chan struct{} // closed and replaced when an operator asks for an attempt now

	mu      sync.Mutex
	volumes map[claim.VolumeRef]*Attempt // those that are being released
}

// Attempt is how the release of a volume's claims stands.
type Attempt struct {
	Tries  int
	Error  string    // of the last try; empty while the first is under way
	NextAt time.Time // of the next try; zero while one is under way
}

// New makes a watcher; Run is to be called while this server leads.
func New(cfg Config) *Watcher {
	return &Watcher{
		Config: cfg, slots: make(chan struct{}, parallel), sweepDelay: sweepDelay, kick: make(chan struct{}),
		volumes: map[claim.VolumeRef]*Attempt{},
	}
}

// Run does the leader's work until ctx ends, and waits for what is under way.
func (w *Watcher) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { w.releaseAll(ctx) })
	loops.Go(func() { w.collect(ctx) })
	if w.SweepTokens != nil {
		loops.Go(func() { w.sweepTokens(ctx) })
	}
	loops.Wait()
}

// releaseAll gives every volume with a claim on its way out a goroutine of its
// own, until it has none.
func (w *Watcher) releaseAll(ctx context.Context) {
	var volumes sync.WaitGroup
	defer volumes.Wait()
	for ctx.Err() == nil {
		changed := w.Cluster.Watch(ctx, state.TopicReleasing)
		refs, err := w.releasing(ctx)
		if err != nil {
			if ctx.Err() == nil {
				w.Log.Error("the claims on their way out cannot be read", "error", err)
			}
			return
		}
		for ref := range refs {
			if w.begin(ref) {
				volumes.Go(func() { w.releaseVolume(ctx, ref) })
			}
		}
		<-changed // also when ctx ends
	}
}

func (w *Watcher) releasing(ctx context.Context) (map[claim.VolumeRef]bool, error) {
	refs := map[claim.VolumeRef]bool{}
	err := w.Cluster.Read(ctx, func(tx *state.ReadTx) error {
		claims, _, err := tx.Releasing(state.Page{})
		for _, c := range claims {
			refs[c.Volume] = true
		}
		return err
	})
	return refs, err
}

// releaseVolume tries until no claim of the volume is on its way out.
func (w *Watcher) releaseVolume(ctx context.Context, ref claim.VolumeRef) {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, longestPause
	for {
		watching, cancel := context.WithCancel(ctx)
		changed, drivers, kicked := w.Cluster.Watch(watching, state.TopicClaims(ref)), w.DriversChanged(), w.kicked()
		left, err := w.try(ctx, ref)
		if ctx.Err() != nil || !left && err == nil && w.end(ctx, ref) {
			cancel()
			return
		}
		var again <-chan time.Time
		if err != nil {
			next := pause.NextBackOff()
			w.failed(ref, err, next)
			again = time.After(next)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-drivers:
		case <-kicked:
		case <-again:
		}
		cancel()
	}
}

// try makes one attempt, when there is a slot for it. left says that claims are
// still on their way out, for others to move first.
func (w *Watcher) try(ctx context.Context, ref claim.VolumeRef) (left bool, err error) {
	select {
	case w.slots <- struct{}{}:
		defer func() { <-w.slots }()
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
	w.mu.Lock()
	a := w.volumes[ref]
	a.Tries++
	a.NextAt = time.Time{}
	w.mu.Unlock()
	return w.release(ctx, ref)
}

// begin notes that a volume has its goroutine; false where it has one already.
func (w *Watcher) begin(ref claim.VolumeRef) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.volumes[ref] != nil {
		return false
	}
	w.volumes[ref] = &Attempt{}
	return true
}

// end forgets the volume, unless a claim has begun its way out meanwhile: then
// releaseAll has seen that the volume had its goroutine, and the goroutine goes on.
func (w *Watcher) end(ctx context.Context, ref claim.VolumeRef) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	refs, err := w.releasing(ctx)
	if err == nil && refs[ref] {
		return false
	}
	delete(w.volumes, ref)
	return true
}

func (w *Watcher) failed(ref claim.VolumeRef, err error, next time.Duration) {
	w.mu.Lock()
	a := w.volumes[ref]
	repeated := a.Error == err.Error()
	a.Error, a.NextAt = err.Error(), time.Now().Add(next)
	w.mu.Unlock()
	if repeated {
		return
	}
	w.Log.Warn("the release of a volume waits", "volume", ref, "error", err)
	w.Events.Publish(events.Event{Topic: events.TopicClaim, Type: "waiting", Subject: ref.String(), Message: err.Error()})
}

// Attempt tells how the release of a volume's claims stands; ok is false where
// none is on its way out here.
func (w *Watcher) Attempt(ref claim.VolumeRef) (a Attempt, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if found := w.volumes[ref]; found != nil {
		return *found, true
	}
	return Attempt{}, false
}

func (w *Watcher) kicked() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kick
}

// tryNow ends the pause of every release that waits.
func (w *Watcher) tryNow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.kick)
	w.kick = make(chan struct{})
}
