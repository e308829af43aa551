package supervisor

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/internal/notify"
)

// instance is one plugin, whose processes a managed.Set runs: instance decides what runs (hooks.go, binaries.go),
// starts and reaches it (transport.go), and tells others. The set's goroutine alone writes the record and calls
// what changes it; others read the current generation and the status, and send requests (operator.go).
type instance struct {
	sup      *Supervisor
	name     string
	wanted   Plugin          // its configuration
	spec     Plugin          // the same, with the settings of its processes (see settings.go)
	unfit    map[string]bool // the copies for which the settings of wanted are refused
	tried    string          // the copy of the attempt that LastError is of; empty: of the end of a process
	path     string          // of a file that is only verified
	log      hclog.Logger
	logPath  string
	rec      record
	loaded   bool         // rec was read from disk
	procs    *managed.Set // its processes
	binaries *binaries

	current atomic.Pointer[generation] // nil while no process serves
	canary  atomic.Pointer[canary]     // nil if there is none

	ctx     context.Context    // of the set
	stop    context.CancelFunc // ends it
	ended   sync.WaitGroup     // it has ended
	removed atomic.Bool        // by an operator: end the process too
	gone    chan struct{}      // closed when the plugin has been removed

	mu      sync.Mutex
	status  Status
	claims  []string         // identities: of the serving process, and of one that starts
	served  bool             // a process of this plugin serves or has served
	changed notify.Broadcast // notified when status or current changes
}

func newInstance(s *Supervisor, name string, spec Plugin) *instance {
	i := &instance{
		sup: s, name: name, wanted: spec, spec: spec, unfit: map[string]bool{},
		log:     s.log.Named(name),
		logPath: filepath.Join(s.dir, "logs", name+".log"),
		gone:    make(chan struct{}),
		status:  Status{Name: name, State: Starting},
	}
	i.binaries = &binaries{instance: i, proofs: map[string]proven{}}
	i.manage()
	i.recall()
	return i
}

// manage makes the set of the plugin's processes.
func (i *instance) manage() {
	i.procs = managed.New(managed.Config{
		Name: i.name, Store: i.sup.store, Record: &i.rec.Record,
		Save:  func() error { return i.rec.save(i.sup.dir) },
		Admit: i.binaries.admit, LogPath: i.logPath, Log: i.log,
		StartTimeout: i.sup.cfg.StartTimeout, StopTimeout: i.sup.cfg.StopTimeout, Restart: i.sup.cfg.Restart,
		Transport: transport{i},
		Hooks: managed.Hooks{
			Ready: func() (err error) {
				i.rec, err = loadRecord(i.sup.dir, i.name)
				i.loaded = err == nil
				return err
			},
			Choose: i.chooseNext, Same: i.same, Examine: i.examine, Served: i.serves, OnProbation: i.onProbation,
			StartFailed: i.startFailed, Stops: i.stops, Confirmed: i.sup.cfg.Confirmed,
			Inherited: i.inherited, Forget: i.forgetRun, NewMeter: i.newMeter,
			Report: i.report,
		},
	})
}

// forgetRun removes the sockets and the cursor of a process that is gone.
func (i *instance) forgetRun(run *managed.Run) error {
	var err error
	if run.Process != nil {
		err = errors.Join(removeCursor(i.sup.dir, run.Process.Token), i.sup.cfg.Services.Release(i.name, run.Process.Token))
	}
	if run.Dir != "" {
		err = errors.Join(err, os.RemoveAll(run.Dir))
	}
	return err
}

// announce reports the generation that callers use now.
func (i *instance) announce(gen *generation, how EventType, message string) {
	i.holds(gen.identity)
	copyRecord := i.copyRecord()
	i.set(how, message, func(s *Status) {
		s.State, s.Message, s.DuplicateOf = Running, "", ""
		s.Kind, s.Version, s.SHA256 = gen.Run.Kind, gen.Run.Version, gen.Run.SHA256
		s.PID, s.Generation, s.StartedAt = gen.PID(), gen.Run.Number, gen.Run.StartedAt
		s.NextTry = time.Time{}
		if !i.unfit[gen.Run.SHA256] {
			s.ConfigProblem = ""
		}
		if how != EventStarted || i.tried != "" {
			s.LastError = "" // of what was replaced, or of an earlier attempt
		}
		copyRecord(s)
		if c := i.canary.Load(); c != nil && c.gen == gen {
			i.canary.Store(nil) // it was promoted: whoever sees that there is none sees the swap
		}
	})
	i.tried = ""
	gen.report(gen.firstHealth)
	if err := i.sup.collect(); err != nil {
		i.log.Warn("old copies of plugins could not be removed", "error", err)
	}
}

// copyRecord returns what copies the parts of the record that the status shows.
func (i *instance) copyRecord() func(*Status) {
	versions := i.binaries.versions()
	return func(s *Status) {
		s.Pinned, s.LastGood, s.Versions = i.rec.Pinned, i.rec.LastGood, versions
		s.Refused, s.Swaps = maps.Clone(i.rec.Refused), slices.Clone(i.rec.Swaps)
	}
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
	i.logEvent(what, message, now)
	if i.sup.cfg.OnEvent != nil {
		i.sup.cfg.OnEvent(Event{Time: time.Now(), Type: what, Message: message, Status: now})
	}
}

// logEvent writes an event into the host's log.
func (i *instance) logEvent(what EventType, message string, s Status) {
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
		s.Users = gen.Count()
		s.Calls, s.FailedCalls = gen.Calls()
		s.Degraded = gen.outcomes.degraded()
		if c != nil {
			s.Canary = c.snapshot(gen)
		}
	}
	return s
}

// acquire waits for the serving generation and acquires it; forCall, it is the canary if that gets the call.
func (i *instance) acquire(ctx context.Context, forCall bool) (*generation, func(), error) {
	if c := i.canary.Load(); forCall && c != nil && c.takes() && !c.gen.Ended() {
		if release, ok := c.gen.Acquire(); ok {
			return c.gen, release, nil
		}
	}
	for {
		changed := i.changed.Wait()
		// A process that has just died is still current for a moment.
		if gen := i.current.Load(); gen != nil && !gen.Ended() {
			if release, ok := gen.Acquire(); ok {
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
