package supervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/internal/notify"
)

// instance runs one plugin. Its one goroutine alone starts and watches the plugin's processes and writes the
// record. Others read the current generation and the status, and send requests (see operator.go) and rechecks.
type instance struct {
	sup            *Supervisor
	name           string
	wanted         Plugin          // its configuration
	spec           Plugin          // the same, with the settings of its processes (see settings.go)
	unfit          map[string]bool // the copies for which the settings of wanted are refused
	path           string          // of a file that is only verified
	log            hclog.Logger
	logPath        string
	rec            record
	loaded         bool              // rec was read from disk
	sums           map[string]hashed // checksums of files of the plugin directory
	proofs         map[string]proven // and their signatures
	lastTried      string            // the copy that was started last
	unhealthySince time.Time         // since when the serving process has been unhealthy; zero: it is healthy
	degraded       bool              // it fails more calls than the generation before; reported

	requests chan request
	rechecks chan struct{} // holds a token when another binary may have to run
	again    *time.Timer   // a recheck without a change of the plugin directory

	current atomic.Pointer[generation] // nil while no process serves
	canary  atomic.Pointer[canary]     // nil if there is none

	ctx, tail      context.Context    // of the two goroutines of launchInstance
	stop, stopTail context.CancelFunc // end them
	ended, tailed  sync.WaitGroup     // they have ended
	removed        atomic.Bool        // by an operator: end the process too
	gone           chan struct{}      // closed when the plugin has been removed

	mu      sync.Mutex
	status  Status
	claims  []string         // identities: of the serving process, and of one that starts
	served  bool             // a process of this plugin serves or has served
	drained []*generation    // drained, but still in the record
	changed notify.Broadcast // notified when status or current changes
}

func newInstance(s *Supervisor, name string, spec Plugin) *instance {
	i := &instance{
		sup: s, name: name, wanted: spec, spec: spec, unfit: map[string]bool{},
		log:     s.log.Named(name),
		logPath: filepath.Join(s.dir, "logs", name+".log"),
		sums:    map[string]hashed{}, proofs: map[string]proven{},
		requests: make(chan request), rechecks: make(chan struct{}, 1),
		gone:   make(chan struct{}),
		status: Status{Name: name, State: Starting},
	}
	i.again = time.AfterFunc(time.Hour, i.recheck)
	i.again.Stop()
	i.recall()
	return i
}

// recheck makes the instance check again which binary should run.
func (i *instance) recheck() {
	select {
	case i.rechecks <- struct{}{}:
	default: // a recheck is pending already
	}
}

// run keeps the plugin up until ctx ends, and then detaches or stops it.
func (i *instance) run(ctx context.Context) {
	pause := &backoff.ExponentialBackOff{
		InitialInterval:     i.sup.cfg.Restart.Min,
		RandomizationFactor: backoff.DefaultRandomizationFactor,
		Multiplier:          2,
		MaxInterval:         i.sup.cfg.Restart.Max,
	}
	pause.Reset()
	for ctx.Err() == nil {
		gen, how, err := i.bring(ctx)
		if err != nil {
			i.failed(ctx, err, pause)
			continue
		}
		up := time.Now()
		i.publish(ctx, gen, how)
		gen, why := i.serve(ctx, gen)
		if ctx.Err() != nil {
			i.shutDown(ctx, gen)
			return
		}
		if time.Since(up) >= i.sup.cfg.Restart.Stable {
			pause.Reset()
		}
		i.lost(ctx, gen, why, pause)
	}
	i.stopped(ctx)
}

// stopped ends an instance that has no generation.
func (i *instance) stopped(ctx context.Context) {
	var err error
	if i.stopsPlugin() && i.loaded {
		err = i.clearAll(ctx, i.sup.cfg.StopTimeout) // a process that was just being reattached
	}
	i.set(EventStopped, errorText(err), func(s *Status) { s.State = Stopped })
}

