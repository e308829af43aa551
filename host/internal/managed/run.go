package managed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pannier/pannier/host/internal/system/process"
)

// request is something that the set's goroutine does for another one; p is nil while nothing serves.
type request struct {
	do   func(ctx context.Context, p *Process) (next *Process, err error)
	done chan error
}

// Do runs do in the set's goroutine, between everything else, and waits for it. do returns the process that serves now,
// if that is another one. While nothing serves p is nil, and the next start begins at once if do returns no error.
// Errors: the error of do; ErrStopped.
func (s *Set) Do(ctx context.Context, do func(ctx context.Context, p *Process) (*Process, error)) error {
	r := request{do: do, done: make(chan error, 1)}
	select {
	case s.requests <- r:
	case <-s.stopped:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-r.done:
		return err
	case <-s.stopped:
		return ErrStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Recheck makes the set look again at what should run.
func (s *Set) Recheck() {
	select {
	case s.rechecks <- struct{}{}:
	default: // one is pending already
	}
}

// RecheckIn is Recheck after a while.
func (s *Set) RecheckIn(d time.Duration) { s.again.Reset(d) }

// Run keeps the program up until ctx ends. It then leaves the process to the next host, or stops it, as the owner says.
// The error is why it could not be stopped.
func (s *Set) Run(ctx context.Context) error {
	drain, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer close(s.stopped)
	defer s.Tail(ctx)()
	s.drain = drain
	s.pause = &backoff.ExponentialBackOff{
		InitialInterval: s.Restart.Min, MaxInterval: s.Restart.Max, Multiplier: 2,
		RandomizationFactor: backoff.DefaultRandomizationFactor,
	}
	s.pause.Reset()
	var p *Process
	for ctx.Err() == nil {
		var err error
		if p, err = s.bring(ctx); err != nil {
			s.failed(ctx, err)
			continue
		}
		up := time.Now()
		s.Report(Event{What: Up, Process: p})
		var why error
		p, why = s.serve(ctx, p)
		if ctx.Err() != nil {
			break
		}
		if time.Since(up) >= s.Restart.Stable {
			s.pause.Reset()
			s.failures = 0
		}
		s.lost(ctx, p, why)
		p = nil
	}
	err := s.shutDown(ctx, p)
	cancel() // nobody is waited for any more
	s.draining.Wait()
	s.clearDrained()
	s.again.Stop()
	return err
}

// Tail copies what the processes print into the log of the host, until stop is called.
func (s *Set) Tail(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var tailing sync.WaitGroup
	tailing.Go(func() {
		if err := process.Tail(ctx, s.LogPath, s.Log); err != nil {
			s.Log.Error("what the processes print is not logged", "error", err)
		}
	})
	return func() { cancel(); tailing.Wait() }
}

// bring gets a process up: the one that an earlier host has left, or a new one.
func (s *Set) bring(ctx context.Context) (p *Process, err error) {
	if !s.ready {
		// Without the record we do not know what runs, so nothing may be started.
		if err := s.Ready(); err != nil {
			return nil, Permanent{err}
		}
		s.ready = true
		if p, err = s.reattach(ctx); p != nil || err != nil {
			return p, err
		}
	}
	// Everything in the record must have ended before another process is started.
	if len(s.Record.Runs) > 0 && !s.AwaitConfirmed(ctx, nil) {
		return nil, ctx.Err()
	}
	if err := s.ClearAll(ctx, s.StopTimeout); err != nil {
		return nil, err
	}
	src, err := s.Choose(ctx, nil)
	if err != nil {
		return nil, err
	}
	if p, err = s.Launch(ctx, src, nil); err != nil && ctx.Err() == nil && s.StartFailed(src, err) {
		p, err = s.Launch(ctx, src, nil)
	}
	if err != nil && !IsNotTried(err) {
		return nil, launchError{err, s.LastTried}
	}
	if err != nil {
		return nil, err
	}
	s.Record.Serve(p.Run)
	s.Served(p, src)
	if err = s.Save(); err == nil {
		err = s.Move(ctx, nil, p, nil, nil)
	}
	if err != nil {
		return nil, errors.Join(err, s.End(ctx, p))
	}
	return p, nil
}

// AwaitConfirmed waits until processes of an earlier host may be ended. It returns false if ctx or the process that
// serves has ended before.
func (s *Set) AwaitConfirmed(ctx context.Context, ended <-chan struct{}) bool {
	if !IsConfirmed(s.Confirmed) {
		select {
		case <-s.Confirmed:
		case <-ended:
		case <-ctx.Done():
		}
	}
	return IsConfirmed(s.Confirmed)
}

// reattach finds the process that served under an earlier host. If it cannot, p is nil, and bring ends the processes of
// the earlier host. It returns an error only if the host stops meanwhile.
func (s *Set) reattach(ctx context.Context) (*Process, error) {
	run := s.Record.Current()
	if run == nil || run.Process == nil {
		return nil, nil
	}
	p, err := s.tryReattach(ctx, run)
	if ctx.Err() != nil && p == nil {
		return nil, ctx.Err() // the process stays for the next host
	}
	if err != nil && !errors.Is(err, process.ErrGone) {
		s.Log.Warn("the process of the previous host is replaced", "pid", run.Process.PID, "reason", err)
	}
	return p, nil
}

func (s *Set) tryReattach(ctx context.Context, run *Run) (p *Process, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.StartTimeout)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	p = newProcess(run)
	p.Found = true
	proc, err := process.Find(ctx, *run.Process)
	if err != nil {
		return nil, err
	}
	run.has(proc)
	defer func() {
		if err != nil {
			p.Release()
			p = nil
		}
	}()
	if run.Address == "" {
		p.proc = proc
		return p, errors.New("it had not come up")
	}
	p.meter = s.NewMeter(giveUp)
	p.began(proc)
	if p.Conn, err = s.Reattach(ctx, p); err == nil {
		if err := s.Save(); err != nil { // the record names the process already, and the disk may be full
			s.Log.Warn("the record of a process that was found could not be written", "error", err)
		}
		if err = ctx.Err(); err == nil {
			err = s.Move(ctx, nil, p, nil, nil)
		}
		if err != nil {
			p.Conn.Close()
		}
	}
	if err != nil && ctx.Err() != nil {
		err = s.late(ctx, err)
	}
	return p, err
}

// launchError means that a process of a copy did not come up.
type launchError struct {
	error
	sha string
}

func (l launchError) Unwrap() error { return l.error }

// failed waits after a failed start.
func (s *Set) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // it was cancelled
	}
	s.failures++
	if l := (launchError{}); errors.As(err, &l) && s.refuseOnProbation(nil, l.sha, err) {
		s.rolledBack(nil, Side{SHA256: l.sha}, err)
		return
	}
	s.wait(ctx, Event{What: Failed, Err: err})
}

