package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/host/internal/apiserver"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/consul/services"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/devices"
	"github.com/pannier/pannier/host/internal/fencing/heartbeat"
	"github.com/pannier/pannier/host/internal/leader/watcher"
	"github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/secrets"
	"github.com/pannier/pannier/host/internal/secrets/rotation"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/sdk/wire"
)

// recentEvents is how many events can be asked for after they happened.
const recentEvents = 1000

// Run runs an agent until ctx ends, and closes it. version is the program's.
func Run(ctx context.Context, cfg *config.Agent, version string, logs io.Writer) (err error) {
	log := newLogger(cfg, logs)
	a := &agent{cfg: cfg, version: version, log: log, started: time.Now(), driversUp: make(chan struct{})}
	a.stopPlugins.Store(!cfg.LeavePluginsOnStop)
	ctx, a.stop = context.WithCancel(ctx)
	defer a.stop()
	defer func() { err = errors.Join(err, a.close(context.WithoutCancel(ctx))) }()
	if err := a.open(ctx); err != nil {
		return err
	}
	log.Info("the agent is up", "name", cfg.Name, "socket", cfg.Socket, "http", a.server.HTTPAddress(), "took", time.Since(a.started).Round(time.Millisecond))
	<-ctx.Done()
	log.Info("the agent stops", "leave_plugins", !a.stopPlugins.Load())
	return nil
}

// agent is all that one process of the host has open.
type agent struct {
	cfg     *config.Agent
	version string
	log     hclog.Logger
	started time.Time
	closers closers

	stop        context.CancelFunc // ends Run
	stopPlugins atomic.Bool        // plugins and drivers end with it

	events      *events.Bus
	journal     *journal.Journal
	sealer      *secrets.Sealer
	plugins     *supervisor.Supervisor
	catalog     *catalog.Catalog
	hosts       *hosts           // nil: this host is alone
	cluster     *cluster.Node    // nil: other hosts keep the ledger
	keys        *rotation.Keeper // nil: this agent is no server
	ledger      ledger
	tokens      *tokens.Authority
	services    *services.Registrar
	drivers     *drivers.Registry
	devices     *devices.Registry
	controllers *controllers.Controllers
	workloads   *workload.Manager
	watcher     *watcher.Watcher
	registrar   *noderecord.Registrar
	server      *apiserver.Server
	driversUp   chan struct{} // closed when the drivers are open
	id          struct {      // the cluster's
		mu    sync.Mutex
		text  string
		index uint64
	}
	leftovers []string
}

// open builds and opens everything in the order in which it is needed.
func (a *agent) open(ctx context.Context) error {
	for _, step := range []struct {
		what string
		open func(ctx context.Context) error
	}{
		{"data directory", a.openDataDir},
		{"journal", a.openJournal},
		{"secrets", a.openSecrets},
		{"plugins", a.openPlugins}, // they come up while the ledger is read
		{"devices", a.followDevices},
		{"hosts", a.openHosts},
		{"ledger", a.openCluster},
		{"secrets keys", a.openKeys},
		{"consul", a.openConsul},
		{"drivers", a.openDrivers},
		{"peers", a.openPeers},
		{"secrets keys", a.keepKeys}, // before anything is opened with them
		{"workloads", a.openWorkloads},
		{"services", a.keepServices},
		{"node", a.openNode},
		{"lease", a.keepLease},
		{"watcher", a.openWatcher},
		{"API", a.openServer},
		{"signals", a.followSignals},
		{"memory", a.tuneMemory}, // last: until then the agent is to be quick
	} {
		if err := step.open(ctx); err != nil {
			return fmt.Errorf("start the agent: %s: %w", step.what, err)
		}
	}
	return nil
}

// stopAgent ends Run, and tells what ends with it.
func (a *agent) stopAgent(plugins bool) apiserver.Ending {
	if plugins {
		a.stopPlugins.Store(true)
		a.plugins.StopWithHost()
	}
	a.stop()
	return apiserver.Ending{Plugins: a.stopPlugins.Load() || a.cfg.Dev, Workloads: a.cfg.Dev}
}

