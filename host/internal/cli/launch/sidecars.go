package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/host/internal/system/envoyadmin"
)

// timing configures restarts of sidecars.
type timing struct {
	// first and longest are the pauses before a restart, which double, with 30 % jitter.
	first, longest time.Duration
	// stable is the lifetime after which the pause is reset.
	stable time.Duration
	// watch is the interval of checks for a new file, and grace the time that the process then has to end.
	watch, grace time.Duration
	// ready bounds the wait for a process that is started beside another.
	ready time.Duration
	// drain bounds the wait for what an Envoy's connections carry when it is stopped.
	drain time.Duration
	// killed bounds the wait for killed processes to end.
	killed time.Duration
}

var defaultTiming = timing{
	first: 500 * time.Millisecond, longest: 30 * time.Second, stable: time.Minute,
	watch: time.Second, grace: 10 * time.Second, ready: time.Minute, drain: 10 * time.Second, killed: 10 * time.Second,
}

// Sidecars are programs that run beside a workload's own, in its mount namespace. Each
// leads a session, so the terminal's signals do not reach it: it runs until the workload's
// program has ended. One that ends by itself is restarted.
type Sidecars struct {
	namespace *os.File
	// note reports to people; it may be called from several goroutines.
	note func(format string, args ...any)
	// ended reports to the agent how a sidecar ended, or why it cannot be started or replaced, with how often it was
	// started again; likewise.
	ended  func(sidecar, how string, restarts int)
	timing timing
	// stopping is closed when no sidecar is restarted any more.
	stopping chan struct{}
	all      []*sidecar
	stop     sync.Once
}

// NewSidecars makes room for sidecars in the mount namespace of p, which has not been
// told to go. Stop closes it.
func NewSidecars(p *Process, note func(format string, args ...any), ended func(sidecar, how string, restarts int),
) (*Sidecars, error) {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", p.PID()))
	if err != nil {
		return nil, &child.Error{Code: child.CodeNotRun, Text: fmt.Sprintf("open the workload's mount namespace: %v", err)}
	}
	return &Sidecars{
		namespace: namespace, note: note, ended: ended, timing: defaultTiming, stopping: make(chan struct{}),
	}, nil
}

// Sidecar is how a program runs beside the workload's.
type Sidecar struct {
	Name string // in notes
	// Plan is called for each start. Command, Args, Env and User are used of what it returns. If that depends on both
	// numbers, the program takes over from the one of the epoch before as Envoy does, if both have the same base ID.
	Plan func(baseID, epoch int) child.Plan
	// File is the bootstrap, which the program reads once: when it is replaced, so is the program. Empty: none.
	File string
}

// Start starts a sidecar and returns when its program runs. An *Error explains why it cannot run; it is then not
// retried. The end of ctx ends nothing: see Stop.
func (s *Sidecars) Start(ctx context.Context, how Sidecar) error {
	c := &sidecar{
		Sidecar: how, of: s, done: make(chan struct{}),
		takesOver: !reflect.DeepEqual(how.Plan(0, 0), how.Plan(0, 1)) && !reflect.DeepEqual(how.Plan(0, 0), how.Plan(1, 0)),
		pause: &backoff.ExponentialBackOff{
			InitialInterval: s.timing.first, MaxInterval: s.timing.longest, Multiplier: 2, RandomizationFactor: 0.3,
		},
	}
	p, err := c.launch(nil)
	if err != nil {
		return &child.Error{Code: child.CodeNotRun, Text: fmt.Sprintf("sidecar %q: %v", c.Name, err)}
	}
	s.all = append(s.all, c)
	go c.supervise(context.WithoutCancel(ctx), p)
	return nil
}

// AwaitReady waits until each Envoy that takes over from itself serves, by its admin API. At the end of ctx it returns
// one that does not.
func (s *Sidecars) AwaitReady(ctx context.Context) error {
	look := time.NewTicker(s.timing.watch / 20)
	defer look.Stop()
	for _, c := range s.all {
		address, api := adminOf(c.File)
		for c.takesOver && address != "" && !c.anyServes(ctx, api) {
			select {
			case <-ctx.Done():
				return fmt.Errorf("sidecar %q is not ready: its admin API at %s does not say that it is live", c.Name, address)
			case <-look.C:
			}
		}
	}
	return nil
}

