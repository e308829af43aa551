package managed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/process"
)

// errExchange means that the process must be ended before the next one starts.
var errExchange = errors.New("another program runs in its place")

// failedStop is how long a process may take to end after a failed start.
const failedStop = time.Second

// Replace brings what should run up beside p, moves callers to it, and leaves p to finish their calls within grace.
// If it fails, callers notice nothing: p still serves, and nothing of the new process is left. Errors: ErrSame.
func (s *Set) Replace(ctx context.Context, p *Process, grace *time.Duration) (*Process, error) {
	src, err := s.Choose(ctx, p)
	if err != nil {
		return nil, err
	}
	if s.Same(p, src) {
		return nil, ErrSame
	}
	return s.SwapTo(ctx, p, src, grace)
}

// SwapTo is Replace for something that was chosen.
func (s *Set) SwapTo(ctx context.Context, p *Process, src Source, grace *time.Duration) (*Process, error) {
	_, refused := s.Record.Refused[p.Run.SHA256]
	swap := Swap{
		At: time.Now().UTC(), From: p.Side(), To: Side{SHA256: src.SHA256}, Overlap: true,
		Rollback: refused && src.SHA256 == s.Record.LastGood, Restart: s.Same(p, src),
	}
	if !s.MayOverlap(p) {
		swap.Overlap = false
		s.Record.Swapped(swap)
		s.Report(Event{What: Exchanging, Process: p, Swap: &swap})
		return nil, errExchange
	}
	next, err := s.Try(ctx, p, src)
	if err == nil {
		swap.To = next.Side()
		if swap.Rollback {
			swap.Why = s.Record.Refused[p.Run.SHA256]
		}
		err = s.Promote(ctx, p, next, src, &swap, grace)
	}
	if err != nil && !errors.Is(err, ErrNotSaved) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		s.NotSwapped(p, swap, src, err)
		return nil, err
	}
	return next, err
}

// Try starts a process of src beside p and examines it. If it fails, nothing of it is left.
func (s *Set) Try(ctx context.Context, p *Process, src Source) (next *Process, err error) {
	if next, err = s.Launch(ctx, src, p); err != nil {
		return nil, err
	}
	if err = s.Save(); err == nil {
		failpoint.Here("swap", "up")
		err = s.Examine(ctx, p, next)
	}
	if err != nil {
		return nil, errors.Join(err, s.End(ctx, next))
	}
	return next, nil
}

// ErrNotSaved means that callers have moved to another process, but that the record of it could not be completed.
var ErrNotSaved = errors.New("the record of a swap could not be written")

// Promote lets next serve in the place of p: it is recorded first, so that the next host finds the right one; then
// callers move, and p finishes its calls within grace. On an error next has ended, unless it is ErrNotSaved.
func (s *Set) Promote(ctx context.Context, p, next *Process, src Source, swap *Swap, grace *time.Duration) error {
	was := *s.Record
	s.Record.Serve(next.Run)
	undo := s.Served(next, src)
	if next.Run.TookOver = p.Run.TookOver; next.Run.SHA256 != p.Run.SHA256 { // else it stays on probation
		next.Run.TookOver = time.Now().UTC()
	}
	back := func(err error) error {
		*s.Record = was
		undo()
		return errors.Join(err, s.End(ctx, next))
	}
	if err := s.Save(); err != nil {
		return back(err)
	}
	failpoint.Here("swap", "recorded")
	if err := s.Move(ctx, p, next, swap, grace); err != nil {
		return back(err)
	}
	next.Beside = nil
	if swap.Canary == 0 {
		swap.From = p.Side() // it has answered calls while next came up
	}
	swap.Took = time.Since(swap.At)
	failpoint.Here("swap", "moved")
	s.Retire(ctx, p, grace)
	s.Record.Swapped(*swap)
	s.Report(Event{What: Swapped, Process: next, Swap: swap})
	if err := s.Save(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotSaved, err)
	}
	return nil
}

// NotSwapped records a failed swap. What was tried is refused until its file changes, unless it did not run, or has the
// same program. What did not run is tried again after a while.
func (s *Set) NotSwapped(p *Process, swap Swap, src Source, err error) {
	swap.From, swap.Error, swap.Took = p.Side(), err.Error(), time.Since(swap.At)
	last := len(s.Record.Swaps) - 1
	again := last >= 0 && s.Record.Swaps[last].To == swap.To && s.Record.Swaps[last].Error == swap.Error
	retried := false
	switch {
	case s.StartFailed(src, err):
		retried = true
		s.Recheck()
	case IsNotTried(err):
		s.RecheckIn(s.Restart.Max)
	case src.SHA256 != p.Run.SHA256:
		s.Record.Refuse(src.SHA256, err.Error())
		s.Recheck() // there may be something else
	}
	if !again || !IsNotTried(err) {
		s.Record.Swapped(swap)
	}
	err = errors.Join(err, s.Save())
	s.Report(Event{What: NotSwapped, Process: p, Swap: &swap, Err: err, Retried: retried})
}

