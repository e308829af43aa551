package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// target is a volume that clients use.
type target struct {
	id, access string
	made       *hostv1.VolumeSpec // for creating it again
	spec       *hostv1.VolumeSpec // for registering it again
	data       string             // the file that its writers append to, as seen on the storage
	changes    sync.Mutex         // held while its definition changes
}

// mostRuns is how many workloads run at a time, and mostTakers how many of the taker besides.
const (
	mostRuns   = 12
	mostTakers = 3
)

// run is one workload: when it was started and stopped, and the outcome of its start.
type run struct {
	volume                         *target
	on                             site
	id                             string
	write, taker                   bool
	way                            string // in which its process has the volume
	beyond                         bool   // its process goes on when it is stopped, and another one begins
	kept                           bool   // its start was not answered, and it ran until it was stopped
	started, answered, stop, ended time.Time
	out                            outcome
}

// detached is a detach, which stops what uses a volume on a node.
type detached struct {
	volume, node string
	asked, over  time.Time
}

// load records what clients did and what they were answered.
type load struct {
	sites   []site // all agents
	volumes []*target
	writers *writers
	began   time.Time
	letGo   time.Duration
	slots   chan struct{} // holds an entry for each running workload
	takers  chan struct{} // and for each of the taker
	running sync.WaitGroup

	mu         sync.Mutex
	live       map[*run]bool  // true: it is being stopped
	aimed      map[string]int // nodes in trouble: how many faults they have
	vouched    []vouch
	runs       []run
	detaches   []detached
	unanswered []change
	quiet      chan struct{} // closed while nobody starts a workload, and those that run stop
	removed    *target       // is being deleted
	restored   int           // how often the ledger was restored, and how often that was refused
	unrestored int
	ops        map[string][]porcupine.Operation // by volume, without runs, detaches and unanswered operations
	tokens     map[string]uint64                // by workload: its claim's fencing token
	wrong      []string
}

// change is a register (in) or a deregister.
type change struct {
	volume string
	in     bool
	call   time.Time
}

// note adds an operation to a volume's history.
func (l *load) note(volume string, input, output any, call, ret time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ops[volume] = append(l.ops[volume], l.op(input, output, call, ret))
}

func (l *load) op(what, output any, call, ret time.Time) porcupine.Operation {
	in := asked{what: what, call: l.at(call), ret: l.at(ret)}
	return porcupine.Operation{Input: in, Output: output, Call: in.call, Return: in.ret}
}

// at converts a wall time to a time of the history.
func (l *load) at(t time.Time) int64 { return int64(t.Sub(l.began)) }

func (l *load) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// use is one client, until over is closed. ctx also bounds what it has to finish after that.
func (l *load) use(ctx context.Context, over <-chan struct{}, seed uint64, client int) {
	chance := rand.New(rand.NewPCG(seed, uint64(client)))
	for n := 0; ; n++ {
		select {
		case <-over:
			return
		case <-time.After(between(chance, 0, 100*time.Millisecond)):
		}
		v, s := pick(chance, l.volumes), pick(chance, l.sites)
		switch what := chance.IntN(100); {
		case what < 59:
			l.run(ctx, over, l.slots, run{
				volume: v, on: s, id: fmt.Sprintf("w%d-%d", client, n), write: l.writes(chance, v),
				way: pick(chance, []string{plainly, plainly, contained, lazily}), beyond: chance.IntN(3) == 0,
			}, l.holds(chance))
		case what < 60:
			l.drain(ctx, s, pick(chance, l.sites).name)
		case what < 93:
			l.read(ctx, s, v)
		case what < 97:
			l.detach(ctx, s, v, pick(chance, l.sites).name)
		default:
			l.register(ctx, s, pick(chance, l.sites), v)
		}
	}
}

// watch reads all volumes through all agents.
func (l *load) watch(ctx context.Context, over <-chan struct{}, seed uint64, client int) {
	chance := rand.New(rand.NewPCG(seed, uint64(client)))
	for {
		select {
		case <-over:
			return
		case <-time.After(between(chance, 0, 60*time.Millisecond)):
			l.read(ctx, pick(chance, l.sites), pick(chance, l.volumes))
		}
	}
}