// StopRestarts ends the restarting of sidecars. It returns the sessions of those that still run, for EndLeftovers. It
// may be called more than once.
func (s *Sidecars) StopRestarts() (sessions []int) {
	s.stop.Do(func() { close(s.stopping) })
	for _, c := range s.all {
		// This waits for a start or a replacement in progress.
		c.mu.Lock()
		for _, p := range c.running {
			sessions = append(sessions, p.PID())
		}
		c.mu.Unlock()
	}
	return sessions
}

// Stop ends the sidecars and what is left in their sessions: an Envoy drains, then SIGTERM,
// SIGKILL after the grace or as soon as ctx is done. It returns when none is left. To be called
// once the program, and what that left, have ended. It may be called more than once.
func (s *Sidecars) Stop(ctx context.Context, grace time.Duration) {
	s.StopRestarts()
	s.drain(ctx)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, c := range s.all {
		go c.end(ctx)
	}
	for _, c := range s.all {
		select {
		case <-c.done:
		case <-ctx.Done():
			c.kill()
		}
	}
	for _, c := range s.all {
		<-c.done
	}
	_ = s.namespace.Close() // Nothing is written to it.
}

// drain lets each Envoy send what its connections carry, for a bounded time.
func (s *Sidecars) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.timing.drain)
	defer cancel()
	var all sync.WaitGroup
	for _, c := range s.all {
		all.Go(func() {
			if address, api := adminOf(c.File); address != "" {
				drain(ctx, api, s.timing.watch/20)
			}
		})
	}
	all.Wait()
}

// sidecar is one of them.
type sidecar struct {
	Sidecar
	of        *Sidecars
	takesOver bool
	pause     *backoff.ExponentialBackOff // before another try
	ending    sync.WaitGroup              // of processes that were replaced
	restarts  int                         // after an end that was not asked for
	// done is closed when it has ended and is not restarted.
	done chan struct{}

	mu sync.Mutex
	// running processes: the one that serves, one that starts beside it, and those that another one ends.
	running []*proxy
}

// proxy is a process of a sidecar. Those with one base ID are a chain: each takes over from the one before and ends it.
type proxy struct {
	*Process
	out           *output
	baseID, epoch int
	began         time.Time
	read          fs.FileInfo // the file at its start
	// broken is set if no other process can take over from it: one has tried and failed, which Envoy cannot undo, or the
	// one before it has ended by itself, for which Envoy gives up.
	broken bool
}

// how describes how the process ended, with the last line of its output.
func (p *proxy) how() string {
	select {
	case <-p.out.ended:
	case <-time.After(time.Second): // something else still has it
	}
	if line := p.out.last(); line != "" {
		return p.Process.how() + ": " + line
	}
	return p.Process.how()
}

// launch starts the process that takes over from another or, without one that it can take over from, the first of a
// chain. It returns nil if the sidecars are stopping.
func (c *sidecar) launch(from *proxy) (*proxy, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isStopping() {
		return nil, nil
	}
	p := &proxy{began: time.Now()}
	if from != nil && !from.broken {
		p.baseID, p.epoch = from.baseID, from.epoch+1
	} else {
		p.baseID = freeBaseID()
	}
	// Checked before the start, so that a later file counts as another one.
	p.read, _ = os.Stat(c.File)
	var err error
	if p.Process, p.out, err = startIn(c.of.namespace, c.Plan(p.baseID, p.epoch)); err == nil {
		err = p.Go()
	}
	if err != nil {
		return nil, err
	}
	c.running = append(c.running, p)
	return p, nil
}

