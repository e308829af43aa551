package launch

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// timing says how a sidecar that ends is started again.
type timing struct {
	// first and longest are the pauses before it is, which double; each is 30 % shorter or
	// longer by chance.
	first, longest time.Duration
	// stable is the life after which the pauses begin anew.
	stable time.Duration
	// watch is from one look at its file to the next, and grace how long it then has to end.
	watch, grace time.Duration
	// killed is how long what is killed has to be gone.
	killed time.Duration
}

var defaultTiming = timing{
	first: 500 * time.Millisecond, longest: 30 * time.Second, stable: time.Minute,
	watch: time.Second, grace: 10 * time.Second, killed: 10 * time.Second,
}

// Sidecars are programs that run beside a workload's own, in its mount namespace. Each
// leads a session, so what the terminal sends does not reach it: it is to be there
// until the workload's program has ended. One that ends by itself is started again.
type Sidecars struct {
	namespace *os.File
	// note tells people what happens to them; it may be called from several goroutines.
	note   func(format string, args ...any)
	timing timing
	// settled is closed when none is started again.
	settled chan struct{}
	all     []*sidecar
	stop    sync.Once
}

// NewSidecars makes room for sidecars in the mount namespace of p, which has not been
// told to go. Stop lets go of it.
func NewSidecars(p *Process, note func(format string, args ...any)) (*Sidecars, error) {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", p.PID()))
	if err != nil {
		return nil, &Error{CodeNotRun, fmt.Sprintf("open the workload's mount namespace: %v", err)}
	}
	return &Sidecars{namespace: namespace, note: note, timing: defaultTiming, settled: make(chan struct{})}, nil
}

// Start starts a sidecar and returns when it is its program; name is what people are
// told of it. An *Error says why it cannot be run: it is not tried again then. Of the
// plan it takes Command, Args, Env and User. It reads file once: when there is another
// one in its place, it is ended and started again; empty: none. The end of ctx ends
// nothing: see Stop.
func (s *Sidecars) Start(ctx context.Context, name string, plan Plan, file string) error {
	c := &sidecar{of: s, name: name, plan: plan, file: file, done: make(chan struct{})}
	p, err := c.launch()
	if err != nil {
		return &Error{CodeNotRun, fmt.Sprintf("sidecar %q: %v", name, err)}
	}
	c.process = p
	s.all = append(s.all, c)
	go c.keep(context.WithoutCancel(ctx), p)
	return nil
}

// Settle has none started again from now on. It returns the sessions of those that
// still run (EndLeftovers). It may be called more than once.
func (s *Sidecars) Settle() (sessions []int) {
	s.stop.Do(func() { close(s.settled) })
	for _, c := range s.all {
		// One that is just being started, or replaced, is waited for.
		c.mu.Lock()
		if c.process != nil {
			sessions = append(sessions, c.process.PID())
		}
		c.mu.Unlock()
	}
	return sessions
}

