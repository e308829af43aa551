// Package drivers is the registry of the CSI drivers on this node. A driver is declared in the
// configuration or registered at run time. The registry starts the driver's process if it has a
// command, follows its health and capabilities through a storage plugin (csi-bridge), and returns
// immutable snapshots of what it knows.
//
// Each driver has an instance with its own goroutines. If its controller is another process than its node service, it
// has two, which know nothing of each other: Get and List join what they know.
//
//   - run has package managed run the process, if the driver has a command: process.go is what that asks of a
//     driver. Beside it, watch holds the fingerprint stream.
//   - leaver removes a registered driver that has stopped, one that is gone from the
//     configuration, and one that its plugin brings no more (brought.go). None is removed while a
//     volume is mounted through it.
//   - apply restarts a driver whose configuration has changed, as soon as it is not in use.
//
// A process runs from a verified copy of its program, and is replaced when the program's file has changed
// (programs.go), by one that was brought up next to it if the driver stands that (overlap.go).
//
// What must stay true:
//
//   - A driver's process is never started twice and never lost: driver.json in the driver's folder
//     records it before it runs, and is read before a process is started. Where two may run side by side, it records
//     both, and which one serves.
//   - A snapshot (Driver) is never changed, and every change notifies the waiters of Changed.
//   - Nothing about a driver's volumes is decided here: Config.InUse lists the mounted ones.
//   - Processes outlive a crash of the host. Only Close with stop or after a failed start, a
//     deregistration, a restart by request, a changed program, or a changed configuration of a driver
//     that is not in use ends one.
//   - While a driver is in use, its children that serve mounts outlive its process, however that
//     ends. The record lists them, and they are ended when the driver is not in use any more.
//   - The package knows neither go-plugin nor raft, and does not speak CSI.
package drivers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/internal/notify"
	"github.com/pannier/pannier/sdk/storage"
)

// Config is what a Registry needs of the rest of the host.
type Config struct {
	// DataDir is the host's data directory; the drivers' folders are in its csi folder.
	DataDir string
	Logger  hclog.Logger
	// Storage acquires a client of a storage plugin (catalog.Catalog.Storage); it may wait for the plugin until ctx
	// ends. The second result releases it.
	Storage func(ctx context.Context, plugin string) (storage.Client, func(), error)
	Events  *events.Bus
	// InUse names what is mounted through a driver, for decisions and messages, also before the
	// workloads of an earlier host are restored. It may read the registry and must not change it.
	InUse func(driverID string) []string
	// ReadSecret reads the file of a file:// reference in Spec.Env.
	ReadSecret func(ref string) (string, error)
	// Confirmed is closed when the host's start has succeeded. Before that, no process of an earlier host is ended or
	// replaced. nil: it is closed.
	Confirmed <-chan struct{}
	// DieWithHost ends the drivers' processes when the host's process ends, however that happens.
	DieWithHost bool
}

// Registry holds the drivers of this node. It is safe for concurrent use.
type Registry struct {
	cfg    Config
	timing timing

	// changes is held (by a value in it) by every call that adds, replaces or removes an instance.
	// It is a channel so that waiting for it can be cancelled: an instance that wants to leave must
	// not block the call that stops it.
	changes chan struct{}

	running sync.WaitGroup // of the instances

	mu        sync.Mutex
	instances map[string]*instance // by Spec.key
	told      map[string]told      // by plugin
	changed   notify.Broadcast
	closed    bool
}

// timing is what tests shorten.
type timing struct {
	fingerprintEvery time.Duration // between two polls of the storage plugin
	restartMin       time.Duration // backoff of a process's restarts
	restartMax       time.Duration
	stable           time.Duration // a process that ran this long resets the backoff
	retryMin         time.Duration // backoff of a broken fingerprint stream
	retryMax         time.Duration
	unknownAfter     time.Duration // without a report of the storage plugin
	leaveEvery       time.Duration // between two checks whether a driver should leave
	stopGrace        time.Duration // between SIGTERM and SIGKILL
	programEvery     time.Duration // between two looks at the file of its program
	tendEvery        time.Duration // between two looks at what earlier processes have left
	leftGrace        time.Duration // for that to end by itself once the driver is not in use
}