// serve watches the process that serves until it is lost, and replaces it when something else should run. It
// returns the process that served last, and why it was lost.
func (s *Set) serve(ctx context.Context, p *Process) (*Process, error) {
	if p.Found && s.AwaitConfirmed(ctx, p.Done()) {
		s.clearOthers(ctx, p)
	}
	s.Recheck() // something else may have come while no host ran
	for {
		asked, lost := s.watch(ctx, p)
		alive := errors.As(lost, &Alive{})
		switch {
		case ctx.Err() != nil:
			return p, lost
		case asked != nil:
			next, err := asked.do(ctx, p)
			if next != nil {
				p, s.lostMeanwhile = next, nil
			}
			asked.done <- err
			continue
		case alive && s.MayOverlap(p) && s.refuseOnProbation(p, p.Run.SHA256, lost):
		case lost != nil:
			return p, lost
		}
		s.clearDrained()
		next, err := s.Replace(ctx, p, nil)
		switch {
		case next != nil:
			if p = next; err != nil {
				s.Log.Error("a swap could not be recorded", "error", err)
			}
		case errors.Is(err, errExchange):
			return p, err
		case alive && err != nil:
			return p, lost // there is nothing to go back to: a restart may help
		}
	}
}

// watch returns when the process must be replaced, when another goroutine asks for something, when something else may
// have to run, or when ctx ends.
func (s *Set) watch(ctx context.Context, p *Process) (asked *request, lost error) {
	if lost, s.lostMeanwhile = s.lostMeanwhile, nil; lost != nil {
		return nil, lost
	}
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() { watched <- p.Watch(ctx) }()
	select {
	case lost = <-watched:
		cancel()
		return nil, lost
	case r := <-s.requests:
		asked = &r
	case <-s.rechecks:
	}
	cancel()
	if lost = <-watched; asked != nil {
		lost, s.lostMeanwhile = nil, lost
	}
	return asked, lost
}

// clearOthers ends the other processes of an earlier host: one that was to take over, or one that had been replaced.
func (s *Set) clearOthers(ctx context.Context, p *Process) {
	for _, run := range slices.Clone(s.Record.Runs) {
		if run == p.Run {
			continue
		}
		s.Inherited(ctx, p, run)
		if err := s.Clear(ctx, run, s.StopTimeout); err != nil {
			s.Log.Warn("an old process could not be ended", "generation", run.Number, "error", err)
		}
	}
}

