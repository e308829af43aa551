package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pannier/pannier/test/lib/testhost"
)

// lives notes that a workload runs, or is being stopped.
func (l *load) lives(r *run, stopping bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[r] = stopping
}

// aim sends the taker after the volumes of nodes in trouble, until aimAtNone.
func (l *load) aim(hosts ...*testhost.Host) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range hosts {
		l.aimed[h.Name]++
	}
}

func (l *load) aimAtNone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.aimed)
}

// prey is a volume to take now, and the node that has it: of a node in trouble, of a workload that is being stopped, or
// one that is being deleted.
func (l *load) prey(chance *rand.Rand) (v *target, node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.removed != nil && l.removed.exclusive() && chance.IntN(2) == 0 {
		return l.removed, ""
	}
	var all []*run
	for r, stopping := range l.live {
		if (stopping || l.aimed[r.on.name] > 0) && r.volume.exclusive() {
			all = append(all, r)
		}
	}
	if len(all) == 0 {
		return nil, ""
	}
	slices.SortFunc(all, func(a, b *run) int { return a.started.Compare(b.started) })
	r := pick(chance, all)
	return r.volume, r.on.name
}

// exclusive reports whether another node has to wait for the volume.
func (v *target) exclusive() bool { return v.access != "multi-node-reader-only" }

// take hammers the very volume of a node that is cut off, drained or stopping, or one that is being deleted: it
// starts a workload that writes on another node, again and again, until it gets the volume.
func (l *load) take(ctx context.Context, over <-chan struct{}, seed uint64, client int) {
	chance := rand.New(rand.NewPCG(seed, uint64(client)))
	for n := 0; ; n++ {
		select {
		case <-over:
			return
		case <-time.After(between(chance, 5*time.Millisecond, 30*time.Millisecond)):
		}
		v, node := l.prey(chance)
		s := pick(chance, l.sites)
		if v == nil || s.name == node || l.inTrouble(s.name) {
			continue
		}
		l.run(ctx, over, l.takers, run{volume: v, on: s, id: fmt.Sprintf("t%d", n), write: true, taker: true},
			between(chance, 0, 600*time.Millisecond))
	}
}

func (l *load) inTrouble(node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.aimed[node] > 0
}

// users counts the workloads with an exclusive volume on a node.
func (l *load) users(node string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range l.live {
		if r.on.name == node && r.volume.exclusive() && r.write {
			n++
		}
	}
	return n
}

// drain drains a node for a moment, which stops what runs there.
func (l *load) drain(ctx context.Context, s site, node string) {
	asked := time.Now()
	l.mu.Lock()
	l.aimed[node]++
	l.mu.Unlock()
	if err := s.drain(ctx, node, true); err == nil {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	for s.drain(ctx, node, false) != nil && ctx.Err() == nil {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	l.released(node, asked, time.Now().Add(late))
}

// released notes that everything on a node may have been released, by a drain or an operator.
func (l *load) released(node string, asked, over time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.volumes {
		l.detaches = append(l.detaches, detached{volume: v.id, node: node, asked: asked, over: over})
	}
}

// forced reports whether an operator has vouched for a node. A start that was under way there may claim once more.
func (l *load) forced(node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.vouched, func(v vouch) bool { return v.node == node })
}

// vouch is an operator's word that nothing runs on a node: its writers are dead.
func (l *load) vouch(node string) {
	l.writers.lose(node)
	l.mu.Lock()
	l.vouched = append(l.vouched, vouch{node: node, at: boottime()})
	l.mu.Unlock()
	l.released(node, time.Now(), time.Now().Add(l.letGo+late))
}
