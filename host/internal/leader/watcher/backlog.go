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

// Bounds of the releases of one leadership.
const (
	parallel      = 64 // volumes released at the same time
	parallelParty = 16 // of them, that wait for the same node or driver
	retryRate     = 200
	firstPause    = 500 * time.Millisecond
	longestPause  = time.Minute
	lookPause     = 5 * time.Second // after the ledger could not be read
)

// Attempt is how the release of a volume's claims stands.
type Attempt struct {
	Tries  int
	Since  time.Time // when this leader first saw it
	Error  string    // of the last try; empty: it waits for a node to move a claim, or was not tried yet
	NextAt time.Time // of the next try; zero while one is under way, or when only a change brings one
}

// backlog are the volumes with claims on their way out: of a leadership, since all of
// it is in the ledger. It starts a goroutine for a try, and none for what waits, so that it
// may be as long as the ledger.
type backlog struct {
	w     *Watcher
	ctx   context.Context
	pace  *rate.Limiter // of tries that are not the first
	tries sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	volumes map[claim.VolumeRef]*release
	parties map[string]*party
	running int
}

// release is one volume's.
type release struct {
	Attempt
	driver  string
	party   string   // whom the next try waits for
	nodes   []string // of its claims
	claims  string   // the claims as they were when they were last looked at
	tried   string   // the claims as they were when the last try began
	running bool
	queued  bool
	again   bool // something has changed since the try under way began
	pause   *backoff.ExponentialBackOff
	timer   *time.Timer
}

// party is a node or a driver that releases wait for. One that hangs holds up no others.
type party struct {
	queue   []claim.VolumeRef
	running int
}

func newBacklog(ctx context.Context, w *Watcher) *backlog {
	return &backlog{
		w: w, ctx: ctx, pace: rate.NewLimiter(retryRate, retryRate),
		volumes: map[claim.VolumeRef]*release{}, parties: map[string]*party{},
	}
}

// close waits for the tries under way and starts no other. The context has ended.
func (b *backlog) close() {
	b.mu.Lock()
	b.closed = true
	for _, r := range b.volumes {
		r.stopTimer()
	}
	b.mu.Unlock()
	b.tries.Wait()
}

// look compares the backlog with the ledger: what is new, or has moved, is tried.
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
		if found[ref] == nil && !r.running {
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
		r.claims, r.nodes, r.party = now.claims, now.nodes, now.party
		if r.claims != r.tried {
			b.queue(ref, r)
		}
	}
	b.start()
	return nil
}

// find reads the volumes with claims on their way out.
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
				return nil, fmt.Errorf("volume %q, of which claims are on their way out: %w", ref, err)
			}
			r.driver = v.PluginID
		}
		r.party = "driver " + r.driver
		for _, c := range claims[:n] {
			if c.State == claim.Unpublishing {
				r.party = "node " + c.Node
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

// driver of a volume that is in the backlog already; empty: it is not.
func (b *backlog) driver(ref claim.VolumeRef) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.volumes[ref]; r != nil {
		return r.driver
	}
	return ""
}

// fingerprint changes when one of the claims that are on their way out moves, comes or goes.
func fingerprint(claims []claim.Claim) string {
	var text strings.Builder
	for _, c := range claims {
		if c.State.Releasing() {
			text.WriteString(c.Workload.Namespace + "/" + c.Workload.ID + " " + strconv.FormatUint(c.Index, 36) + " " + string(c.State) + "\n")
		}
	}
	return text.String()
}

// nudge lets what waits be tried now: all that which says yes to.
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

// retry lets one volume be tried now.
func (b *backlog) retry(ref claim.VolumeRef) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.volumes[ref]; r != nil {
		b.queue(ref, r)
		b.start()
	}
}

// queue lets a volume be tried as soon as there is room. The lock is held.
func (b *backlog) queue(ref claim.VolumeRef, r *release) {
	switch {
	case r.running:
		r.again = true
	case !r.queued:
		r.queued = true
		r.stopTimer()
		p := b.parties[r.party]
		if p == nil {
			p = &party{}
			b.parties[r.party] = p
		}
		p.queue = append(p.queue, ref)
	}
}

// start begins tries while there is room. The lock is held.
func (b *backlog) start() {
	for name, p := range b.parties { // in any order, so that none is always the last
		for b.running < parallel && p.running < parallelParty && len(p.queue) > 0 && !b.closed {
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
			delete(b.parties, name)
		}
	}
}

// try makes one attempt and settles what comes after it.
func (b *backlog) try(ref claim.VolumeRef, party string, first bool) {
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
	b.parties[party].running--
	r := b.volumes[ref]
	r.running, r.tried = false, tried
	if b.closed || b.ctx.Err() != nil {
		return
	}
	if err == nil && !left {
		// What begins its way out after this look finds no release, and makes one.
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

// failed notes why a try failed, and when the next is. The lock is held.
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

// forget takes a volume out of the backlog. The lock is held.
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