// bring gets a process of the plugin up: the one that an earlier host left, or a new one.
func (i *instance) bring(ctx context.Context) (gen *generation, how EventType, err error) {
	if !i.loaded {
		// Without the record we do not know what runs, so nothing may be started.
		if i.rec, err = loadRecord(i.sup.dir, i.name); err != nil {
			return nil, "", permanent{err}
		}
		i.loaded = true
		if gen, err = i.reattach(ctx); gen != nil || err != nil {
			return gen, EventReattached, err
		}
	}
	// Everything in the record must have ended before another process is started.
	if err := i.clearAll(ctx, i.sup.cfg.StopTimeout); err != nil {
		return nil, "", err
	}
	src, err := i.choose()
	if err != nil {
		i.removeIfUnknown(ctx, err)
		return nil, "", err
	}
	if id := i.rec.Identities[src.sha]; id != "" {
		if err := i.claim(ctx, id); err != nil {
			return nil, "", err
		}
	}
	i.use(src.sha)
	if gen, err = i.launch(ctx, src); err != nil && ctx.Err() == nil && i.refuseSettings(src.sha, err) {
		i.use(src.sha)
		gen, err = i.launch(ctx, src)
	}
	if err != nil {
		return nil, "", err
	}
	i.serves(gen.record, src)
	return gen, EventStarted, i.rec.save(i.sup.dir)
}

// publish gives callers access to a generation.
func (i *instance) publish(ctx context.Context, gen *generation, how EventType) {
	i.current.Store(gen)
	gen.events = i.follow(ctx, gen.conn, gen.record, gen.run.proc.Done())
	i.announce(gen, how, gen.describe()+" is up")
}

// removeIfUnknown removes a plugin that is neither in the plugin directory nor configured, and never served.
func (i *instance) removeIfUnknown(ctx context.Context, err error) {
	m := (*missing)(nil)
	if !errors.As(err, &m) || m.kept || i.sup.configured(i.name) || i.sup.unsettled.Load() || ctx.Err() != nil {
		return
	}
	i.sup.running.Go(func() { _ = i.sup.forget(i) }) // what it reports is in the log
}

// announce reports the generation that callers use now.
func (i *instance) announce(gen *generation, how EventType, message string) {
	i.unhealthySince, i.degraded = time.Time{}, false
	i.holds(gen.identity)
	copyRecord := i.copyRecord()
	i.set(how, message, func(s *Status) {
		s.State, s.Message, s.DuplicateOf = Running, "", ""
		s.Kind, s.Version, s.SHA256 = gen.kind, gen.version, gen.sha
		s.PID, s.Generation, s.StartedAt = gen.pid, gen.number, gen.startedAt
		s.NextTry = time.Time{}
		if !i.unfit[gen.sha] {
			s.ConfigProblem = ""
		}
		if how == EventSwapped {
			s.LastError = "" // of what was replaced
		}
		copyRecord(s)
		if c := i.canary.Load(); c != nil && c.gen == gen {
			i.canary.Store(nil) // it was promoted: whoever sees that there is none sees the swap
		}
	})
	i.health(gen.firstHealth)
	if err := i.sup.collect(); err != nil {
		i.log.Warn("old copies of plugins could not be removed", "error", err)
	}
}

// copyRecord returns what copies the parts of the record that the status shows.
func (i *instance) copyRecord() func(*Status) {
	versions := i.versions()
	return func(s *Status) {
		s.Pinned, s.LastGood, s.Versions = i.rec.Pinned, i.rec.LastGood, versions
		s.Refused, s.Swaps = maps.Clone(i.rec.Refused), slices.Clone(i.rec.Swaps)
	}
}

// serve watches the serving generation until it is lost, and replaces it when another binary should run. It
// returns the generation that served last, and why it was lost.
func (i *instance) serve(ctx context.Context, gen *generation) (*generation, error) {
	i.clearOthers(ctx, gen)
	i.recheck() // another binary may have come while no host ran
	for {
		what := i.watch(ctx, gen)
		switch {
		case what.lost != nil && what.alive && i.refuseOnProbation(gen, what.lost):
		case what.lost != nil || ctx.Err() != nil:
			return gen, what.lost
		case what.canaryLost:
			if err := i.endCanary(ctx, gen, "", nil); err != nil {
				i.log.Error("the record of a canary could not be written", "error", err)
			}
			continue
		case what.request != nil:
			next, err := what.request.do(ctx, i, gen)
			if next != nil {
				gen = next
			}
			what.request.done <- err
			continue
		}
		i.clearDrained(ctx)
		next, err := i.replace(ctx, gen, nil)
		switch {
		case next != nil:
			gen = next
			if err != nil {
				i.log.Error("the record of a swap could not be written", "error", err)
			}
		case what.alive && err != nil:
			return gen, what.lost // there is nothing to go back to: a restart may help
		}
	}
}