// close closes what is open, the last first. An agent for trying out takes its
// workloads down before that: nobody would find them again.
func (a *agent) close(ctx context.Context) error {
	var stopped error
	if a.cfg.Dev && a.workloads != nil {
		ctx, cancel := context.WithTimeout(ctx, devStopTimeout)
		defer cancel()
		stopped = a.workloads.StopAll(ctx, "the agent stops")
	}
	return errors.Join(stopped, a.closers.Close())
}

// devStopTimeout bounds how long an agent for trying out waits for its workloads.
const devStopTimeout = 20 * time.Second

func (a *agent) openDataDir(ctx context.Context) error {
	a.events = events.New(recentEvents)
	// What lies in it has modes of its own; a plugin that runs as another user has to
	// get through.
	if err := os.MkdirAll(a.cfg.DataDir, 0o711); err != nil {
		return err
	}
	// The kernel's mount table has real paths.
	dir, err := filepath.EvalSymlinks(a.cfg.DataDir)
	if err != nil {
		return err
	}
	a.cfg.DataDir = dir
	lock, err := lockDir(ctx, dir)
	if err != nil {
		return err
	}
	a.closers.add(lock.Close)
	return nil
}

func (a *agent) openJournal(context.Context) (err error) {
	a.journal, err = journal.Open(filepath.Join(a.cfg.DataDir, "journal"), a.log.Named("journal"))
	if err == nil {
		a.closers.add(a.journal.Close)
	}
	return err
}

func (a *agent) openCluster(ctx context.Context) (err error) {
	h := a.hosts
	if h != nil && h.local == nil { // other hosts keep it
		a.ledger = cluster.NewClient(h.servers)
		return nil
	}
	key, err := a.cfg.Ledger.Read()
	if err != nil {
		return err
	}
	cfg := cluster.Config{
		Dir: filepath.Join(a.cfg.DataDir, "ledger"), Name: a.cfg.Name,
		BootstrapExpect: a.cfg.Server.BootstrapExpect, Key: key.Bytes(), Logger: a.log.Named("ledger"),
	}
	if h != nil {
		h.join(&cfg, a.cfg.Autopilot)
	}
	if a.cluster, err = cluster.Open(ctx, cfg); err != nil {
		return err
	}
	a.closers.add(a.cluster.Close)
	a.ledger = a.cluster
	if h == nil {
		_, err = a.clusterID(ctx)
		return err
	}
	h.nodes = peer.NewNodes(peer.NodesConfig{Name: a.cfg.Name, Local: h.here, Member: h.member, Dialer: h.dialer, Term: a.cluster.Term})
	h.beats = &heartbeat.Tracker{Cluster: a.cluster, Liveness: a.cfg.Server.Liveness, Log: a.log.Named("heartbeats")}
	return nil
}

func (a *agent) openPlugins(ctx context.Context) error {
	cfg := supervisor.Config{
		PluginDir: a.cfg.PluginDir, DataDir: a.cfg.DataDir, Logger: a.log.Named("plugin"),
		OnEvent: a.pluginEvent, OnPluginEvent: func(e supervisor.PluginEvent) { a.catalog.Event(e) }, DieWithHost: a.cfg.Dev, StopPlugins: a.stopPlugins.Load(),
		Probe: a.probe,
	}
	for _, p := range a.cfg.Plugins {
		cfg.Plugins = append(cfg.Plugins, supervisor.Plugin{
			Name: p.Name, Args: p.Args, User: p.User, Group: p.Group, Limits: supervisor.Limits(p.Limits),
			Checksum: p.Checksum, Version: p.Version, Config: p.Config, RollbackWindow: p.RollbackWindow,
		})
	}
	var err error
	if cfg.Plugins, err = debugged(cfg.Plugins, os.Getenv(wire.EnvReattach)); err != nil {
		return err
	}
	a.plugins = supervisor.New(cfg)
	a.catalog = catalog.New(a.plugins)
	a.catalog.OnEvent(catalog.EveryKind, a.publish)
	if err := a.plugins.Open(ctx); err != nil {
		return err
	}
	a.closers.add(a.plugins.Close)
	return nil
}