// Stop ends the sidecars and what is left in their sessions: SIGTERM first, SIGKILL
// after the grace or as soon as ctx is done. It returns when none is left. To be called
// once the program, and what that left, have ended. It may be called more than once.
func (s *Sidecars) Stop(ctx context.Context, grace time.Duration) {
	s.Settle()
	for _, c := range s.all {
		c.signal(syscall.SIGTERM)
		// One that is stopped takes the signal when it goes on.
		c.signal(syscall.SIGCONT)
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
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

// sidecar is one of them.
type sidecar struct {
	of   *Sidecars
	name string
	plan Plan
	// file is what it reads once; read is the file that was there when it was started.
	file string
	read fs.FileInfo
	// done is closed when it has ended and is not started again.
	done chan struct{}

	mu sync.Mutex
	// process that it is now; nil between two.
	process *Process
}

// launch runs its program.
func (c *sidecar) launch() (*Process, error) {
	// Looked at before: what comes in between is another one.
	c.read, _ = os.Stat(c.file)
	p, err := startIn(c.of.namespace, c.plan)
	if err != nil {
		return nil, err
	}
	if err := p.Go(); err != nil {
		return nil, err
	}
	return p, nil
}

// keep starts it again as long as the sidecars are not settled.
func (c *sidecar) keep(ctx context.Context, p *Process) {
	defer close(c.done)
	t := c.of.timing
	pause := &backoff.ExponentialBackOff{InitialInterval: t.first, MaxInterval: t.longest, Multiplier: 2, RandomizationFactor: 0.3}
	for {
		began := time.Now()
		var replaced bool
		var how string
		if p != nil {
			replaced = c.attend(p)
			how = c.bury(ctx, p)
		}
		lived := time.Since(began)
		if lived >= t.stable {
			pause.Reset()
		}
		if c.isSettled() {
			return
		}
		var wait time.Duration
		if !replaced {
			wait = pause.NextBackOff()
		}
		if p != nil && !replaced {
			c.of.note("sidecar %q %s after %s; it is started again in %s", c.name, how, lived.Round(100*time.Millisecond), wait.Round(100*time.Millisecond))
		}
		select {
		case <-c.of.settled:
			return
		case <-time.After(wait):
		}
		p = c.again()
	}
}

func (c *sidecar) isSettled() bool {
	select {
	case <-c.of.settled:
		return true
	default:
		return false
	}
}

// attend returns when its process has ended. It ends it itself, and says so, when
// there is another file than the one that was read.
func (c *sidecar) attend(p *Process) (replaced bool) {
	look := time.NewTicker(c.of.timing.watch)
	defer look.Stop()
	var late <-chan time.Time
	settled := c.of.settled
	for {
		select {
		case <-p.Done():
			return replaced
		case <-settled: // it is ended by Stop
			look.Stop()
			settled, late = nil, nil
		case <-late:
			c.kill()
		case <-look.C:
			if !c.replace() {
				continue
			}
			look.Stop()
			replaced = true
			late = time.After(c.of.timing.grace)
		}
	}
}

// replace asks its process to end, and says so, when there is another file than the one
// that it has read. Settle waits for it, and none is asked afterwards.
func (c *sidecar) replace() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSettled() || !c.outdated() {
		return false
	}
	c.of.note("sidecar %q has to read a new %s", c.name, c.file)
	c.send(syscall.SIGTERM)
	return true
}

// outdated says that there is another file than the one that its process has read.
func (c *sidecar) outdated() bool {
	if c.file == "" {
		return false
	}
	now, err := os.Stat(c.file)
	if err != nil {
		return false // It is being replaced, or taken away for good.
	}
	return c.read == nil || !os.SameFile(now, c.read) || !now.ModTime().Equal(c.read.ModTime())
}

// again starts it once more; nil where it cannot be, or is not to be any more.
func (c *sidecar) again() *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSettled() {
		return nil
	}
	p, err := c.launch()
	if err != nil {
		c.of.note("sidecar %q cannot be started again, and will be tried once more: %v", c.name, err)
		return nil
	}
	c.of.note("sidecar %q is started again (pid %d)", c.name, p.PID())
	c.process = p
	return p
}

// bury waits for the end of its process and ends what that left in its session, which
// could be in the way of the next one. It says how it ended.
func (c *sidecar) bury(ctx context.Context, p *Process) (how string) {
	<-p.Done()
	ctx, cancel := context.WithTimeout(ctx, c.of.timing.killed)
	defer cancel()
	if err := endSession(ctx, p.PID()); err != nil {
		c.of.note("sidecar %q: end what it left running: %v", c.name, err)
	}
	c.mu.Lock()
	c.process = nil
	c.mu.Unlock()
	return p.how()
}

func (c *sidecar) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send(sig)
}

// send signals its process, if there is one. The lock is held.
func (c *sidecar) send(sig syscall.Signal) {
	if c.process == nil {
		return
	}
	if err := c.process.Signal(sig); err != nil {
		c.of.note("sidecar %q: %v", c.name, err)
	}
}

// kill ends one that did not end when it was asked to.
func (c *sidecar) kill() {
	select {
	case <-c.done:
	default:
		c.of.note("sidecar %q did not end when it was asked to: it is killed", c.name)
		c.signal(syscall.SIGKILL)
	}
}
