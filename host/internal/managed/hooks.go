package managed

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/pannier/pannier/host/internal/system/process"
)

// Transport starts the processes of a program, and finds the way to them.
type Transport interface {
	// Start makes a process of p.Run from a program: it calls fork once, and returns when the process is up, so that
	// it can serve. Of an error nothing of it may be left but the process itself.
	Start(ctx context.Context, p *Process, bin Binary, fork func(process.Spec) error) (Conn, error)
	// Reattach finds the way to a process that an earlier host has started. On an error it leaves the process as it is:
	// the set ends it.
	Reattach(ctx context.Context, p *Process) (Conn, error)
	// Move lets callers use to instead of from, which is nil if none has served. It may add to swap, which is nil then
	// too. On an error callers still use from.
	Move(ctx context.Context, from, to *Process, swap *Swap, grace *time.Duration) error
	// Lost takes a process away from callers that is ended, or left to the next host.
	Lost(ctx context.Context, p *Process, why error)
}

// Hooks decide what runs, and are told what happens. All may be nil. The set's goroutine calls them.
type Hooks struct {
	// Ready is called before anything else, until it succeeds; nil: the record is there already.
	Ready func() error
	// Choose returns what should run. p serves; nil: none does. Default: Set.Candidate(Config.Files).
	Choose func(ctx context.Context, p *Process) (Source, error)
	// Same reports whether a process is as a new one of src would be. Default: it runs from the same copy.
	Same func(p *Process, src Source) bool
	// MayOverlap reports whether another process may run beside p. If not, p is ended before the next one starts. Default:
	// yes.
	MayOverlap func(p *Process) bool
	// Examine returns why a process must not take over from the one that serves. Default: it may if it is up.
	Examine func(ctx context.Context, p, next *Process) error
	// Served adds to the owner's record that a process of src serves. undo takes that back.
	Served func(p *Process, src Source) (undo func())
	// OnProbation reports whether a failure of the copy sha makes it refused, so that the one before it runs again. p is
	// its process, and nil if it could not be started; times is how often it failed in a row. Default: it took over less
	// than Restart.Stable ago.
	OnProbation func(p *Process, sha string, times int) bool
	// StartFailed reports whether a start is repeated at once, since the owner has changed something. Default: no.
	StartFailed func(src Source, err error) bool
	// Confirmed is closed when the host's start has succeeded. Before that, no process of an earlier host is ended or
	// replaced: if the start fails, the next host finds it. nil: it has succeeded.
	Confirmed <-chan struct{}
	// Stops reports whether the process ends with Run; p is nil if none serves. Default: it is left to the next host.
	Stops func(p *Process) bool
	// Inherited is called before a process ends that an earlier host has left beside the one that serves.
	Inherited func(ctx context.Context, p *Process, run *Run)
	// Forget removes what the owner has for a process that is gone.
	Forget func(run *Run) error
	// KeepMounts reports whether what serves FUSE file systems outlives the processes that started it, since they are in
	// use. What is left is in Record.Left. Default: no.
	KeepMounts func() bool
	// NewMeter makes the meter of a process; nil: it has no limits.
	NewMeter func(giveUp func(why error)) *Meter
	// Report is told what has happened.
	Report func(e Event)
}

func (h Hooks) withDefaults(s *Set) Hooks {
	def(&h.Ready, func() error { return nil })
	def(&h.Choose, func(context.Context, *Process) (Source, error) {
		src, _, err := s.Candidate(s.Files)
		return src, err
	})
	def(&h.Same, func(p *Process, src Source) bool { return p.Run.SHA256 == src.SHA256 })
	def(&h.MayOverlap, func(*Process) bool { return true })
	def(&h.Examine, func(context.Context, *Process, *Process) error { return nil })
	def(&h.Served, func(*Process, Source) func() { return func() {} })
	def(&h.OnProbation, func(p *Process, _ string, _ int) bool {
		return p != nil && time.Since(p.Run.TookOver) < s.Restart.Stable
	})
	def(&h.StartFailed, func(Source, error) bool { return false })
	def(&h.Stops, func(*Process) bool { return false })
	def(&h.Inherited, func(context.Context, *Process, *Run) {})
	def(&h.Forget, func(*Run) error { return nil })
	def(&h.KeepMounts, func() bool { return false })
	def(&h.NewMeter, func(func(error)) *Meter { return nil })
	def(&h.Report, func(Event) {})
	return h
}

// IsConfirmed reports whether the host's start has succeeded; nil: it has (Hooks.Confirmed).
func IsConfirmed(confirmed <-chan struct{}) bool {
	select {
	case <-confirmed:
		return true
	default:
		return confirmed == nil
	}
}

func def[F any](hook *F, value F) {
	if reflect.ValueOf(*hook).IsNil() {
		*hook = value
	}
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
	Retried bool          // of NotSwapped: it is tried again at once, since Hooks.StartFailed has changed something
}

// What is what has happened.
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

// IsNotTried reports whether an error is marked by NewNotTried.
func IsNotTried(err error) bool { return errors.As(err, &NotTried{}) }

// Alive marks why a process must be replaced that can serve until then.
type Alive struct{ error }

// NewAlive marks an error.
func NewAlive(err error) error { return Alive{err} }

// Unwrap returns the error.
func (a Alive) Unwrap() error { return a.error }

var (
	// ErrSame means that what should run runs already.
	ErrSame = errors.New("it runs already")
	// ErrStopped means that the set does not run any more.
	ErrStopped = errors.New("its processes are not managed any more")
)
