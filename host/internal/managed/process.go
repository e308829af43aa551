package managed

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Process is one process of a program.
type Process struct {
	Run  *Run
	Conn Conn // nil: it is not up
	// Beside is the process that serves while this one is tried; nil: there is none.
	Beside *Process
	// Found is true if an earlier host has started it.
	Found bool

	proc     *process.Process
	meter    *Meter
	logged   int64         // size of the log before its start
	killed   bool          // by the host, before it was up
	ownEnd   string        // how it ended, if the host did not end it before it was up
	detached chan struct{} // closed when it is not measured any more
	once     sync.Once
	measures sync.WaitGroup
}

// Conn is the way to a process that is up. Its methods are called by the set's goroutine, except Watch, which has
// one of its own, but is never called while another one is, and Drain and Stop of a process that was replaced.
type Conn interface {
	// Watch returns why the process has to be replaced, or nil when ctx has ended. The end of the process, and its limits,
	// are watched elsewhere. Alive is the error if the process can serve until the next one is up.
	Watch(ctx context.Context) error
	// Drain returns when nobody uses a process that was replaced any more, or it is not waited for any longer: after
	// grace, if that is given. It ends with ctx.
	Drain(ctx context.Context, grace *time.Duration)
	// Stop asks the process to end, and returns when it has, or with ctx. Remaining processes are killed then.
	Stop(ctx context.Context) error
	// Close ends what this host has for the process, which has ended or runs on for the next host.
	Close()
}

func newProcess(run *Run) *Process { return &Process{Run: run, detached: make(chan struct{})} }

// began makes the process known, and begins to measure it.
func (p *Process) began(proc *process.Process) {
	p.proc = proc
	if m := p.meter; m != nil {
		p.measures.Go(func() { m.Run(proc, p.detached) })
	}
}

// PID returns the process's PID, or 0 if it was not started.
func (p *Process) PID() int {
	if p.proc == nil {
		return 0
	}
	return p.proc.PID()
}

// Done is closed when the process has ended; nil: it was not started.
func (p *Process) Done() <-chan struct{} {
	if p.proc == nil {
		return nil
	}
	return p.proc.Done()
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// Exit is how the process ended.
func (p *Process) Exit() string { return p.proc.Exit() }

// orEnded returns why a process does not answer any more: that it has ended, if it has or is just doing so.
func (p *Process) orEnded(why error) error {
	select {
	case <-p.Done():
		return fmt.Errorf("the process ended: %s", p.Exit())
	case <-time.After(100 * time.Millisecond):
		return why
	}
}

// OverLimit is closed when the process exceeds a limit.
func (p *Process) OverLimit() <-chan struct{} { return p.meter.Exceeded() }

// Watch returns why a process that is up has to be replaced, or nil when ctx has ended.
func (p *Process) Watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { watched <- p.Conn.Watch(ctx) })
	select {
	case why := <-watched:
		if why != nil && !errors.As(why, &Alive{}) {
			why = p.orEnded(why)
		}
		return why
	case <-p.Done():
		return p.orEnded(nil)
	case <-p.OverLimit():
		return Alive{p.meter.Why()}
	}
}

// Side describes the process in a swap.
func (p *Process) Side() Side {
	side := Side{Generation: p.Run.Number, Version: p.Run.Version, SHA256: p.Run.SHA256}
	if c, ok := p.Conn.(interface{ Calls() (calls, failed int) }); ok {
		side.Calls, side.FailedCalls = c.Calls()
	}
	return side
}

// Kill ends a process that has not come up, and its group, at once.
func (p *Process) Kill(ctx context.Context) error {
	if p.proc == nil {
		return nil
	}
	// It usually does not come up because it is just ending.
	select {
	case <-p.proc.Done():
		if !p.killed {
			p.ownEnd = p.proc.Exit()
		}
	case <-p.detached:
	case <-time.After(250 * time.Millisecond):
	}
	ctx, cancel := context.WithTimeout(ctx, notUpStop)
	defer cancel()
	p.killed = true
	err := p.proc.Stop(ctx)
	p.Release()
	return err
}

// Release stops watching the process, which may run on.
func (p *Process) Release() {
	p.once.Do(func() { close(p.detached) })
	if p.proc != nil {
		p.proc.Release()
	}
	p.measures.Wait()
}