// lost takes a process away from callers, ends what is left of it, and waits until the next start is due.
func (s *Set) lost(ctx context.Context, p *Process, why error) {
	exchange := errors.Is(why, errExchange)
	s.Lost(ctx, p, why)
	died := p.Ended()
	grace := s.StopTimeout
	overLimit := errors.Is(why, ErrLimit)
	if died || overLimit {
		grace = failedStop // for what the process left behind, or before it uses even more
	}
	err := s.clear(ctx, p.Run, grace, !overLimit && s.KeepMounts()) // its children count too
	if !died && p.Ended() && !exchange && !overLimit {
		why = fmt.Errorf("%w; the process then ended: %s", why, p.Exit())
	}
	// Callers still use the dead connection. If it were closed under them they would get Canceled, as if they had
	// given up themselves.
	s.draining.Go(func() {
		p.Conn.Drain(s.drain, &s.StopTimeout)
		p.Conn.Close()
		p.Release()
	})
	if exchange {
		s.failures = 0
		if err != nil {
			s.Log.Error("a process could not be ended for the next one", "error", err)
		}
		return
	}
	s.failures++
	if words := process.LastWords(s.LogPath, p.logged); died && words != "" {
		why = fmt.Errorf("%w; it printed %q", why, words)
	}
	if s.refuseOnProbation(p, p.Run.SHA256, why) {
		s.rolledBack(p, Side{}, errors.Join(why, err))
		return
	}
	s.wait(ctx, Event{What: Ended, Process: p, Err: errors.Join(why, err), Killed: !died})
}

// rolledBack records that the copy before the one that failed is started.
func (s *Set) rolledBack(p *Process, from Side, err error) {
	if p != nil {
		from = p.Side()
	}
	swap := Swap{
		At: time.Now().UTC(), From: from, To: Side{SHA256: s.Record.LastGood}, Rollback: true,
		Why: s.Record.Refused[from.SHA256],
	}
	s.failures = 0
	s.Record.Swapped(swap)
	s.Report(Event{What: RolledBack, Process: p, Swap: &swap, Err: err})
}

// refuseOnProbation refuses a copy that failed while on probation, so that the copy before it is chosen next. It
// returns whether it did. p is nil if it could not be started.
func (s *Set) refuseOnProbation(p *Process, sha string, why error) bool {
	if !s.MayGoBack(p, sha) {
		return false
	}
	text := why.Error()
	if p != nil {
		if s.Record.Pinned == sha {
			s.Record.Pinned = p.Run.PinnedBefore
		}
		if !p.Run.TookOver.IsZero() {
			text = fmt.Sprintf("%s after it had taken over: %v", time.Since(p.Run.TookOver).Round(time.Millisecond), why)
		}
	}
	s.Record.Refuse(sha, text)
	return true
}

// MayGoBack reports whether a failure of a copy goes back to the copy before it. p is nil if it could not be started.
func (s *Set) MayGoBack(p *Process, sha string) bool {
	return sha != "" && sha != s.Record.LastGood && s.CanGoBack() && s.OnProbation(p, sha, s.failures)
}

// wait reports a failure and waits until the next try. The wait is longest if only an operator can correct it.
func (s *Set) wait(ctx context.Context, e Event) {
	e.Wait, e.Times = s.pause.NextBackOff(), s.failures
	if errors.As(e.Err, &Permanent{}) {
		e.Wait = s.Restart.Max
	}
	s.Report(e)
	timer := time.NewTimer(e.Wait)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.rechecks:
			s.clearDrained()
			if src, err := s.Choose(ctx, nil); err != nil || src.SHA256 == s.LastTried {
				continue
			}
		case r := <-s.requests:
			_, err := r.do(ctx, nil)
			r.done <- err
			if err != nil {
				continue
			}
		case <-ctx.Done():
			return
		}
		s.Report(Event{What: Waking})
		return
	}
}

// shutDown leaves the process to the next host, or stops everything. p is nil if none serves.
func (s *Set) shutDown(ctx context.Context, p *Process) error {
	if p != nil {
		s.Lost(ctx, p, nil)
	}
	stops, e := s.Stops(p), Event{What: Stopped, Process: p}
	if !stops && p != nil {
		e.What = Detached
	}
	if stops && p != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.StopTimeout)
		defer cancel()
		// Do not wait for the users: the process finishes its calls itself, and some callers hold a stream forever.
		e.Err = p.Conn.Stop(stop)
	}
	if stops && s.ready {
		e.Err = errors.Join(e.Err, s.ClearAll(ctx, s.StopTimeout))
	}
	if p != nil {
		p.Conn.Close()
		p.Release()
	}
	s.Report(e)
	return e.Err
}