// Retire lets a process finish its calls within grace, and ends it.
func (s *Set) Retire(ctx context.Context, p *Process, grace *time.Duration) {
	s.Report(Event{What: Retired, Process: p})
	s.draining.Go(func() {
		p.Conn.Drain(s.drain, grace) //nolint:contextcheck // it ends with Run
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.StopTimeout)
		defer cancel()
		if err := p.Conn.Stop(ctx); err != nil {
			s.Log.Warn("an old process did not end by itself", "generation", p.Run.Number, "error", err)
		}
		left, err := p.Run.end(ctx, s.KeepMounts(), false)
		p.Conn.Close()
		p.Release()
		failpoint.Here("swap", "drained")
		s.mu.Lock()
		s.drained = append(s.drained, drained{p, left, err})
		s.mu.Unlock()
		s.Recheck()
	})
}

// drained is a process that was retired and has ended.
type drained struct {
	*Process
	left bool
	err  error // why it could not be ended
}

// clearDrained removes processes that were retired and have ended from the record.
func (s *Set) clearDrained() {
	s.mu.Lock()
	gone := s.drained
	s.drained = nil
	s.mu.Unlock()
	for _, d := range gone {
		err := d.err
		if err == nil {
			err = s.cleared(d.Run, d.left)
		}
		if err != nil {
			s.Log.Warn("an old process could not be removed from the record", "generation", d.Run.Number, "error", err)
		}
		s.Report(Event{What: Drained, Process: d.Process, Err: err})
	}
}

// End ends a process that does not serve.
func (s *Set) End(ctx context.Context, p *Process) error {
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), failedStop)
	defer cancel()
	err := p.Conn.Stop(stop)
	err = errors.Join(err, s.Clear(ctx, p.Run, failedStop))
	p.Conn.Close()
	p.Release()
	return err
}

// Launch starts a new process and brings it up, beside the one that serves if that is not nil. On failure nothing
// of the process is left. The caller saves the record, which then says that it is up, before it serves.
func (s *Set) Launch(parent context.Context, src Source, beside *Process) (p *Process, err error) {
	bin, unpin, err := s.copyOf(src)
	if err != nil {
		return nil, err
	}
	defer unpin()
	s.LastTried = bin.SHA256
	ctx, cancel := context.WithTimeout(parent, s.StartTimeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	p = newProcess(s.Record.newRun(bin.SHA256))
	p.Beside, p.meter, p.logged = beside, s.NewMeter(giveUp), process.LogSize(s.LogPath)
	fork := func(spec process.Spec) error {
		proc, err := s.start(p.Run, spec)
		if proc != nil {
			p.began(proc)
		}
		return err
	}
	p.Conn, err = s.Start(ctx, p, bin, fork)
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done() // the process knows the deadline too and may have noticed it first
	}
	if ctx.Err() != nil {
		err = s.late(ctx, err)
	}
	if err == nil {
		return p, nil
	}
	_ = p.Kill(context.WithoutCancel(parent)) // Clear deals with what this could not end
	err = s.explain(p, err)
	if p.Run.Process == nil { // nothing was started
		s.Record.forget(p.Run)
	} else {
		err = errors.Join(err, s.Clear(parent, p.Run, failedStop))
	}
	if p.Conn != nil {
		p.Conn.Close()
	}
	p.Release()
	return nil, err
}

// copyOf makes the verified copy that a process runs from.
func (s *Set) copyOf(src Source) (bin Binary, unpin func(), err error) {
	switch {
	case src.InPlace:
		return Binary{Path: src.Path}, func() {}, nil
	case src.Path == "":
		bin, unpin, err = s.Store.Use(src.SHA256, s.Name, s.Admit)
	default:
		bin, unpin, err = s.Store.Add(src.Path, s.Name, s.Admit)
	}
	switch {
	case errors.Is(err, ErrChecksum):
		err = Permanent{err}
	case err != nil:
		err = NotTried{err}
	}
	return bin, unpin, err
}

// late returns the error of a start that took too long or was cancelled; err is how far the start had come.
func (s *Set) late(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return context.Cause(ctx)
	}
	if err == nil {
		return fmt.Errorf("it is not up after %v", s.StartTimeout)
	}
	return fmt.Errorf("it is not up after %v: %w", s.StartTimeout, err)
}

// explain adds to the error of a start how the process ended, if it did, and what it printed last.
func (s *Set) explain(p *Process, err error) error {
	if p.proc == nil {
		return err
	}
	if p.ownEnd != "" {
		err = fmt.Errorf("the process ended: %s: %w", p.ownEnd, err)
	}
	if words := process.LastWords(s.LogPath, p.logged); words != "" {
		err = fmt.Errorf("%w (it printed: %s)", err, words)
	}
	return err
}