func (a *agent) followDevices(ctx context.Context) error {
	a.devices = devices.New(a.catalog, a.events, a.log.Named("devices"))
	a.closers.loop(ctx, a.devices.Run)
	return nil
}

func (a *agent) openDrivers(ctx context.Context) error {
	// The workloads are needed for what is in use, and need the drivers: both are
	// built before either is opened.
	a.drivers = drivers.New(drivers.Config{
		DataDir: a.cfg.DataDir, Logger: a.log, Storage: a.catalog.Storage, Events: a.events,
		InUse: func(id string) []string { return a.workloads.Through(id) }, DieWithHost: a.cfg.Dev,
	})
	a.controllers = a.newControllers()
	files := secretsdir.New(a.cfg.SecretsDir)
	a.closers.add(files.Close)
	deps := workload.Deps{
		Ledger: noderecord.Ledger{Cluster: a.ledger}, Controller: a.controllers, Drivers: a.drivers, Devices: a.devices,
		Calls: a.driverCalls(), Secrets: a.unseal, Events: a.events, Tokens: a.tokens, Services: a.services,
		Datacenter: a.cfg.Datacenter, Ports: ports.New(a.cfg.MinDynamicPort, a.cfg.MaxDynamicPort),
		SecretsDir: files, IdentityTimeout: a.identityTimeouts(),
	}
	if h := a.hosts; h != nil { // what the leader does for this node
		deps.Controller, deps.Secrets, deps.Tokens = h.servers, h.servers.VolumeSecrets, peer.NodeTokens{Servers: h.servers, Local: a.tokens}
		deps.Nodes, deps.Lease, deps.Fenced, deps.Patient = h.servers, h.lease, h.fenced, true
	}
	a.workloads = workload.New(a.cfg.Name, a.layout(), a.journal, a.log.Named("workload"), deps)
	a.closers.add(func() error { return a.drivers.Close(a.stopPlugins.Load()) }) //nolint:contextcheck // it is called after ctx has ended
	if err := a.drivers.Open(ctx, a.declared()); err != nil {
		return err
	}
	close(a.driversUp)
	return nil
}

// driverCalls reaches the drivers of this node.
func (a *agent) driverCalls() drivers.Caller {
	return drivers.Caller{Drivers: a.drivers, Storage: a.catalog.DoStorage}
}

// newControllers makes the calls to controllers: this node's, and those of all nodes where
// this agent may lead.
func (a *agent) newControllers() *controllers.Controllers {
	cfg := controllers.Config{Node: a.cfg.Name, ClusterID: a.clusterID, Calls: a.driverCalls(), Secrets: a.unseal}
	if h := a.hosts; h != nil {
		cfg.Secrets = h.servers.VolumeSecrets
		if h.local != nil {
			cfg.Cluster, cfg.Secrets = noderecord.Directory{Cluster: a.cluster, Calls: h.nodes.Storage}, a.unseal
		}
	}
	return controllers.New(cfg)
}

func (a *agent) openWorkloads(ctx context.Context) (err error) {
	a.closers.add(a.workloads.Close)
	a.leftovers, err = a.workloads.Open(ctx)
	return err
}

func (a *agent) openNode(ctx context.Context) error {
	a.registrar = &noderecord.Registrar{Name: a.cfg.Name, BootID: process.BootID(), Cluster: a.ledger, Drivers: a.drivers, Devices: a.devices, Log: a.log.Named("node")}
	if h := a.hosts; h != nil {
		a.registrar.Address, a.registrar.SecretHash = h.port.Addr().String(), h.secret.Hash()
	}
	a.closers.loop(ctx, a.registrar.Run)
	return nil
}

