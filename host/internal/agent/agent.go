// Package agent assembles an agent: it opens the parts in order, as the configuration says, and closes them in
// reverse. It is the only package that knows all of them, and does nothing else. An agent is standalone (a host with a
// ledger of its own), a server (it keeps the cluster's ledger with others) or a node (neither): each is a list of
// steps in a file of its own.
package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/host/internal/apiserver"
	"github.com/pannier/pannier/host/internal/apiserver/agentapi"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/consul/services"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/frontdoors"
	"github.com/pannier/pannier/host/internal/pluginhost/hostservices"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/handover"
	"github.com/pannier/pannier/host/internal/system/journald"
	"github.com/pannier/pannier/host/internal/system/servicemanager"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/internal/printable"
)

// devStopTimeout bounds how long an agent in dev mode waits for its workloads to stop.
const devStopTimeout = 20 * time.Second

// Run runs an agent until ctx ends, and closes it. version is the program's. When the agent is upgraded, Run does not
// return: the next program replaces this one, in the same process.
func Run(ctx context.Context, cfg *config.Agent, version string, logs io.Writer) (err error) {
	before, err := handover.Inherit()
	if err != nil {
		return err
	}
	manager, err := servicemanager.Take()
	if err != nil {
		return err
	}
	a := newAgent(cfg, version, logs, before, manager)
	ctx, a.stop = context.WithCancel(ctx)
	defer a.stop()
	if before.Tried() {
		return a.try(ctx, before)
	}
	var doors []string
	for _, p := range cfg.Plugins {
		for _, s := range p.Frontend.Listens() {
			doors = append(doors, strings.TrimPrefix(s.Address, "unix://"))
		}
	}
	if err := a.sockets.Activate(doors...); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close(context.WithoutCancel(ctx))) }()
	if err := a.open(ctx, a.role()); err != nil {
		return err
	}
	if unused := a.sockets.Unused(); len(unused) > 0 {
		a.log.Warn("a socket unit listens where the configuration does not say, and nobody answers there: make its "+
			"ListenStream= and the configuration's socket the same", "listens", unused, "socket", cfg.Socket)
	}
	a.sockets.CloseUnused()
	if before != nil {
		a.awaitReady(ctx, heldPatience)
		a.sockets.Release()
	}
	a.log.Info("the API is served", "name", cfg.Name, "socket", cfg.Socket, "http", a.server.HTTPAddress())
	a.closers.loop(ctx, a.reportUp)
	a.closers.loop(ctx, a.keepManagerInformed)
	for {
		select {
		case next := <-a.next:
			if err := a.replace(ctx, next); err != nil {
				return err
			}
		case <-ctx.Done():
			a.log.Info("the agent stops", "leave_plugins", !a.stopPlugins.Load())
			a.told(a.manager.Tell(servicemanager.Stopping))
			return nil
		}
	}
}

// newAgent makes an agent that has nothing open. before is nil unless another program had this process.
func newAgent(cfg *config.Agent, version string, logs io.Writer, before *handover.Inheritance,
	manager *servicemanager.Manager,
) *agent {
	recent := &recentLog{}
	a := &agent{
		cfg: cfg, version: version, log: newLogger(cfg, recent, logs), logs: logs, recent: recent, started: time.Now(),
		driversUp: make(chan struct{}), sockets: handover.NewSockets(before), next: make(chan *successor), manager: manager,
		metrics: prometheus.NewRegistry(), confirmed: make(chan struct{}),
	}
	a.audit = apiserver.NewAuditLog(cfg.AuditPath, cfg.Name, a.log.Named("api"))
	a.blocks.Store(cfg)
	if before != nil {
		a.outcome.Store(before.Outcome)
	}
	a.stopPlugins.Store(!cfg.LeavePluginsOnStop)
	return a
}

// open opens all parts. If one fails, close stops the plugins and drivers that this start has begun. Plugins and
// drivers that an earlier agent left running go on as they were, for the next start to find.
func (a *agent) open(ctx context.Context, steps []step) error {
	began := time.Now()
	if err := a.openTraces(ctx); err != nil {
		return err
	}
	for _, step := range steps {
		if err := step.open(ctx); err != nil {
			return fmt.Errorf("start the agent: %s: %w", step.name, err)
		}
	}
	a.opening = time.Since(began).Round(time.Millisecond)
	close(a.confirmed)
	return nil
}

