package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/internal/printable"
)

// Swap is one change, or attempted change, of the process that callers use.
type Swap = managed.Swap

// Side is one end of a swap.
type Side = managed.Side

// of returns the generation of a process, or nil.
func of(p *managed.Process) *generation {
	if p == nil {
		return nil
	}
	gen, _ := p.Conn.(*generation)
	return gen
}

// chooseNext returns the binary that should run, and chooses its settings. Without one that serves, it makes sure
// that no other plugin has the identity that the binary had before; a plugin that is neither in the plugin
// directory nor configured, and never served, is removed.
func (i *instance) chooseNext(ctx context.Context, p *managed.Process) (managed.Source, error) {
	src, err := i.binaries.choose()
	if m := (*missing)(nil); p == nil && errors.As(err, &m) && !m.kept && !i.sup.configured(i.name) &&
		!i.sup.found.unsettled.Load() && ctx.Err() == nil {
		i.sup.running.Go(func() { _ = i.sup.forget(i) }) // what it reports is in the log
	}
	if id := i.rec.Identities[src.SHA256]; err == nil && p == nil && id != "" {
		err = i.claim(ctx, id)
	}
	if err == nil {
		i.use(src.SHA256)
	}
	return src, err
}

// same reports whether a process runs a binary, with the instance's settings.
func (i *instance) same(p *managed.Process, src managed.Source) bool {
	return src.SHA256 == p.Run.SHA256 && (p.Run.Settings == i.settingsDigest() || i.unfit[src.SHA256])
}

// examine returns why a process must not take over.
func (i *instance) examine(ctx context.Context, p, next *managed.Process) error {
	first := of(next).firstHealth
	switch {
	case p != nil && next.Run.Kind != p.Run.Kind:
		return managed.NewPermanent(fmt.Errorf("it is of kind %s, and what runs is of kind %s", next.Run.Kind, p.Run.Kind))
	case !first.healthy:
		return fmt.Errorf("it reports that it is unhealthy: %s", first.message)
	}
	return i.probe(ctx, of(next))
}

// probe asks the host whether a process could do the plugin's work.
func (i *instance) probe(ctx context.Context, gen *generation) error {
	if i.sup.cfg.Probe == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, i.sup.cfg.StartTimeout)
	defer cancel()
	if err := i.sup.cfg.Probe(ctx, i.name, gen.Run.Kind, gen.conn); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	return nil
}

// serves records that a copy serves, with the instance's settings.
func (i *instance) serves(p *managed.Process, src managed.Source) (undo func()) {
	if src.Path != "" {
		i.rec.File = filepath.Base(src.Path)
	}
	i.rec.KeepNewest(cmp.Or(i.spec.KeepVersions, defaultKeepVersions))
	was := i.rec.Settings
	known := maps.Clone(was)
	maps.DeleteFunc(known, func(sha string, _ settings) bool { return !i.rec.MayServe(sha) })
	if known == nil {
		known = map[string]settings{}
	}
	known[p.Run.SHA256] = i.spec.settings()
	i.rec.Settings = known
	return func() { i.rec.Settings = was }
}

// onProbation reports whether a generation took over so recently that a failure goes back to the copy before it: until
// the window has passed and it has answered some calls, but at most ten times the window.
func (i *instance) onProbation(p *managed.Process, sha string, _ int) bool {
	if p == nil || p.Run.TookOver.IsZero() || i.rec.Pinned == sha && p.Run.PinnedBefore == "" {
		return false
	}
	window, since := cmp.Or(i.spec.RollbackWindow, i.sup.cfg.RollbackWindow), time.Since(p.Run.TookOver)
	calls, _ := of(p).Calls()
	return since <= window || calls < provenBy && since <= 10*window
}

// startFailed refuses changed settings with which a process could not be started.
func (i *instance) startFailed(src managed.Source, err error) bool {
	if !i.refuseSettings(src.SHA256, err) {
		return false
	}
	i.use(src.SHA256)
	return true
}

// stops reports whether the process ends with this instance.
func (i *instance) stops(p *managed.Process) bool {
	if !managed.IsConfirmed(i.sup.cfg.Confirmed) {
		return p != nil && !p.Found
	}
	return i.sup.stops.Load() || i.removed.Load()
}