func (a *agent) openWatcher(ctx context.Context) error {
	if a.cluster == nil {
		return nil
	}
	cfg := watcher.Config{
		NodeName: a.cfg.Name, Node: a.workloads, Cluster: a.cluster, Controllers: a.controllers,
		DriversChanged: a.drivers.Changed, SweepTokens: a.sweepTokens(), Events: a.events, Log: a.log.Named("watcher"),
		GC: watcher.GC{
			Interval: a.cfg.GC.Interval, Claims: a.cfg.GC.ClaimThreshold, Drivers: a.cfg.GC.DriverThreshold,
			Workloads: a.cfg.GC.WorkloadThreshold, Nodes: a.cfg.GC.NodeThreshold,
		},
	}
	if a.hosts != nil {
		cfg.Nodes = a.hosts.nodes
		a.closers.loop(ctx, func(ctx context.Context) { a.cluster.WhileLeader(ctx, a.hosts.beats.Run) })
	}
	a.watcher = watcher.New(cfg)
	a.closers.loop(ctx, func(ctx context.Context) { a.cluster.WhileLeader(ctx, a.watcher.Run) })
	return nil
}

func (a *agent) openServer(ctx context.Context) error {
	cfg := apiserver.Config{
		Socket: a.cfg.Socket, Group: a.cfg.SocketGroup, HTTPAddress: a.httpAddress(),
		Logger: a.log.Named("api"), Metrics: prometheus.NewRegistry(),
		Name: a.cfg.Name, Version: a.version, Datacenter: a.cfg.Datacenter, DataDir: a.cfg.DataDir, StartedAt: a.started,
		VolumesDir: a.layout().Dir,
		Health:     a.health, Leftovers: func() []string { return a.leftovers }, Stop: a.stopAgent,
		Plugins: a.plugins, Controllers: a.controllers, Drivers: a.drivers, Devices: a.devices, Workloads: a.workloads,
		Services: a.services, Tokens: a.tokens, JWKS: a.jwks(),
		Events: a.events, Sealer: a.sealer, SecretsKeys: a.keys, AuditPath: a.cfg.AuditPath, SocketRoot: a.cfg.ACL.SocketRoot && a.hosts == nil,
	}
	if a.cluster != nil {
		cfg.Ledger, cfg.Raft, cfg.Watcher = a.cluster, a.cluster, a.watcher
	}
	if h := a.hosts; h != nil {
		cfg.Leader, cfg.Discovery, cfg.Port, cfg.Certs = h.servers.Router, h.discovery, h.port, h.certs
		if a.cluster != nil {
			cfg.Heartbeats, cfg.Nodes = h.beats, h.nodes
		}
	}
	cfg.ACL = a.resolver()
	a.server = apiserver.New(cfg)
	a.closers.add(a.server.Close)
	return a.server.Open(ctx)
}

// followSignals opens the audit log anew on SIGHUP, for who rotates it.
func (a *agent) followSignals(ctx context.Context) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	a.closers.loop(ctx, func(ctx context.Context) {
		defer signal.Stop(hangups)
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangups:
				if err := a.server.ReopenAudit(); err != nil {
					a.log.Error("the audit log could not be opened anew", "error", err)
				}
			}
		}
	})
	return nil
}

// resolver finds what tokens allow; nil where everybody who may call may do everything.
func (a *agent) resolver() *acl.Resolver {
	switch {
	case !a.cfg.ACL.Enabled:
		return nil
	case a.cluster != nil:
		return acl.NewResolver(acl.Here{Ledger: a.cluster}, 0, a.log.Named("acl"))
	default:
		return acl.NewResolver(acl.Servers{Ledger: a.ledger}, aclKept, a.log.Named("acl"))
	}
}

// aclKept is how long a node takes the servers' word for what a token allows.
const aclKept = 15 * time.Second

// layout is where volumes are mounted.
func (a *agent) layout() mounts.Layout {
	return mounts.Layout{Dir: filepath.Join(a.cfg.DataDir, "csi")}
}
