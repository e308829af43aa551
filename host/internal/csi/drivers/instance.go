package drivers

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/storage"
)

// Why an instance is ended: the cause of its context.
var (
	errLeave   = errors.New("the driver keeps running")
	errStop    = errors.New("it is not needed any more")
	errForced  = errors.New("it is deregistered by force")
	errRestart = errors.New("a restart was asked for")
	errChanged = errors.New("its configuration has changed")
)

// instance is one driver, or its controller apart, under one spec, and the owner of its goroutines.
type instance struct {
	r    *Registry
	spec Spec
	log  hclog.Logger

	// Used by run alone.
	rec         record
	procs       *managed.Set // if it has a command, or had one
	program     programs
	startedOnce bool
	unusedSince time.Time     // of a driver with processes in rec.Left; zero: it is in use
	stopWatch   func()        // ends the watch of the process that serves; nil: none does
	gotHealthy  chan struct{} // holds a token when the process that serves has become healthy

	ctx    context.Context
	cancel context.CancelCauseFunc
	ran    chan struct{} // closed when run has returned; err is set then
	left   chan struct{} // closed when leave has returned
	err    error

	// Guarded by r.mu, changed by update only.
	driver Driver
	state  string // why the driver is unhealthy
	note   string // another part of its Message
	// About the current process: whether a storage plugin has reported on it, whether it was ever
	// healthy, and whether it is too new to be reported as unhealthy.
	answered, wasHealthy, starting bool

	// Set before start. known: the driver's socket existed once, or must have before the host started; until then a
	// registered driver has not stopped, it has not started yet. retired: gone from the configuration, or no longer
	// brought by its plugin. unused: retired with no volume mounted through it, so it need not be started.
	known, retired, unused bool

	// Set before start: the spec that waits until the driver is not in use, or its process has ended, as superseded
	// says; nil: none.
	waiting    *Spec
	superseded chan struct{}
	supersede  func() // closes superseded

	suspended bool // its process is stopped until Resume; guarded by Registry.changes
}

func newInstance(r *Registry, rec record) *instance {
	i := &instance{
		r: r, spec: rec.Spec, rec: rec,
		log:  r.cfg.Logger.Named("driver." + strings.ReplaceAll(rec.Spec.key(), "/", ".")),
		ran:  make(chan struct{}),
		left: make(chan struct{}), superseded: make(chan struct{}), gotHealthy: make(chan struct{}, 1),
	}
	i.program.instance, i.supersede = i, sync.OnceFunc(func() { close(i.superseded) })
	i.manage()
	i.ctx, i.cancel = context.WithCancelCause(context.Background())
	i.state = "waiting for the driver's first answer"
	i.driver = Driver{
		Spec: rec.Spec, Message: i.state, ChangedAt: time.Now(), Swaps: rec.Swaps,
		dir: dir(r.cfg.DataDir, rec.Spec.key()),
	}
	return i
}

// start starts the instance's goroutines. They end with end, or when the instance leaves by itself.
func (i *instance) start() {
	i.r.running.Go(func() {
		defer close(i.ran)
		i.err = i.run(i.ctx)
	})
	i.r.running.Go(func() {
		defer close(i.left)
		switch {
		case i.spec.Source == SourceRegistered || i.retired:
			(&leaver{instance: i}).run(i.ctx)
		case i.waiting != nil:
			i.apply(i.ctx)
		}
	})
}

// end ends the instance's goroutines and waits for them. Unless the cause is errLeave it stops the
// driver's process too.
func (i *instance) end(cause error) error {
	i.endRun(cause)
	<-i.left
	return i.err
}

func (i *instance) endRun(cause error) {
	i.cancel(cause)
	<-i.ran
}

// run follows the driver, and runs its process if it has a command. A process that an earlier
// configuration started and this one does not need is stopped.
func (i *instance) run(ctx context.Context) error {
	if len(i.rec.Left) > 0 {
		i.showLeft()
	}
	switch {
	case i.retired && i.unused:
		<-ctx.Done() // it is about to leave
	case len(i.spec.Command) > 0:
		return i.supervise(ctx)
	default:
		if err := i.clear(ctx, "it has no command any more"); err != nil {
			i.log.Error("the driver's process of an earlier configuration runs on", "error", err)
		}
		i.watchAndTend(ctx)
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errLeave) {
		return i.clear(ctx, cause.Error())
	}
	return nil
}

// update changes what is known of the driver, and notifies waiters if that changed anything. It
// returns the driver before and after.
func (i *instance) update(change func(d *Driver)) (before, after Driver) {
	i.r.mu.Lock()
	defer i.r.mu.Unlock()
	before = i.driver
	change(&i.driver)
	d := &i.driver
	if d.Healthy {
		i.state = ""
	}
	d.Message = strings.Join(slices.DeleteFunc([]string{i.state, i.note}, func(s string) bool { return s == "" }), "; ")
	if d.Healthy != before.Healthy {
		d.ChangedAt = time.Now()
	}
	if !d.equal(before) {
		i.r.changed.Notify()
	}
	return before, *d
}

// report applies a report of the storage plugin on the driver.
func (i *instance) report(fp storage.Fingerprint) {
	var different bool
	before, after := i.update(func(d *Driver) {
		different = d.conclude(fp)
		i.state = d.Message
		if fp.Healthy && !i.wasHealthy {
			select {
			case i.gotHealthy <- struct{}{}:
			default:
			}
		}
		i.answered, i.wasHealthy = true, i.wasHealthy || fp.Healthy
		d.checked = d.checked || !i.starting || fp.Healthy
	})
	switch {
	case after.Healthy && !before.Healthy:
		i.event("healthy", "the driver answers: "+after.provider(), i.about(after))
	case !after.Healthy && (before.Healthy || after.checked && !before.checked):
		i.event("unhealthy", after.Message, nil)
	case different:
		i.event("fingerprint", "the driver's fingerprint changed: "+after.provider(), i.about(after))
	}
	if d, err := i.r.Get(i.spec.ID); different && err == nil && d.foreign() != "" {
		i.event("unhealthy", d.foreign(), nil)
	}
}

// unhealthy marks the driver as unhealthy for a reason that is not the storage plugin's report.
func (i *instance) unhealthy(why string) {
	before, after := i.update(func(d *Driver) {
		d.Healthy, d.checked = false, true
		i.state = why
	})
	if before.Healthy || !before.checked {
		i.event("unhealthy", after.Message, nil)
	}
}

func (i *instance) about(d Driver) map[string]string {
	about := map[string]string{"provider": d.Fingerprint.Provider, "version": d.Fingerprint.Version}
	if d.Fingerprint.Node != nil {
		about["node_id"] = d.Fingerprint.Node.NodeID
	}
	return about
}

// event publishes what happened to the driver and logs it.
func (i *instance) event(kind, message string, details map[string]string) {
	if i.spec.Apart {
		message = "its controller: " + message
	}
	i.r.cfg.Events.Publish(events.Event{
		Topic: events.TopicDriver, Type: kind, Subject: i.spec.ID, Message: message, Details: details,
	})
	log := i.log.Info
	switch kind {
	case "unhealthy", "exited", "failed", "crash-loop", "kept", "configuration-waits", "rolled-back", "program-waits",
		"refused":
		log = i.log.Warn
	}
	log(kind, "message", message)
}

// gone reports whether nothing listens on the socket. A driver that listens and does not answer is
// unhealthy, not gone.
func gone(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err == nil {
		_ = conn.Close()
		return false
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}