// lost takes a generation away from callers, ends what is left of it, and waits until the next start is due.
func (i *instance) lost(ctx context.Context, gen *generation, why error, pause *backoff.ExponentialBackOff) {
	lost := i.endCanary(ctx, gen, "the process that serves was lost", nil)
	i.current.Store(nil)
	gen.retire()
	i.set("", "", func(s *Status) { s.State, s.LastError = BackingOff, why.Error() })
	died := gen.ended()
	grace := i.sup.cfg.StopTimeout
	if died || isOverLimit(why) {
		grace = failedStop // for what the process left behind, or before it uses even more
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	gen.health.close()
	err := gen.run.stop(stop)
	if !died && gen.ended() {
		why = fmt.Errorf("%w; the process then ended: %s", why, gen.run.proc.Exit())
	}
	rollBack := i.refuseOnProbation(gen, why)
	err = errors.Join(why, err, lost, i.clear(ctx, gen.record, grace))
	// Callers still use the dead connection. If it were closed under them they would get Canceled, as if they had
	// given up themselves.
	i.sup.draining.Go(func() {
		gen.drain(i.sup.cfg.StopTimeout, i.sup.stopDraining)
		gen.close()
	})
	if rollBack {
		i.rec.swapped(Swap{
			At: time.Now().UTC(), From: gen.side(), To: Side{SHA256: i.rec.LastGood}, Rollback: true,
			Why: i.rec.Refused[gen.sha],
		})
		i.set(EventRolledBack, fmt.Sprintf("%s ended soon after it had taken over, the version before it is started: %v",
			gen.describe(), err), func(s *Status) {
			s.State, s.LastError, s.PID = Starting, err.Error(), 0
			s.Restarts++
		})
		return
	}
	i.wait(ctx, EventEnded, err, pause.NextBackOff())
}

// failed waits after a failed start.
func (i *instance) failed(ctx context.Context, err error, pause *backoff.ExponentialBackOff) {
	if ctx.Err() != nil {
		return // it was cancelled
	}
	i.wait(ctx, EventFailed, err, pause.NextBackOff())
}

// wait reports err and waits until the next try. The wait is longest if only an operator can correct the failure.
func (i *instance) wait(ctx context.Context, what EventType, err error, d time.Duration) {
	state := BackingOff
	if p := (permanent{}); errors.As(err, &p) {
		state, d = Failed, i.sup.cfg.Restart.Max
	}
	rival := isDuplicate(err)
	if rival != "" {
		what = EventFile
		if i.snapshot().LastError == err.Error() {
			what = "" // it was reported
		}
	}
	next := time.Now().Add(d)
	i.set(what, err.Error(), func(s *Status) {
		s.State, s.LastError, s.NextTry, s.PID, s.Message = state, err.Error(), next, 0, ""
		s.DuplicateOf = rival
		if what == EventEnded {
			s.Restarts++
		}
	})
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-i.rechecks:
			i.clearDrained(ctx)
			src, err := i.choose()
			i.removeIfUnknown(ctx, err)
			if err != nil || src.sha == i.lastTried && !i.rivalIsGone(rival) {
				continue
			}
		case o := <-i.requests:
			_, err := o.do(ctx, i, nil)
			o.done <- err
			if err != nil {
				continue
			}
		case <-ctx.Done():
			return
		}
		i.set("", "", func(s *Status) { s.State, s.NextTry = Starting, time.Time{} })
		return
	}
}

// rivalIsGone says whether the plugin that this one was a duplicate of has been removed. An empty name: there is none.
func (i *instance) rivalIsGone(name string) bool { return name != "" && i.sup.instance(name) == nil }