// inherited reads the last events of a process that an earlier host has left, and ends it.
func (i *instance) inherited(ctx context.Context, p *managed.Process, run *managed.Run) {
	i.endWithEvents(ctx, run)
	if run.Canary != 0 {
		i.endedWithHost(of(p), run)
	}
}

// report shows what has happened in the status.
func (i *instance) report(e managed.Event) {
	gen := of(e.Process)
	switch e.What {
	case managed.Up:
		how := EventStarted
		if gen.Found {
			how = EventReattached
		}
		i.announce(gen, how, gen.describe()+" is up")
	case managed.Waking:
		i.set("", "", waking)
	case managed.Swapped:
		i.swapped(gen, e.Swap)
	case managed.NotSwapped:
		i.holds(gen.identity)
		copyRecord := i.copyRecord()
		if e.Retried { // ConfigProblem says why
			i.set("", "", copyRecord)
			return
		}
		i.tried = e.Swap.To.SHA256
		i.set(EventSwapFailed, fmt.Sprintf("generation %d goes on: %v", gen.Run.Number, e.Err), func(s *Status) {
			s.LastError = e.Err.Error()
			copyRecord(s)
		})
	case managed.RolledBack:
		i.tried = ""
		i.set(EventRolledBack, fmt.Sprintf("%s ended soon after it had taken over, the version before it is started: %v",
			gen.describe(), e.Err), func(s *Status) {
			s.State, s.LastError, s.PID = Starting, e.Err.Error(), 0
			s.Restarts++
		})
	case managed.Ended:
		i.waits(EventEnded, e)
	case managed.Failed:
		i.waits(EventFailed, e)
	case managed.Retired:
		i.set("", "", func(s *Status) { s.Draining++ })
	case managed.Drained:
		i.set("", "", func(s *Status) { s.Draining-- })
	case managed.Detached:
		i.set(EventStopped, "left running for the next host", func(s *Status) { s.State = Stopped })
	case managed.Stopped:
		if i.stops(e.Process) {
			e.Err = errors.Join(e.Err, i.sup.cfg.Services.Release(i.name, ""))
		}
		i.set(EventStopped, errorText(e.Err), func(s *Status) {
			if s.State = Stopped; gen != nil {
				s.PID, s.LastError = 0, errorText(e.Err)
			}
		})
	}
}

// waking shows that a process is started now.
func waking(s *Status) { s.State, s.NextTry = Starting, time.Time{} }

// swapped reports that gen serves instead of another one.
func (i *instance) swapped(gen *generation, swap *Swap) {
	what, why := EventSwapped, ""
	switch {
	case swap.Rollback:
		what, why = EventRolledBack, ": "+swap.Why
	case swap.Restart:
		what = EventRestarted
	case swap.Canary != 0:
		what = EventPromoted
	}
	from := describe(swap.From)
	i.announce(gen, what, fmt.Sprintf("%s to %s in %v, the old process finishes %s%s",
		from, gen.describe(), swap.Took.Round(time.Millisecond), printable.Count(swap.Carried, "call"), why))
}

// startNow ends the wait before the next start.
func (i *instance) startNow() {
	_ = i.procs.Do(i.ctx, func(context.Context, *managed.Process) (*managed.Process, error) { return nil, nil })
}

// waits reports why no process runs, and when the next one is started.
func (i *instance) waits(what EventType, e managed.Event) {
	state := BackingOff
	if i.tried = ""; what == EventFailed {
		i.tried = "a start"
	}
	if errors.As(e.Err, &managed.Permanent{}) {
		state = Failed
	}
	rival := isDuplicate(e.Err)
	if rival != "" {
		what = EventFile
		if i.snapshot().LastError == e.Err.Error() {
			what = "" // it was reported
		}
	}
	i.set(what, e.Err.Error(), func(s *Status) {
		s.State, s.LastError, s.NextTry, s.PID, s.Message = state, e.Err.Error(), time.Now().Add(e.Wait), 0, ""
		s.DuplicateOf, s.Mend = rival, mend(e.Err)
		if what == EventEnded {
			s.Restarts++
		}
	})
	if rival != "" && i.sup.instance(rival) == nil { // it was removed meanwhile
		i.sup.running.Go(i.startNow)
	}
}