// supervise restarts the sidecar until the sidecars are stopping.
func (c *sidecar) supervise(ctx context.Context, p *proxy) {
	defer close(c.done)
	defer c.ending.Wait()
	for {
		began := time.Now()
		var replaced bool
		var how string
		if p != nil {
			p, replaced = c.watch(ctx, p)
			c.reap(ctx, p)
			how = p.how()
		}
		lived := time.Since(began)
		if lived >= c.of.timing.stable {
			c.pause.Reset()
		}
		if c.isStopping() {
			return
		}
		c.retire() // nobody else ends those before it
		var wait time.Duration
		if !replaced {
			wait = c.pause.NextBackOff()
		}
		if p != nil && !replaced {
			c.of.note("sidecar %q %s after %s; it is started again in %s", c.Name, how, lived.Round(100*time.Millisecond),
				wait.Round(100*time.Millisecond))
			c.restarts++
			c.of.ended(c.Name, "it "+how, c.restarts)
		}
		select {
		case <-c.of.stopping:
			return
		case <-time.After(wait):
		}
		next, err := c.launch(nil)
		switch {
		case err != nil:
			c.of.note("sidecar %q cannot be started again, and will be tried once more: %v", c.Name, err)
			c.of.ended(c.Name, fmt.Sprintf("it cannot be started again: %v", err), c.restarts)
		case next != nil:
			c.of.note("sidecar %q is started again (pid %d)", c.Name, next.PID())
		}
		p = next
	}
}

func (c *sidecar) isStopping() bool {
	select {
	case <-c.of.stopping:
		return true
	default:
		return false
	}
}

// watch returns when the process has ended. When the file was replaced it starts the next process
// beside it and returns when that one has ended, or ends the process itself, and reports that.
func (c *sidecar) watch(ctx context.Context, p *proxy) (last *proxy, replaced bool) {
	look := time.NewTicker(c.of.timing.watch)
	defer look.Stop()
	var late <-chan time.Time
	stopping := c.of.stopping
	for {
		select {
		case <-p.Done():
			return p, replaced
		case <-stopping: // it is ended by Stop
			look.Stop()
			stopping, late = nil, nil
		case <-late:
			c.kill()
		case <-look.C:
			switch {
			case c.isStopping() || !c.outdated(p) || !c.hasRoom(p):
			case c.takesOver:
				next, err := c.replace(ctx, p)
				if err == nil {
					p = next
					c.pause.Reset()
					look.Reset(c.of.timing.watch)
					continue
				}
				wait := c.pause.NextBackOff()
				look.Reset(wait)
				c.of.note("sidecar %q cannot be replaced, and the one that runs stays: %v; the next try is in %s", c.Name, err,
					wait.Round(100*time.Millisecond))
				c.of.ended(c.Name, fmt.Sprintf("it cannot be replaced, and the one that runs stays: %v", err), c.restarts)
			default:
				c.of.note("sidecar %q has to read a new %s", c.Name, c.File)
				c.signal(syscall.SIGTERM)
				look.Stop()
				replaced = true
				late = time.After(c.of.timing.grace)
			}
		}
	}
}

// replace starts a process beside one and returns when it serves in its place. Envoy itself ends the one that another
// has taken over from: to end it from here would end both.
func (c *sidecar) replace(ctx context.Context, p *proxy) (*proxy, error) {
	next, err := c.launch(p)
	if next == nil {
		return nil, cmp.Or(err, errors.New("the workload ends"))
	}
	if err := c.await(ctx, p, next); err != nil {
		_ = next.Signal(syscall.SIGKILL) // it may have ended
		c.reap(ctx, next)
		c.mu.Lock()
		p.broken = true
		c.mu.Unlock()
		return nil, fmt.Errorf("the next one %w", err)
	}
	c.ending.Go(func() {
		c.reap(ctx, p)
		if p.baseID == next.baseID && !p.cmd.ProcessState.Success() {
			c.mu.Lock()
			next.broken = true
			c.mu.Unlock()
		}
	})
	how := "has taken over"
	if p.baseID != next.baseID {
		c.retire(next)
		how = "serves in its place"
	}
	c.of.note("sidecar %q is replaced: pid %d %s", c.Name, next.PID(), how)
	return next, nil
}

