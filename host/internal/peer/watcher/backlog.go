package watcher

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/time/rate"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
)

// Bounds of the releases of one leader term.
const (
	parallel              = 1024 // volumes released at the same time
	parallelPerDependency = 128  // of them, those that depend on the same node or driver
	callsPerDependency    = 16   // of these, volumes for which that node or driver is called at the moment
	retryRate             = 200
	firstPause            = 500 * time.Millisecond
	longestPause          = time.Minute
	readRetry             = 5 * time.Second // after the ledger could not be read
)

// Attempt is the progress of the release of a volume's claims.
type Attempt struct {
	Tries  int
	Since  time.Time // when this leader began to release them
	Error  string    // of the last attempt; empty: it waits for a node, or was not attempted yet
	NextAt time.Time // of the next attempt; zero during one, or if only a change causes one
}

// backlog is the volumes with claims that are being released. It lives for one leader term, since all of it can be
// read from the ledger. Only attempts have a goroutine, so it may be as long as the ledger.
type backlog struct {
	w     *Watcher
	ctx   context.Context
	pace  *rate.Limiter // of attempts after the first
	tries sync.WaitGroup

	mu           sync.Mutex
	closed       bool
	volumes      map[claim.VolumeRef]*release
	dependencies map[string]*dependency
	running      int
}

// release is the release of one volume.
type release struct {
	Attempt
	driver     string
	dependency string   // the node or driver that the next attempt depends on
	nodes      []string // of its claims
	claims     string   // fingerprint of the claims when they were last read
	tried      string   // fingerprint of the claims when the last attempt began
	running    bool
	queued     bool
	again      bool // something has changed since the running attempt began
	pause      *backoff.ExponentialBackOff
	timer      *time.Timer
}

// dependency is a node or a driver that releases need. One that hangs holds up no others.
type dependency struct {
	queue   []claim.VolumeRef
	running int
}

func newBacklog(ctx context.Context, w *Watcher) *backlog {
	return &backlog{
		w: w, ctx: ctx, pace: rate.NewLimiter(retryRate, retryRate),
		volumes: map[claim.VolumeRef]*release{}, dependencies: map[string]*dependency{},
	}
}

// close waits for the running attempts and starts no others. The context has ended.
func (b *backlog) close() {
	b.mu.Lock()
	b.closed = true
	for _, r := range b.volumes {
		r.stopTimer()
	}
	b.mu.Unlock()
	b.tries.Wait()
}