var defaultTiming = timing{
	fingerprintEvery: 30 * time.Second,
	restartMin:       time.Second,
	restartMax:       time.Minute,
	stable:           time.Minute,
	retryMin:         100 * time.Millisecond,
	retryMax:         10 * time.Second,
	unknownAfter:     10 * time.Second,
	leaveEvery:       time.Second,
	stopGrace:        10 * time.Second,
	programEvery:     500 * time.Millisecond,
	tendEvery:        10 * time.Second,
	leftGrace:        time.Minute,
}

// New makes a Registry with no driver; Open fills it.
func New(cfg Config) *Registry {
	if cfg.InUse == nil {
		cfg.InUse = func(string) []string { return nil }
	}
	return &Registry{
		cfg: cfg, timing: defaultTiming,
		changes:   make(chan struct{}, 1),
		instances: map[string]*instance{}, told: map[string]told{},
	}
}

// Open adds the declared drivers, and those that an earlier host left: registered ones, and ones
// that are no longer declared. The latter are removed when no volume is mounted through them. It
// does not wait for any driver. All mistakes in declared are reported at once (ErrInvalid), before
// anything is started.
func (r *Registry) Open(ctx context.Context, declared []Spec) error {
	if err := os.MkdirAll(filepath.Join(r.cfg.DataDir, "csi"), 0o700); err != nil {
		return fmt.Errorf("make the drivers' folder: %w", err)
	}
	specs, err := r.checkDeclared(declared)
	if err != nil {
		return err
	}
	records, err := loadRecords(r.cfg.DataDir, r.cfg.Logger)
	if err != nil {
		return err
	}
	release, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	for _, spec := range specs {
		if rec, ok := records[apart(spec.ID)]; ok && spec.Type != TypeNode && rec.Spec.Source == SourceRegistered {
			// The declared driver has a controller.
			if err := forget(r.cfg.DataDir, rec.Spec.key()); err != nil {
				return errors.Join(err, r.stopAll(false))
			}
			delete(records, rec.Spec.key())
		}
		i := r.declare(records[spec.key()], spec)
		delete(records, spec.key())
		if err := i.save(); err != nil {
			return errors.Join(err, r.stopAll(false))
		}
		r.add(i)
	}
	for _, key := range slices.Sorted(maps.Keys(records)) {
		rec := records[key]
		r.add(r.undeclared(rec, rec.Spec.Source == SourceConfig))
	}
	return nil
}

// undeclared makes the instance of a driver that is not in the configuration; retired, it leaves when it is not in use.
func (r *Registry) undeclared(rec record, retired bool) *instance {
	i := newInstance(r, rec)
	i.known, i.retired = true, retired
	i.unused = i.retired && !i.inUse()
	i.driver.Retired = i.retired
	return i
}

// declare makes the instance of a declared driver. While the driver is in use, a process that runs under another
// configuration keeps running, and the declared one waits.
func (r *Registry) declare(rec record, spec Spec) *instance {
	if !rec.runsOtherwise(spec) || len(r.users(spec)) == 0 {
		rec.Spec = spec
		return newInstance(r, rec)
	}
	var changed []string
	rec.Spec, changed = rec.runningAs(spec)
	i := newInstance(r, rec)
	i.wait(spec, changed)
	return i
}

// checkDeclared fills in defaults and checks the declared specs.
func (r *Registry) checkDeclared(declared []Spec) ([]Spec, error) {
	var errs []error
	seen, sockets := map[string]bool{}, map[string]string{}
	specs := make([]Spec, 0, len(declared))
	for _, spec := range declared {
		spec.Source = SourceConfig
		spec = spec.withDefaults(r.cfg.DataDir)
		if err := r.check(spec); err != nil {
			errs = append(errs, err)
		}
		if seen[spec.key()] {
			errs = append(errs, fmt.Errorf("driver %q is declared twice", spec.key()))
		} else if other, taken := sockets[spec.socket()]; taken {
			errs = append(errs, fmt.Errorf("driver %q: endpoint %q is also that of driver %q", spec.key(), spec.Endpoint, other))
		}
		seen[spec.key()], sockets[spec.socket()] = true, spec.key()
		specs = append(specs, spec)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return specs, nil
}

// check is Validate plus what depends on this host. The driver's folder is 0700 and holds the host's
// record, so another user cannot make a socket in it.
func (r *Registry) check(s Spec) error {
	err := s.Validate()
	if s.User != "" && s.User != "root" && claim.CheckID(s.ID) == nil {
		if _, inside := below(dir(r.cfg.DataDir, s.key()), s.socket()); inside {
			err = errors.Join(err, fmt.Errorf(
				"driver %q: user %q cannot make a socket in %s: set an endpoint in a folder that the user may write",
				s.ID, s.User, filepath.Dir(s.socket())))
		}
	}
	return err
}

// Get returns one driver, or ErrNotFound with the known ids.
func (r *Registry) Get(id string) (Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, ok := r.joined(id); ok {
		return d, nil
	}
	return Driver{}, notFound(id, r.ids())
}

// List returns all drivers by id.
func (r *Registry) List() []Driver {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Driver, 0, len(r.instances))
	for _, id := range r.ids() {
		d, _ := r.joined(id)
		all = append(all, d)
	}
	return all
}

