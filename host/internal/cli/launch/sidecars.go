package launch

import (
	"context"
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
)

// timing configures restarts of sidecars.
type timing struct {
	// first and longest are the pauses before a restart, which double, with 30 % jitter.
	first, longest time.Duration
	// stable is the lifetime after which the pause is reset.
	stable time.Duration
	// watch is the interval of checks for a new file, and grace the time that it then has to end.
	watch, grace time.Duration
	// killed bounds the wait for killed processes to end.
	killed time.Duration
}

var defaultTiming = timing{
	first: 500 * time.Millisecond, longest: 30 * time.Second, stable: time.Minute,
	watch: time.Second, grace: 10 * time.Second, killed: 10 * time.Second,
}

// Sidecars are programs that run beside a workload's own, in its mount namespace. Each
// leads a session, so the terminal's signals do not reach it: it runs until the workload's
// program has ended. One that ends by itself is restarted.
type Sidecars struct {
	namespace *os.File
	// note reports to people; it may be called from several goroutines.
	note   func(format string, args ...any)
	timing timing
	// stopping is closed when no sidecar is restarted any more.
	stopping chan struct{}
	all      []*sidecar
	stop     sync.Once
}

// NewSidecars makes room for sidecars in the mount namespace of p, which has not been
// told to go. Stop closes it.
func NewSidecars(p *Process, note func(format string, args ...any)) (*Sidecars, error) {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", p.PID()))
	if err != nil {
		return nil, &child.Error{Code: child.CodeNotRun, Text: fmt.Sprintf("open the workload's mount namespace: %v", err)}
	}
	return &Sidecars{namespace: namespace, note: note, timing: defaultTiming, stopping: make(chan struct{})}, nil
}

// Start starts a sidecar and returns when its program runs; name identifies it in notes.
// An *Error says why it cannot run; it is then not retried. plan is called for each start;
// of a plan it uses Command, Args, Env and User. The sidecar reads file once: when that is
// replaced, the sidecar is restarted; empty: none. The end of ctx ends nothing: see Stop.
//
// If the plan depends on the epoch, which is 0 for a sidecar that is started alone, the
// program takes over from the one of the epoch before, as Envoy does: then the next one is
// started beside it, and ends it.
func (s *Sidecars) Start(ctx context.Context, name string, plan func(epoch int) child.Plan, file string) error {
	c := &sidecar{
		of: s, name: name, plan: plan, file: file, done: make(chan struct{}),
		takesOver: !reflect.DeepEqual(plan(0), plan(1)),
	}
	p, err := c.launch()
	if err != nil {
		return &child.Error{Code: child.CodeNotRun, Text: fmt.Sprintf("sidecar %q: %v", name, err)}
	}
	c.process = p
	s.all = append(s.all, c)
	go c.supervise(context.WithoutCancel(ctx), p)
	return nil
}

// StopRestarts restarts no sidecar from now on. It returns the sessions of those that
// still run, for EndLeftovers. It may be called more than once.
func (s *Sidecars) StopRestarts() (sessions []int) {
	s.stop.Do(func() { close(s.stopping) })
	for _, c := range s.all {
		// This waits for a start or a replacement in progress.
		c.mu.Lock()
		for _, p := range c.running() {
			sessions = append(sessions, p.PID())
		}
		c.mu.Unlock()
	}
	return sessions
}

// Stop ends the sidecars and what is left in their sessions: SIGTERM first, SIGKILL
// after the grace or as soon as ctx is done. It returns when none is left. To be called
// once the program, and what that left, have ended. It may be called more than once.
func (s *Sidecars) Stop(ctx context.Context, grace time.Duration) {
	s.StopRestarts()
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
	of        *Sidecars
	name      string
	plan      func(epoch int) child.Plan
	takesOver bool // from the process of the epoch before
	// file is what the sidecar reads once; read is that file at the last start.
	file string
	read fs.FileInfo
	// done is closed when it has ended and is not restarted.
	done chan struct{}

	mu sync.Mutex
	// process of the sidecar; nil between two.
	process *Process
	epoch   int // of the process, or of the last one
	// before is the process that it takes over from, and ends; nil: none, or it has ended.
	before *Process
	ending sync.WaitGroup // of those before
}

// running are the sidecar's processes. The lock is held.
func (c *sidecar) running() []*Process {
	return slices.DeleteFunc([]*Process{c.process, c.before}, func(p *Process) bool { return p == nil })
}

// launch runs its program.
func (c *sidecar) launch() (*Process, error) {
	// Checked before the start, so that a later file counts as another one.
	c.read, _ = os.Stat(c.file)
	p, err := startIn(c.of.namespace, c.plan(c.epoch))
	if err != nil {
		return nil, err
	}
	if err := p.Go(); err != nil {
		return nil, err
	}
	return p, nil
}