// await returns nil when the next process serves beside one that does. Without an admin API it is taken for one that
// serves if it still runs at the end of the time.
func (c *sidecar) await(ctx context.Context, p, next *proxy) error {
	address, api := adminOf(c.File)
	deadline := time.After(c.of.timing.ready)
	look := time.NewTicker(c.of.timing.watch / 10)
	defer look.Stop()
	for {
		select {
		case <-next.Done():
			return errors.New(next.how())
		case <-p.Done():
			return fmt.Errorf("has nothing to replace: the one before %s", p.how())
		case <-c.of.stopping:
			return errors.New("is not needed: the workload ends")
		case <-deadline:
			if address == "" {
				return nil
			}
			return fmt.Errorf("is not ready after %s", c.of.timing.ready)
		case <-look.C:
			if address != "" && serves(ctx, api, next.baseID, next.epoch) {
				return nil
			}
		}
	}
}

func (c *sidecar) anyServes(ctx context.Context, api *envoyadmin.Client) bool {
	c.mu.Lock()
	all := slices.Clone(c.running)
	c.mu.Unlock()
	return slices.ContainsFunc(all, func(p *proxy) bool { return serves(ctx, api, p.baseID, p.epoch) })
}

// room is how many Envoys of one base ID may run: the fourth has the first one's socket.
const room = 3

// hasRoom reports whether another process can take over from one. The first of three ends soon, since the second has
// asked it to; one that does not is not waited for.
func (c *sidecar) hasRoom(p *proxy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.takesOver || p.broken || len(c.running) < room || time.Since(p.began) > c.of.timing.ready
}

// outdated reports whether a process has to be replaced, since the file that it has read was, or since it will end.
func (c *sidecar) outdated(p *proxy) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.broken {
		return true
	}
	if c.File == "" {
		return false
	}
	now, err := os.Stat(c.File)
	if err != nil {
		return false // It is being replaced, or taken away for good.
	}
	return p.read == nil || !os.SameFile(now, p.read) || !now.ModTime().Equal(p.read.ModTime())
}

// retire ends all processes but one; without it, all.
func (c *sidecar) retire(spared ...*proxy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.running {
		if slices.Contains(spared, p) {
			continue
		}
		_ = p.Signal(syscall.SIGTERM) // it may have ended
		c.ending.Go(func() {
			select {
			case <-p.Done():
			case <-time.After(c.of.timing.grace):
				_ = p.Signal(syscall.SIGKILL)
			}
		})
	}
}

// reap waits for the end of a process and ends what it left in its session, which could block the next one. The last
// one of a chain takes its shared memory with it.
func (c *sidecar) reap(ctx context.Context, p *proxy) {
	<-p.Done()
	ctx, cancel := context.WithTimeout(ctx, c.of.timing.killed)
	defer cancel()
	if err := endSession(ctx, p.PID()); err != nil {
		c.of.note("sidecar %q: end what it left running: %v", c.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = slices.DeleteFunc(c.running, func(other *proxy) bool { return other == p })
	if !slices.ContainsFunc(c.running, func(other *proxy) bool { return other.baseID == p.baseID }) {
		_ = os.Remove(sharedMemory(p.baseID)) // most sidecars have none
	}
}

// end ends the processes, the newest first: an Envoy that takes over hangs without the one before.
func (c *sidecar) end(ctx context.Context) {
	c.mu.Lock()
	all := slices.Clone(c.running)
	c.mu.Unlock()
	for _, p := range slices.Backward(all) {
		_ = p.Signal(syscall.SIGTERM) // it may have ended
		_ = p.Signal(syscall.SIGCONT) // one that is stopped takes the signal when it goes on
		select {
		case <-p.Done():
		case <-ctx.Done():
			return
		}
	}
}

func (c *sidecar) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.running {
		if err := p.Signal(sig); err != nil {
			c.of.note("sidecar %q: %v", c.Name, err)
		}
	}
}

// kill kills a process that did not end when it was asked to.
func (c *sidecar) kill() {
	select {
	case <-c.done:
	default:
		c.of.note("sidecar %q did not end when it was asked to: it is killed", c.Name)
		c.signal(syscall.SIGKILL)
	}
}