// Changed returns a channel that the next change of any driver closes. To miss none, call Changed
// first, then read, then wait.
func (r *Registry) Changed() <-chan struct{} { return r.changed.Wait() }

// Close ends all goroutines of the registry. With stop it stops the drivers' processes too;
// otherwise they keep running and the next host finds them. If the host's start has failed, Close stops those that this
// registry has started, and through which no volume is mounted. It may be called again.
func (r *Registry) Close(stop bool) error {
	release, err := r.lock(context.Background())
	if errors.Is(err, ErrClosed) {
		return nil
	}
	defer release()
	err = r.stopAll(stop && managed.IsConfirmed(r.cfg.Confirmed))
	r.mu.Lock()
	r.closed = true
	r.changed.Notify()
	r.mu.Unlock()
	r.running.Wait()
	return err
}

// stopAll ends all instances in parallel.
func (r *Registry) stopAll(stopProcess bool) error {
	all := r.all()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	cause := errLeave
	if stopProcess {
		cause = errStop
	}
	for n, i := range all {
		wg.Go(func() { errs[n] = i.end(cause) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// lock serialises changes of the set of instances. Waiting for it ends with ctx.
func (r *Registry) lock(ctx context.Context) (release func(), err error) {
	select {
	case r.changes <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		<-r.changes
		return nil, ErrClosed
	}
	return func() { <-r.changes }, nil
}

// add adds an instance and starts it; r.changes is held.
func (r *Registry) add(i *instance) {
	r.mu.Lock()
	r.instances[i.spec.key()] = i
	r.changed.Notify()
	r.mu.Unlock()
	i.start()
}

// remove deletes an instance that has ended; r.changes is held.
func (r *Registry) remove(i *instance) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.instances, i.spec.key())
	r.changed.Notify()
}

// Suspend stops the processes of the drivers that the host runs and that can mount (types node and
// monolith) until Resume; why becomes their Message. Controllers keep running, since they serve
// other nodes. While volumes are mounted through one of the drivers, Suspend fails with ErrInUse and
// stops none. It may be repeated.
func (r *Registry) Suspend(ctx context.Context, why string) error {
	release, err := r.lock(ctx)
	if err != nil {
		return fmt.Errorf("stop the drivers: %w", err)
	}
	defer release()
	var own []*instance
	for _, i := range r.all() {
		if len(i.spec.Command) == 0 || i.spec.Type == TypeController || i.retired || i.suspended {
			continue
		}
		if users := r.users(i.spec); len(users) > 0 {
			return fmt.Errorf("stop driver %q: %w: by %s", i.spec.ID, ErrInUse, strings.Join(users, ", "))
		}
		own = append(own, i)
	}
	var errs []error
	for _, i := range own {
		if err := i.end(errStop); err != nil {
			// It is followed again, and stopped by the next attempt.
			errs = append(errs, fmt.Errorf("stop driver %q: %w", i.spec.ID, err))
			r.add(i.successor())
			continue
		}
		i.suspended = true
		i.update(func(d *Driver) { d.PID = 0 })
		i.unhealthy(why)
	}
	return errors.Join(errs...)
}

// Resume starts the drivers that Suspend stopped. It may be repeated.
func (r *Registry) Resume(ctx context.Context) error {
	release, err := r.lock(ctx)
	if err != nil {
		return fmt.Errorf("start the drivers again: %w", err)
	}
	defer release()
	for _, i := range r.all() {
		if i.suspended {
			r.add(i.successor())
		}
	}
	return nil
}

func (r *Registry) all() []*instance {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*instance, 0, len(r.instances))
	for _, i := range r.instances {
		all = append(all, i)
	}
	return all
}