// supervise restarts the sidecar until the sidecars are stopping.
func (c *sidecar) supervise(ctx context.Context, p *Process) {
	defer close(c.done)
	defer c.ending.Wait()
	t := c.of.timing
	pause := &backoff.ExponentialBackOff{
		InitialInterval: t.first, MaxInterval: t.longest, Multiplier: 2,
		RandomizationFactor: 0.3,
	}
	for {
		began := time.Now()
		var replaced bool
		var how string
		if p != nil {
			p, replaced = c.watch(ctx, p)
			how = c.reap(ctx, p)
		}
		lived := time.Since(began)
		if lived >= t.stable {
			pause.Reset()
		}
		if c.isStopping() {
			return
		}
		var wait time.Duration
		if !replaced {
			wait = pause.NextBackOff()
		}
		if p != nil && !replaced {
			c.of.note("sidecar %q %s after %s; it is started again in %s", c.name, how, lived.Round(100*time.Millisecond),
				wait.Round(100*time.Millisecond))
		}
		select {
		case <-c.of.stopping:
			return
		case <-time.After(wait):
		}
		p = c.restart()
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
func (c *sidecar) watch(ctx context.Context, p *Process) (last *Process, replaced bool) {
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
			next, asked, err := c.replace(ctx)
			switch {
			case err != nil:
				c.of.note("sidecar %q cannot be started beside the one that runs, and will be tried once more: %v", c.name, err)
				look.Reset(c.of.timing.longest)
			case next != nil:
				p = next
				look.Reset(c.of.timing.watch)
			case asked:
				look.Stop()
				replaced = true
				late = time.After(c.of.timing.grace)
			}
		}
	}
}

// replace reports that it has asked the process to end, since its file was replaced, or returns the next one if that
// takes over. StopRestarts waits for it, and nothing is done afterwards.
func (c *sidecar) replace(ctx context.Context) (next *Process, asked bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isStopping() || !c.outdated() {
		return nil, false, nil
	}
	if !c.takesOver {
		c.of.note("sidecar %q has to read a new %s", c.name, c.file)
		c.send(syscall.SIGTERM)
		return nil, true, nil
	}
	has := c.read
	c.epoch++
	if next, err = c.launch(); err != nil {
		c.read = has
		c.epoch--
		return nil, false, err
	}
	c.of.note("sidecar %q has to read a new %s: the next one takes over (pid %d)", c.name, c.file, next.PID())
	if c.before != nil { // it has not been ended by the one that took over from it
		_ = c.before.Signal(syscall.SIGKILL) // it may have ended meanwhile
	}
	before := c.process
	c.process, c.before = next, before
	c.ending.Go(func() { c.end(ctx, before) })
	return next, false, nil
}

// end waits for the end of a process that another one takes over from.
func (c *sidecar) end(ctx context.Context, before *Process) {
	c.clear(ctx, before)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.before == before {
		c.before = nil
	}
}

// outdated reports whether the file that the process has read was replaced.
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

// restart starts the process again; nil when it cannot, or the sidecars are stopping.
func (c *sidecar) restart() *Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isStopping() {
		return nil
	}
	if c.before == nil {
		c.epoch = 0 // else it takes over in place of the one that has ended
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

// reap waits for the end of the process and ends what it left. It returns how the process ended.
func (c *sidecar) reap(ctx context.Context, p *Process) (how string) {
	c.clear(ctx, p)
	c.mu.Lock()
	c.process = nil
	c.mu.Unlock()
	return p.how()
}

// clear waits for the end of a process and ends what it left in its session, which could
// block the next one.
func (c *sidecar) clear(ctx context.Context, p *Process) {
	<-p.Done()
	ctx, cancel := context.WithTimeout(ctx, c.of.timing.killed)
	defer cancel()
	if err := endSession(ctx, p.PID()); err != nil {
		c.of.note("sidecar %q: end what it left running: %v", c.name, err)
	}
}

func (c *sidecar) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.send(sig)
}

// send signals its processes. The lock is held.
func (c *sidecar) send(sig syscall.Signal) {
	for _, p := range c.running() {
		if err := p.Signal(sig); err != nil {
			c.of.note("sidecar %q: %v", c.name, err)
		}
	}
}

// kill kills a process that did not end when it was asked to.
func (c *sidecar) kill() {
	select {
	case <-c.done:
	default:
		c.of.note("sidecar %q did not end when it was asked to: it is killed", c.name)
		c.signal(syscall.SIGKILL)
	}
}