// newLogger makes the agent's logger, which writes to recent, and to logs or the journal behind it. Each entry is one
// line, whatever a plugin or driver has put into it. The journal gets fields; lines of JSON have their own.
func newLogger(cfg *config.Agent, recent, logs io.Writer) (log hclog.InterceptLogger) {
	out := io.MultiWriter(recent, logs)
	sink := journald.Open(logs, func() hclog.Level { return log.GetLevel() })
	if cfg.LogFormat == "json" {
		sink = nil
	}
	if sink != nil {
		out = recent
	}
	log = hclog.NewInterceptLogger(logOptions(cfg, out, hclog.LevelFromString(cfg.LogLevel)))
	if sink != nil {
		log.RegisterSink(sink)
	}
	return log
}

func logOptions(cfg *config.Agent, logs io.Writer, level hclog.Level) *hclog.LoggerOptions {
	return &hclog.LoggerOptions{
		Name: "pannier", Output: printable.Writer(logs), Level: level, JSONFormat: cfg.LogFormat == "json",
	}
}

// monitor writes what the agent logs from now on, from a level, also to another writer, which must not block, until
// stop is called.
func (a *agent) monitor(level hclog.Level, lines io.Writer) (stop func()) {
	sink := hclog.NewSinkAdapter(logOptions(a.cfg, lines, level))
	a.log.RegisterSink(sink)
	return func() { a.log.DeregisterSink(sink) }
}

// agent has the parts that agents of every role have open.
type agent struct {
	cfg     *config.Agent
	version string
	log     hclog.InterceptLogger
	logs    io.Writer
	recent  *recentLog // the end of what log has written
	started time.Time
	closers closers
	opening time.Duration // how long it took to open all parts

	blocks    atomic.Pointer[config.Agent] // whose plugin and csi_driver blocks count
	reloading sync.Mutex

	stop        context.CancelFunc // ends Run
	stopPlugins atomic.Bool        // stop plugins and drivers with the agent
	confirmed   chan struct{}      // closed when the start has succeeded

	sockets   *handover.Sockets
	upgrading sync.Mutex      // held by an upgrade
	next      chan *successor // the program that is to replace this one
	outcome   atomic.Pointer[handover.Outcome]
	metrics   *prometheus.Registry
	manager   *servicemanager.Manager   // nil: none has started this agent
	yieldLead func(ctx context.Context) // makes another server lead, if this one does; nil: there is none

	audit       *apiserver.AuditLog // nil: there is none
	traces      *tracing.Tracer
	flush       time.Duration // how long the agent's end waits for the collector
	events      *events.Bus
	journal     *journal.Journal
	sealer      *secrets.Sealer
	doors       *frontdoors.Doors
	hosting     *hostservices.Services
	plugins     *supervisor.Supervisor
	catalog     *catalog.Catalog
	ledger      cluster.Ledger
	clusterID   func(ctx context.Context) (string, error) // fails until the cluster has been formed
	tokens      *tokens.Authority
	services    *services.Registrar
	drivers     *drivers.Registry
	calls       drivers.Caller // calls drivers of this node
	driversUp   chan struct{}  // closed when the drivers are open
	devices     *devices.Registry
	controllers *controllers.Controllers
	workloads   *workload.Manager
	registrar   *noderecord.Registrar
	server      *apiserver.Server
	notReady    func() []string // why the agent is not ready; set before the API is served
}

// step opens one part of an agent. It may need those before it.
type step struct {
	name string
	open func(ctx context.Context) error
}

// role assembles the agent.
func (a *agent) role() []step {
	switch {
	case a.cfg.TLS == nil:
		return (&standalone{ledgerKeeper: ledgerKeeper{agent: a}}).steps()
	case a.cfg.Server.Enabled:
		return (&server{agent: a, ledgerKeeper: ledgerKeeper{agent: a}, member: member{agent: a}}).steps()
	default:
		return (&node{member{agent: a}}).steps()
	}
}

// stopAgent ends Run, and returns what ends with it.
func (a *agent) stopAgent(plugins bool) (pluginsStop, workloadsStop bool) {
	if plugins {
		a.stopPlugins.Store(true)
		a.plugins.StopWithHost(true)
	}
	a.stop()
	return a.stopPlugins.Load() || a.cfg.Dev, a.cfg.Dev
}

const (
	// upInterval is the first pause between two checks whether the agent is ready, upLongest the longest.
	upInterval = time.Millisecond
	upLongest  = 100 * time.Millisecond
	// upPatience is how long after its start the agent explains why it is not ready.
	upPatience = 10 * time.Second
	// heldPatience is how long after an upgrade calls are held back until the agent is ready.
	heldPatience = 2 * time.Second
	forever      = time.Duration(math.MaxInt64)
)