// look compares the backlog with the ledger, and attempts the releases that are new or have changed.
func (b *backlog) look(ctx context.Context) error {
	var found map[claim.VolumeRef]*release
	err := b.w.Cluster.Read(ctx, func(tx *state.ReadTx) (err error) {
		found, err = b.find(tx)
		return err
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for ref, r := range b.volumes {
		if !r.running && found[ref] == nil {
			b.forget(ref) // freed, or deregistered by force
		}
	}
	for ref, now := range found {
		r := b.volumes[ref]
		if r == nil {
			r = now
			r.Since = time.Now()
			r.pause = backoff.NewExponentialBackOff()
			r.pause.InitialInterval, r.pause.MaxInterval = b.w.firstPause, longestPause
			b.volumes[ref] = r
			b.queue(ref, r)
			continue
		}
		r.claims, r.nodes, r.dependency = now.claims, now.nodes, now.dependency
		if r.claims != r.tried {
			b.queue(ref, r)
		}
	}
	b.start()
	return nil
}

// find reads the volumes with claims that are being released.
func (b *backlog) find(tx *state.ReadTx) (map[claim.VolumeRef]*release, error) {
	claims, _, err := tx.Releasing(state.Page{})
	if err != nil {
		return nil, err
	}
	found := map[claim.VolumeRef]*release{}
	for len(claims) > 0 {
		ref := claims[0].Volume
		n := 1
		for n < len(claims) && claims[n].Volume == ref {
			n++
		}
		r := &release{claims: fingerprint(claims[:n]), driver: b.driver(ref)}
		if r.driver == "" {
			v, err := tx.Volume(ref)
			if err != nil {
				return nil, fmt.Errorf("volume %q, whose claims are being released: %w", ref, err)
			}
			r.driver = v.PluginID
		}
		r.dependency = "driver " + r.driver
		for _, c := range claims[:n] {
			if c.State == claim.Unpublishing {
				r.dependency = "node " + c.Node
			}
			if !slices.Contains(r.nodes, c.Node) {
				r.nodes = append(r.nodes, c.Node)
			}
		}
		found[ref] = r
		claims = claims[n:]
	}
	return found, nil
}

// driver returns the driver of a volume in the backlog; empty: it is not in it.
func (b *backlog) driver(ref claim.VolumeRef) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.volumes[ref]; r != nil {
		return r.driver
	}
	return ""
}

// fingerprint changes whenever one of the claims that are being released changes, appears or disappears.
func fingerprint(claims []claim.Claim) string {
	var text strings.Builder
	for _, c := range claims {
		if c.State.Releasing() {
			text.WriteString(c.Workload.Namespace + "/" + c.Workload.ID + " " + strconv.FormatUint(c.Index, 36) + " " +
				string(c.State) + "\n")
		}
	}
	return text.String()
}

// nudge attempts now all waiting releases for which the function returns true.
func (b *backlog) nudge(which func(ref claim.VolumeRef, r *release) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ref, r := range b.volumes {
		if which(ref, r) {
			b.queue(ref, r)
		}
	}
	b.start()
}

// retry attempts the release of one volume now.
func (b *backlog) retry(ref claim.VolumeRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.volumes[ref]; r != nil {
		b.queue(ref, r)
		b.start()
	}
}

// queue lets a release be attempted as soon as there is room. The lock is held.
func (b *backlog) queue(ref claim.VolumeRef, r *release) {
	switch {
	case r.running:
		r.again = true
	case !r.queued:
		r.queued = true
		r.stopTimer()
		p := b.dependencies[r.dependency]
		if p == nil {
			p = &dependency{}
			b.dependencies[r.dependency] = p
		}
		p.queue = append(p.queue, ref)
	}
}

// start starts attempts while there is room. The lock is held.
func (b *backlog) start() {
	for name, p := range b.dependencies { // in random order, so that none is always the last
		for b.running < parallel && p.running < parallelPerDependency && len(p.queue) > 0 && !b.closed {
			ref := p.queue[0]
			p.queue = p.queue[1:]
			r := b.volumes[ref]
			if r == nil || !r.queued {
				continue // forgotten meanwhile
			}
			r.queued, r.running, r.again = false, true, false
			r.Tries++
			r.NextAt = time.Time{}
			first := r.Tries == 1
			b.running++
			p.running++
			b.tries.Go(func() { b.try(ref, name, first) })
		}
		if p.running == 0 && len(p.queue) == 0 {
			delete(b.dependencies, name)
		}
	}
}

// try makes one attempt and decides what follows.
func (b *backlog) try(ref claim.VolumeRef, dependency string, first bool) {
	var err error
	if !first {
		err = b.pace.Wait(b.ctx)
	}
	var tried string
	var left bool
	if err == nil {
		tried, left, err = b.w.release(b.ctx, ref)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
	b.dependencies[dependency].running--
	r := b.volumes[ref]
	r.running, r.tried = false, tried
	if b.closed || b.ctx.Err() != nil {
		return
	}
	if err == nil && !left {
		// A claim whose release begins after this read finds no entry in the backlog, and makes one.
		var more bool
		if more, err = b.w.anyReleasing(b.ctx, ref); err == nil && !more {
			b.forget(ref)
			b.start()
			return
		}
		r.again = r.again || more
	}
	if err != nil {
		b.failed(ref, r, err)
	} else {
		r.Error = ""
		r.pause.Reset()
	}
	if r.again {
		b.queue(ref, r)
	}
	b.start()
}

// failed records why an attempt failed, and when the next one is. The lock is held.
func (b *backlog) failed(ref claim.VolumeRef, r *release, err error) {
	next := r.pause.NextBackOff()
	repeated := r.Error == err.Error()
	r.Error, r.NextAt = err.Error(), time.Now().Add(next)
	r.stopTimer()
	r.timer = time.AfterFunc(next, func() { b.retry(ref) })
	if !repeated {
		b.w.waiting(ref, err)
	}
}

// forget removes a volume from the backlog. The lock is held.
func (b *backlog) forget(ref claim.VolumeRef) {
	b.volumes[ref].stopTimer()
	delete(b.volumes, ref)
}

func (r *release) stopTimer() {
	if r.timer != nil {
		r.timer.Stop()
		r.timer = nil
	}
}
