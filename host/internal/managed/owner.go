package managed

import (
	"context"
	"errors"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Transport starts the processes of a program, and finds the way to them.
type Transport interface {
	// Start makes a process of p.Run from a program: it calls fork once, and returns when the process is up, so that it can
	// serve. Of an error nothing of it may be left but the process itself.
	Start(ctx context.Context, p *Process, bin Binary, fork func(process.Spec) error) (Conn, error)
	// Reattach finds the way to a process that an earlier host has started. On an error the process is ended.
	Reattach(ctx context.Context, p *Process) (Conn, error)
	// Move lets callers use to instead of from, which is nil if none has served. It may add to swap, which is nil then too.
	// On an error callers still use from.
	Move(ctx context.Context, from, to *Process, swap *Swap, grace *time.Duration) error
	// Lost takes a process away from callers that is ended, or left to the next host.
	Lost(ctx context.Context, p *Process, why error)
}

// Owner decides what runs, and is told what happens. The set's goroutine calls it.
type Owner interface {
	Transport
	// Choose returns what should run, usually by Set.Candidate. p serves; nil: none does.
	Choose(ctx context.Context, p *Process) (Source, error)
	// Same says whether a process is as a new one of src would be.
	Same(p *Process, src Source) bool
	// Examine returns why a process must not take over from the one that serves; nil: it may.
	Examine(ctx context.Context, p, next *Process) error
	// MayOverlap says whether another process may run beside p. If not, p is ended before the next one starts.
	MayOverlap(p *Process) bool
	// Served adds to the record that a process of src serves. undo takes that back.
	Served(p *Process, src Source) (undo func())
	// OnProbation says whether a failure of the copy sha makes it refused, so that the one before it runs again. p is its
	// process, and nil if it could not be started; times is how often it failed in a row.
	OnProbation(p *Process, sha string, times int) bool
	// StartFailed says whether a start is repeated at once: the owner has changed something.
	StartFailed(src Source, err error) bool
	// Stops says whether the process ends with Run; p is nil if none serves.
	Stops(p *Process) bool
	// Inherited is called before a process that an earlier host has left beside the one that serves is ended.
	Inherited(ctx context.Context, p *Process, run *Run)
	// Report tells what has happened.
	Report(e Event)
}

// Event is something that has happened.
type Event struct {
	What    What
	Process *Process
	Swap    *Swap
	Err     error
	Wait    time.Duration // until the next start
	Times   int           // how many starts have failed in a row, or processes ended soon
	Killed  bool          // of Ended: by the host
	Retried bool          // of NotSwapped: it is tried again at once, since Owner.StartFailed has changed something
}

// What says what has happened.
type What int

// What happens.
const (
	Up         What = iota // Process serves, without one before it
	Waking                 // a process is started after a wait
	Swapped                // Process has taken over, as Swap says
	Exchanging             // Process is ended, so that another program can start, as Swap says
	NotSwapped             // Process goes on, since what was tried beside it failed, as Swap says
	RolledBack             // Process has ended, and the copy before it is started, as Swap says
	Ended                  // Process has ended, and is started again
	Failed                 // no process could be started
	Retired                // Process gets no new calls, and ends after the last one
	Drained                // Process was retired and has ended
	Detached               // Process is left to the next host
	Stopped                // the set has stopped, with all its processes or as it could not be stopped (Err)
)

// Permanent marks a failure that only an operator can correct. It is tried again after the longest pause.
type Permanent struct{ error }

// NewPermanent marks an error.
func NewPermanent(err error) error { return Permanent{err} }

// Unwrap returns the error.
func (p Permanent) Unwrap() error { return p.error }

// NotTried marks a failure before the program ran, such as a full disk, which says nothing about it: the program is not
// refused.
type NotTried struct{ error }

// NewNotTried marks an error.
func NewNotTried(err error) error { return NotTried{err} }

// Unwrap returns the error.
func (n NotTried) Unwrap() error { return n.error }

// IsNotTried says whether an error is marked by NewNotTried.
func IsNotTried(err error) bool { return errors.As(err, &NotTried{}) }

// Alive marks why a process must be replaced that can serve until then.
type Alive struct{ error }

// NewAlive marks an error.
func NewAlive(err error) error { return Alive{err} }

// Unwrap returns the error.
func (a Alive) Unwrap() error { return a.error }

var (
	// ErrSame says that what should run runs already.
	ErrSame = errors.New("it runs already")
	// ErrStopped says that the set does not run any more.
	ErrStopped = errors.New("its processes are not managed any more")
)