// removes deletes volumes, and creates them again.
func (l *load) removes(ctx context.Context, over <-chan struct{}, seed uint64, client int) {
	chance := rand.New(rand.NewPCG(seed, uint64(client)))
	for {
		select {
		case <-over:
			return
		case <-time.After(between(chance, 0, 300*time.Millisecond)):
			l.remove(ctx, pick(chance, l.sites), pick(chance, l.sites), pick(chance, l.volumes))
		}
	}
}

// holds is how long a workload runs: a moment, or longer than the time after which the leader
// releases a silent node's claims.
func (l *load) holds(chance *rand.Rand) time.Duration {
	if chance.IntN(3) == 0 {
		return l.letGo + between(chance, 0, 4*time.Second)
	}
	return between(chance, 0, 500*time.Millisecond)
}

func (l *load) writes(chance *rand.Rand, v *target) bool {
	return !strings.HasSuffix(v.access, "reader-only") && (v.access == "single-node-writer" || chance.IntN(2) == 0)
}

// run starts a workload that writes for a while and stops, in parallel with the client's next
// operations. At most as many run at a time as there are slots.
func (l *load) run(ctx context.Context, over <-chan struct{}, slots chan struct{}, r run, hold time.Duration) {
	select {
	case <-l.pause():
		return
	case slots <- struct{}{}:
	default:
		return
	}
	spec := &hostv1.WorkloadSpec{Id: r.id, Volumes: []*hostv1.VolumeRequest{{
		Name: "v", Source: r.volume.id, ReadOnly: !r.write, Destination: "/srv/v",
	}}}
	r.started = time.Now()
	path, out, err := r.on.start(ctx, spec)
	r.answered, r.out = time.Now(), out
	switch out {
	case nothing, refused, absent:
		if out != nothing {
			l.note(r.volume.id, r.claim(), out, r.started, r.answered)
		}
		<-slots
		return
	case unknown:
		if strings.Contains(err.Error(), "is attached to [") {
			l.fail("workload %s was given volume %s on node %s at %v, while its driver had it attached elsewhere: %v", r.id,
				r.volume.id, r.on.name, r.answered, err)
		}
	}
	l.running.Go(func() {
		defer func() { <-slots }()
		l.lives(&r, false)
		if out == done {
			l.hold(over, &r, path, hold)
		}
		l.lives(&r, true)
		l.stop(ctx, &r)
	})
}

func (r *run) claim() start {
	return start{access: r.volume.access, workload: r.id, node: r.on.name, write: r.write}
}

// stop stops a workload, and retries until that succeeds.
func (l *load) stop(ctx context.Context, r *run) {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.live, r)
	}()
	r.stop = time.Now()
	for !l.stopped(ctx, r) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
	r.ended = time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs = append(l.runs, *r)
}

// stopped makes one attempt to stop. An agent that does not know the workload may itself have been
// suspended before it read the start request; it reads that request soon after it runs again.
func (l *load) stopped(ctx context.Context, r *run) bool {
	out, state, err := r.on.stop(ctx, r.id)
	for first := time.Now(); out == absent && r.out == unknown &&
		time.Since(first) < late; out, state, err = r.on.stop(ctx, r.id) {
		select {
		case <-ctx.Done():
			return true
		case <-time.After(500 * time.Millisecond):
		}
	}
	r.kept = r.out == unknown && state == "stopped"
	if out == unknown && ctx.Err() != nil {
		l.fail("workload %s on node %s could not be stopped: %v", r.id, r.on.name, err)
	}
	return out != unknown
}

