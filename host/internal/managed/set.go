package managed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/program"
	"github.com/pannier/pannier/internal/atomicfile"
)

// Config is what a Set needs.
type Config struct {
	Name  string // of the program, in the store
	Store *Store
	Files []File // that may run, the preferred one first; see Hooks.Choose
	// Record is a part of the owner's record. Save writes that, and returns when it is on the disk. Without them, and
	// Hooks.Ready, the record is alone in the file RecordPath.
	Record     *Record
	Save       func() error
	RecordPath string
	// Admit decides which copies may run; nil: all.
	Admit   Admit
	LogPath string // of the file that the processes print to
	Log     hclog.Logger
	// StartTimeout bounds a start until the process is up, and StopTimeout its end; default 10 s.
	StartTimeout, StopTimeout time.Duration
	Restart                   Restart
	Transport
	Hooks
}

// Restart is the backoff between two starts: it begins at Min, doubles each time up to Max, with jitter, and is
// reset once a process has run for Stable.
type Restart struct {
	Min, Max, Stable time.Duration // default 1 s, 60 s, 60 s
}

// Set is the processes of one program. Its methods are for the goroutine of Run, except Do, Recheck and
// RecheckIn.
type Set struct {
	Config

	requests chan request
	rechecks chan struct{} // holds a token when something else may have to run
	again    *time.Timer   // a recheck
	stopped  chan struct{} // closed when Run has returned

	ready         bool              // Config.Ready has succeeded
	sums          map[string]hashed // of files
	LastTried     string            // the copy that was started last
	failures      int               // how many starts have failed in a row, or processes ended soon
	pause         *backoff.ExponentialBackOff
	lostMeanwhile error // why the process must be replaced, found while something else had to be done

	drain    context.Context // ends when the calls that are left are given up
	draining sync.WaitGroup
	mu       sync.Mutex
	drained  []drained // and still in the record
}

// New makes a set. Run starts its processes.
func New(cfg Config) *Set {
	if cfg.Record == nil {
		cfg.Record = &Record{}
		cfg.Save = func() error { return atomicfile.WriteJSON(cfg.RecordPath, cfg.Record) }
		cfg.Ready = func() error { return readRecord(cfg.RecordPath, cfg.Record) }
	}
	cfg.StartTimeout, cfg.StopTimeout = cmp.Or(cfg.StartTimeout, 10*time.Second), cmp.Or(cfg.StopTimeout, 10*time.Second)
	r := &cfg.Restart
	r.Min, r.Max, r.Stable = cmp.Or(r.Min, time.Second), cmp.Or(r.Max, time.Minute), cmp.Or(r.Stable, time.Minute)
	s := &Set{
		Config: cfg, requests: make(chan request), rechecks: make(chan struct{}, 1), stopped: make(chan struct{}),
		sums: map[string]hashed{},
	}
	s.Hooks = cfg.withDefaults(s)
	s.again = time.AfterFunc(time.Hour, s.Recheck)
	s.again.Stop()
	return s
}

// start starts a process. The record says how to find it before it exists, and after: whenever the host is killed, the
// next one finds it. On an error nothing of it is left, or it is still in the record.
func (s *Set) start(run *Run, spec process.Spec) (*process.Process, error) {
	spec.LogPath = s.LogPath
	intent := spec.Intent()
	run.Process = &intent
	if err := s.Save(); err != nil {
		return nil, err
	}
	failpoint.Here("process", "intended")
	proc, err := process.Start(spec)
	if err != nil {
		return nil, program.ExplainExec(err, spec.Path)
	}
	failpoint.Here("process", "forked")
	run.has(proc)
	return proc, s.Save()
}

// has records the process of a run.
func (r *Run) has(proc *process.Process) {
	ref := proc.Ref()
	r.Process, r.proc = &ref, proc
}

// notUpStop is how long a process that had not come up may take to end: it does no work yet.
const notUpStop = 100 * time.Millisecond

// ClearAll makes sure that no recorded process, nor anything it started, is left. A process may be started only after
// it has succeeded, except beside one that serves. It does not end with ctx.
func (s *Set) ClearAll(ctx context.Context, grace time.Duration) error {
	var errs []error
	for _, run := range slices.Clone(s.Record.Runs) {
		errs = append(errs, s.Clear(ctx, run, grace))
	}
	return errors.Join(errs...)
}

// Clear makes sure that the process of a run and all that it started are gone, and removes it from the record. It
// asks them to end, and kills them after grace. It does not end with ctx.
func (s *Set) Clear(ctx context.Context, run *Run, grace time.Duration) error {
	return s.clear(ctx, run, grace, s.KeepMounts())
}

func (s *Set) clear(ctx context.Context, run *Run, grace time.Duration, keep bool) error {
	if run.Address == "" {
		grace = min(grace, notUpStop)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	left, err := run.end(ctx, keep, run.Number == s.Record.Serving)
	if err != nil {
		return fmt.Errorf("end a process of %q: %w", s.Name, err)
	}
	return s.cleared(run, left)
}

// cleared removes a run whose process has ended from the record. left is true if something of it is left.
func (s *Set) cleared(run *Run, left bool) error {
	if left {
		s.Record.Left = append(s.Record.Left, *run.Process)
	}
	if err := s.Forget(run); err != nil {
		return err
	}
	s.Record.forget(run)
	return s.Save()
}

// end ends the process of a run. If what serves mounts is kept, it reports whether something is left; one that does not
// serve callers, but mounts itself, is left as a whole.
func (r *Run) end(ctx context.Context, keep, serves bool) (left bool, err error) {
	if r.Process == nil {
		return false, nil
	}
	if keep && !serves && slices.ContainsFunc(process.Left(*r.Process), process.ServesMounts) {
		return true, nil
	}
	proc := r.proc
	if proc == nil {
		proc, err = process.Find(ctx, *r.Process)
	}
	gone := errors.Is(err, process.ErrGone)
	if err == nil {
		select {
		case <-proc.Done():
			gone = true
		default:
		}
	}
	switch {
	case gone && keep:
		return len(process.Left(*r.Process)) > 0, nil
	case gone:
		return false, process.Clean(ctx, *r.Process)
	case err != nil:
		return false, err
	case keep:
		kept, err := proc.StopKeepingMounts(ctx)
		return len(kept) > 0, err
	default:
		return false, proc.Stop(ctx)
	}
}

// Left lists what is left of processes that have ended, and forgets what is gone.
func (s *Set) Left() (pids []int, err error) {
	before := len(s.Record.Left)
	s.Record.Left = slices.DeleteFunc(s.Record.Left, func(ref process.Ref) bool {
		left := process.Left(ref)
		pids = append(pids, left...)
		return len(left) == 0
	})
	if len(s.Record.Left) != before {
		err = s.Save()
	}
	return pids, err
}

// ClearLeft ends what is left of processes that have ended.
func (s *Set) ClearLeft(ctx context.Context) error {
	if len(s.Record.Left) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.StopTimeout)
	defer cancel()
	var errs []error
	s.Record.Left = slices.DeleteFunc(s.Record.Left, func(ref process.Ref) bool {
		err := process.Clean(ctx, ref)
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(append(errs, s.Save())...)
}