// reportUp waits until the agent is ready for the first time, or ctx ends. The log says so, and what is missing if
// that takes long.
func (a *agent) reportUp(ctx context.Context) {
	reasons := a.awaitReady(ctx, upPatience)
	if len(reasons) > 0 && ctx.Err() == nil {
		a.log.Error("the agent is not up: it runs, and is not ready", "reasons", strings.Join(reasons, "; "))
		reasons = a.awaitReady(ctx, forever)
	}
	if len(reasons) == 0 {
		a.log.Info("the agent is up", "took", time.Since(a.started).Round(time.Millisecond))
	}
}

// awaitReady waits until the agent is ready, ctx ends, or the patience does, and returns what is missing.
func (a *agent) awaitReady(ctx context.Context, patience time.Duration) (reasons []string) {
	late := time.After(patience)
	pause := upInterval
	for {
		if reasons = a.notReady(); len(reasons) == 0 {
			return nil
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, upLongest)
		case <-late:
			return reasons
		case <-ctx.Done():
			return reasons
		}
	}
}

// close closes what is open, the last first. In dev mode it stops the workloads before that, since no later agent
// would find them.
func (a *agent) close(ctx context.Context) error {
	var stopped error
	if a.cfg.Dev && a.workloads != nil {
		ctx, cancel := context.WithTimeout(ctx, devStopTimeout)
		defer cancel()
		stopped = a.workloads.StopAll(ctx, "the agent stops")
	}
	return errors.Join(stopped, a.closers.Close())
}

// closers are called in reverse order to close what was opened.
type closers []func() error

func (c *closers) add(fn func() error) { *c = append(*c, fn) }

// loop runs fn in a goroutine, and adds a closer that ends it and waits for it. fn ends when it is closed, not with
// ctx.
func (c *closers) loop(ctx context.Context, fn func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { fn(ctx) })
	c.add(func() error {
		cancel()
		wg.Wait()
		return nil
	})
}

// Close closes everything once, the last opened first.
func (c *closers) Close() error {
	var errs []error
	for _, fn := range slices.Backward(*c) {
		errs = append(errs, fn())
	}
	*c = nil
	return errors.Join(errs...)
}

const (
	// flushPatience is how long the agent waits at its end until the collector has taken the spans.
	flushPatience = 2 * time.Second
	// heldFlushPatience is the same while an upgrade holds calls back, which has waited for the earlier ones before.
	heldFlushPatience = 50 * time.Millisecond
)

// openTraces begins to record traces, unless they are off. They are exported when everything else is closed.
func (a *agent) openTraces(ctx context.Context) (err error) {
	a.traces, err = tracing.Open(ctx, tracing.Config{
		Program: "pannier-agent", Version: a.version, Node: a.cfg.Name, Endpoint: a.cfg.TracesEndpoint,
		Log: a.log.Named("traces"),
	})
	if err == nil {
		a.flush = flushPatience
		a.closers.add(func() error { a.traces.Close(ctx, a.flush); return nil })
	}
	return err
}

// recentLogSize is how much of the agent's log is kept in memory, in bytes.
const recentLogSize = 256 << 10

// recentLog keeps the end of what is written to it.
type recentLog struct {
	mu   sync.Mutex
	text []byte // up to twice the size, so that it is seldom moved
}

func (l *recentLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if over := len(l.text) - recentLogSize; over > recentLogSize {
		l.text = append(l.text[:0], l.text[over:]...)
	}
	return len(p), nil
}

// lines returns the complete last lines, of about recentLogSize.
func (l *recentLog) lines() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text
	if over := len(text) - recentLogSize; over > 0 {
		_, text, _ = bytes.Cut(text[over:], []byte("\n"))
	}
	return bytes.Clone(text)
}

// diagnosis describes the agent, with the configuration that counts.
func (a *agent) diagnosis() (d agentapi.Diagnosis, err error) {
	cfg := *a.cfg
	now := a.blocks.Load()
	cfg.Plugins, cfg.Drivers, cfg.LogLevel = now.Plugins, now.Drivers, now.LogLevel
	d.ConfigFiles, d.Log = cfg.Files(), a.recent.lines()
	_, d.SecretFiles = cfg.Secrets()
	d.Configuration, err = cfg.Shown()
	return d, err
}