// hold writes into the volume, or only keeps it mounted. On a node in trouble it goes on: the taker is after the
// volume.
func (l *load) hold(over <-chan struct{}, r *run, path string, hold time.Duration) {
	if r.write {
		w, err := l.writers.start(r, path, r.way)
		if err != nil {
			l.fail("the writer of workload %s: %v", r.id, err)
			return
		}
		if r.beyond {
			defer l.running.Go(func() { l.goOn(w, r, path) })
		} else {
			defer l.writers.end(w)
		}
	}
	select {
	case <-over:
	case <-l.pause():
	case <-time.After(hold):
	}
	for l.inTrouble(r.on.name) {
		select {
		case <-over:
			return
		case <-l.pause():
			return
		case <-time.After(beat):
		}
	}
}

// goOn lets a process go on for a moment while its workload is stopped, and restarts it like an engine does, in a
// container.
func (l *load) goOn(w *writer, r *run, path string) {
	const moment = 150 * time.Millisecond
	time.Sleep(moment)
	l.writers.end(w)
	again, err := l.writers.start(r, path, contained)
	if err != nil {
		l.fail("another writer of workload %s: %v", r.id, err)
		return
	}
	time.Sleep(moment)
	l.writers.end(again)
}

func (l *load) read(ctx context.Context, s site, v *target) {
	call := time.Now()
	answer, tokens, err := s.read(ctx, v.id)
	if err != nil {
		return
	}
	l.note(v.id, read{}, answer, call, time.Now())
	for workload, token := range tokens {
		if have := l.token(workload, token); have != token && !l.forced(answer.on(workload)) {
			l.fail("the claim of workload %s to volume %s has the fencing token %d through %s, and had %d", workload, v.id,
				token, s.name, have)
		}
	}
}

// token is the fencing token that the workload's claim was first seen with.
func (l *load) token(workload string, now uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.tokens[workload]; !ok {
		l.tokens[workload] = now
	}
	return l.tokens[workload]
}

// detach releases a volume on a node. A writer there is stopped first, as an operator would do: a
// volume in use is not detached.
func (l *load) detach(ctx context.Context, s site, v *target, node string) {
	l.writers.endAll(v.id, node)
	d := detached{volume: v.id, node: node, asked: time.Now()}
	out := s.detach(ctx, v.id, node)
	if out == nothing {
		return
	}
	if d.over = time.Now(); out != absent {
		d.over = d.over.Add(late)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.detaches = append(l.detaches, d)
}

// register deregisters a volume, and registers it again through another agent.
func (l *load) register(ctx context.Context, s, other site, v *target) {
	if !v.changes.TryLock() {
		return
	}
	defer v.changes.Unlock()
	call := time.Now()
	out := s.deregister(ctx, v.id)
	l.noteChange(v, deregister{}, out, call)
	if out != refused {
		l.again(ctx, v, func() outcome { return other.register(ctx, v.spec) })
	}
}

// remove deletes a volume with its data, and creates it again through another agent.
func (l *load) remove(ctx context.Context, s, other site, v *target) {
	if !v.changes.TryLock() {
		return
	}
	defer v.changes.Unlock()
	for ctx.Err() == nil {
		call := time.Now()
		l.removing(v)
		out := s.remove(ctx, v.id)
		l.removing(nil)
		l.noteChange(v, deregister{}, out, call)
		switch out {
		case refused:
			return
		case done, absent:
			l.again(ctx, v, func() outcome { return other.create(ctx, v) })
			return
		}
		s = other // the first one may be gone
	}
}

// removing sends the taker after a volume that is being deleted.
func (l *load) removing(v *target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.removed = v
}

// again makes a volume known again, by a call that is repeated until it succeeds.
func (l *load) again(ctx context.Context, v *target, do func() outcome) {
	for ctx.Err() == nil {
		call := time.Now()
		out := do()
		l.noteChange(v, register{}, out, call)
		if out == done {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (l *load) noteChange(v *target, input any, out outcome, call time.Time) {
	switch out {
	case nothing:
	case unknown:
		_, in := input.(register)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.unanswered = append(l.unanswered, change{volume: v.id, in: in, call: call})
	default:
		l.note(v.id, input, out, call, time.Now())
	}
}
