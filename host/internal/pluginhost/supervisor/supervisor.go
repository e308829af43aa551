// Package supervisor runs the plugins of a host: it finds them in the plugin directory, verifies and starts them,
// watches their health, restarts them, and finds them again after a restart of the host. Callers get a connection
// with Acquire. The package knows no kinds: the catalog makes typed clients of its connections.
//
// Invariants: no plugin runs twice and none is left behind, whenever the host is killed; what was verified is what
// runs; a failure ends only the process that failed; and a broken plugin delays neither the host's start nor the
// other plugins. DESIGN.md explains how.
package supervisor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/internal/notify"
	"github.com/pannier/pannier/sdk/wire"
)

// Supervisor runs the plugins of one host. Make it with New, then Open and Close it once.
type Supervisor struct {
	*metrics
	cfg       Config
	log       hclog.Logger
	dir       string // <DataDir>/plugins
	runDir    string
	authority *wire.Authority
	store     *managed.Store
	found     directory

	imu       sync.RWMutex
	instances map[string]*instance
	plugins   atomic.Pointer[[]Plugin] // the configured ones; replaced by Reload

	ctx     context.Context    // of the instances
	cancel  context.CancelFunc // ends the instances
	running sync.WaitGroup     // the instances

	silence, unwell, look time.Duration // shorter in tests
	busy                  managed.BusyRule

	stops   atomic.Bool // StopWithHost
	closing chan struct{}
	close   sync.Once

	changed notify.Broadcast // the status of any plugin
}

// New makes a supervisor. It does nothing before Open.
func New(cfg Config) *Supervisor {
	cfg = cfg.withDefaults()
	s := &Supervisor{
		cfg: cfg, log: cfg.Logger, dir: filepath.Join(cfg.DataDir, "plugins"),
		found:   directory{path: cfg.PluginDir},
		silence: defaultSilence, unwell: defaultUnwell, look: defaultLook, busy: defaultBusy,
		closing: make(chan struct{}),
	}
	s.store = managed.NewStore(s.dir)
	s.metrics = newMetrics(s.Status)
	s.plugins.Store(&cfg.Plugins)
	s.stops.Store(cfg.StopPlugins || cfg.DieWithHost)
	return s
}

// Open finds the plugins and begins to start them, each independently. It fails only if
// no plugin could work; a plugin that does not come up shows in Status.
func (s *Supervisor) Open(ctx context.Context) error {
	if err := s.cfg.validate(); err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	if err := s.found.read(func(file, reason string) {
		s.log.Warn("a file of the plugin directory is not used", "file", file, "reason", reason)
	}); err != nil {
		return err
	}
	recorded, err := recordedNames(s.dir)
	if err != nil {
		return err
	}
	if err := s.sweep(recorded); err != nil {
		return err
	}
	s.start(context.WithoutCancel(ctx), recorded)
	return nil
}

// spec returns the configuration of a plugin, or the defaults if it has none.
func (s *Supervisor) spec(name string) Plugin { return specIn(*s.plugins.Load(), name) }

func specIn(plugins []Plugin, name string) Plugin {
	n := slices.IndexFunc(plugins, func(p Plugin) bool { return p.Name == name })
	if n < 0 {
		return Plugin{Name: name}
	}
	return plugins[n]
}

// configured reports whether a plugin has a configuration.
func (s *Supervisor) configured(name string) bool {
	return slices.ContainsFunc(*s.plugins.Load(), func(p Plugin) bool { return p.Name == name })
}

func (s *Supervisor) instance(name string) *instance {
	s.imu.RLock()
	defer s.imu.RUnlock()
	return s.instances[name]
}

func (s *Supervisor) closed() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// start starts the goroutines: one for each plugin, one for the plugin directory, and
// one for each record of a process that was only verified. A recorded plugin whose file is gone runs from its copy.
func (s *Supervisor) start(parent context.Context, recorded []string) {
	s.ctx, s.cancel = context.WithCancel(parent)
	s.imu.Lock()
	s.instances = map[string]*instance{}
	names := s.found.startable()
	for _, p := range *s.plugins.Load() {
		names = append(names, p.Name)
	}
	for _, name := range recorded {
		if goodName().MatchString(name) {
			names = append(names, name)
		} else {
			s.running.Go(func() { s.retireRecord(s.ctx, name) })
		}
	}
	for _, name := range names { // all, before one of them starts: they must know of each other
		s.instances[name] = newInstance(s, name, s.spec(name))
	}
	for _, i := range s.instances {
		s.launchInstance(i)
	}
	s.imu.Unlock()
	s.running.Go(func() { s.found.watch(s.ctx, s.look, s.rescan) })
}

// launch begins the instance of a plugin, whatever instance the plugin had before. The caller holds imu.
func (s *Supervisor) launch(name string) *instance {
	i := newInstance(s, name, s.spec(name))
	s.instances[name] = i
	s.launchInstance(i)
	return i
}