// stopsPlugin says whether the process ends with this instance.
func (i *instance) stopsPlugin() bool { return i.sup.stopsPlugins() || i.removed.Load() }

// shutDown detaches or stops the plugin when the host closes.
func (i *instance) shutDown(ctx context.Context, gen *generation) {
	if err := i.endCanary(ctx, gen, "the agent stopped", nil); err != nil {
		i.log.Error("the record of a canary could not be written", "error", err)
	}
	i.current.Store(nil)
	gen.retire()
	if !i.stopsPlugin() && (!gen.started || !i.sup.undo.Load()) {
		gen.detach()
		i.set(EventStopped, "left running for the next host", func(s *Status) { s.State = Stopped })
		return
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), i.sup.cfg.StopTimeout)
	defer cancel()
	// Do not wait for the users: the plugin finishes its calls itself, and some callers hold a stream forever.
	err := errors.Join(gen.stop(stop), i.clearAll(ctx, i.sup.cfg.StopTimeout))
	i.set(EventStopped, errorText(err), func(s *Status) { s.State, s.PID, s.LastError = Stopped, 0, errorText(err) })
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// set changes the status, wakes those who wait for a change, and reports the event what unless it is empty.
func (i *instance) set(what EventType, message string, change func(*Status)) {
	if what != "" {
		i.sup.metrics.events.WithLabelValues(i.name, string(what)).Inc() // whoever sees the change finds it counted
	}
	i.mu.Lock()
	change(&i.status)
	i.mu.Unlock()
	i.changed.Notify()
	i.sup.changed.Notify()
	if what == "" {
		return
	}
	now := i.snapshot()
	i.report(what, message, now)
	if i.sup.cfg.OnEvent != nil {
		i.sup.cfg.OnEvent(Event{Time: time.Now(), Type: what, Message: message, Status: now})
	}
}

// report writes an event into the host's log.
func (i *instance) report(what EventType, message string, s Status) {
	fields := []any{"event", string(what), "state", string(s.State)}
	if s.PID != 0 {
		fields = append(fields, "pid", s.PID, "generation", s.Generation)
	}
	if message != "" {
		fields = append(fields, "message", message)
	}
	switch what {
	case EventFailed, EventEnded:
		i.log.Error("plugin", append(fields, "next_try", s.NextTry.Format(time.RFC3339), "restarts", s.Restarts)...)
	case EventUnhealthy, EventDegraded, EventSwapFailed, EventConfigRefused, EventRolledBack, EventCanaryEnded, EventBusy,
		EventFile:
		i.log.Warn("plugin", fields...)
	default:
		i.log.Info("plugin", fields...)
	}
}

// snapshot returns a copy of the status.
func (i *instance) snapshot() Status {
	i.mu.Lock()
	s, c := i.status, i.canary.Load()
	i.mu.Unlock()
	if gen := i.current.Load(); gen != nil {
		s.Users = gen.userCount()
		s.Calls, s.FailedCalls = gen.outcomes.answered()
		s.Degraded = gen.outcomes.degraded()
		if c != nil {
			s.Canary = c.snapshot(gen)
		}
	}
	return s
}

// acquire waits for the serving generation and acquires it; forCall, it is the canary if that gets the call.
func (i *instance) acquire(ctx context.Context, forCall bool) (*generation, func(), error) {
	if c := i.canary.Load(); forCall && c != nil && c.takes() && !c.gen.ended() {
		if release, ok := c.gen.acquire(); ok {
			return c.gen, release, nil
		}
	}
	for {
		changed := i.changed.Wait()
		// A process that has just died is still current for a moment.
		if gen := i.current.Load(); gen != nil && !gen.ended() {
			if release, ok := gen.acquire(); ok {
				return gen, release, nil
			}
		}
		select {
		case <-changed:
		case <-i.sup.closing:
			return nil, nil, ErrClosed
		case <-i.gone:
			return nil, nil, i.sup.unknown(i.name)
		case <-ctx.Done():
			return nil, nil, &unavailable{status: i.snapshot(), cause: context.Cause(ctx)}
		}
	}
}