// launchInstance starts an instance's goroutine.
func (s *Supervisor) launchInstance(i *instance) {
	i.ctx, i.stop = context.WithCancel(s.ctx)
	i.ended.Add(1)
	s.running.Go(func() {
		defer i.ended.Done()
		_ = i.procs.Run(i.ctx) // the status has the error
	})
}

// retireRecord ends a process that an earlier host verified.
func (s *Supervisor) retireRecord(ctx context.Context, name string) {
	i := newInstance(s, name, Plugin{Name: name})
	var err error
	if i.rec, err = loadRecord(s.dir, name); err == nil {
		if err = i.procs.ClearAll(ctx, s.cfg.StopTimeout); err == nil {
			err = os.Remove(recordPath(s.dir, name))
		}
	}
	if err != nil {
		i.log.Error("a process that was verified could not be ended", "error", err)
		return
	}
	i.log.Info("ended a process that was verified")
}

// Close detaches the plugins, which keep running, or stops them, as the configuration says, and waits for
// everything that Open started.
func (s *Supervisor) Close() error {
	s.close.Do(func() {
		s.imu.Lock() // no plugin is added after this
		close(s.closing)
		s.imu.Unlock()
		if s.cancel == nil {
			return // not opened
		}
		s.cancel()
		s.running.Wait()
		if s.runDir != filepath.Join(s.dir, "run") {
			_ = os.Remove(s.runDir) // outside the data directory; removed if empty
		}
	})
	return nil
}

// StopWithHost reports whether Close stops the plugins, whatever the configuration says; else the next host finds them.
func (s *Supervisor) StopWithHost(stop bool) { s.stops.Store(stop) }

// Handle is an acquired generation of a plugin.
type Handle struct {
	// Conn counts the calls. Its errors wrap ErrReplaced when a call may be repeated on a new handle.
	Conn    grpc.ClientConnInterface
	Kind    string // such as "storage.v1"
	Version string
	// Retired is closed when another generation has taken over. Calls can still finish; a stream that would never
	// end should be opened again on a new handle.
	Retired <-chan struct{}
	// Ended is closed when the generation's process has ended.
	Ended   <-chan struct{}
	Release func() // must be called; further calls do nothing
}

// Acquire acquires the current generation of a plugin, for calls and streams, until Release. While the plugin is
// not up it waits until ctx ends; the error is then ErrUnavailable, with the plugin's state and the reason.
func (s *Supervisor) Acquire(ctx context.Context, name string) (Handle, error) {
	return s.acquire(ctx, name, false)
}

// AcquireCall is Acquire for one call that is repeated with Acquire if its error wraps ErrReplaced: a canary gets its
// part of these.
func (s *Supervisor) AcquireCall(ctx context.Context, name string) (Handle, error) {
	return s.acquire(ctx, name, true)
}

func (s *Supervisor) acquire(ctx context.Context, name string, forCall bool) (Handle, error) {
	i := s.instance(name)
	if i == nil {
		return Handle{}, s.unknown(name)
	}
	gen, release, err := i.acquire(ctx, forCall)
	if err != nil {
		return Handle{}, err
	}
	return Handle{
		Conn: counted{gen.conn, gen}, Kind: gen.Run.Kind, Version: gen.Run.Version, Retired: gen.Retired(), Ended: gen.Done(),
		Release: release,
	}, nil
}

func (s *Supervisor) unknown(name string) error {
	return fmt.Errorf("%w: %q is neither in %s nor configured (there are: %q)", ErrUnknown, name, s.cfg.PluginDir,
		s.names())
}

func (s *Supervisor) names() []string {
	s.imu.RLock()
	defer s.imu.RUnlock()
	return slices.Sorted(maps.Keys(s.instances))
}

// Await waits until done accepts the status of the plugins.
func (s *Supervisor) Await(ctx context.Context, done func([]Status) bool) error {
	for {
		changed := s.changed.Wait()
		if done(s.Status()) {
			return nil
		}
		select {
		case <-changed:
		case <-s.closing:
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Status returns the status of all plugins, sorted by name.
func (s *Supervisor) Status() []Status {
	names := s.names()
	all := make([]Status, 0, len(names))
	for _, name := range names {
		if i := s.instance(name); i != nil { // it may have been removed
			st := i.snapshot()
			st.DebuggedAt = debuggedAt(s.spec(name))
			st.Missing = st.PID == 0 && s.configured(name) && !slices.ContainsFunc(s.found.files(name), isExecutable)
			all = append(all, st)
		}
	}
	return all
}

// debuggedAt returns the socket of the process to which a plugin forwards its calls; empty: it does not.
func debuggedAt(p Plugin) (socket string) {
	for _, env := range p.Env {
		if at, ok := strings.CutPrefix(env, wire.EnvDebugSocket+"="); ok {
			socket = at
		}
	}
	return socket
}
