package agent

import (
	"context"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/host/internal/apiserver"
	"github.com/pannier/pannier/host/internal/apiserver/acls"
	"github.com/pannier/pannier/host/internal/apiserver/agentapi"
	"github.com/pannier/pannier/host/internal/apiserver/asknode"
	driversapi "github.com/pannier/pannier/host/internal/apiserver/drivers"
	"github.com/pannier/pannier/host/internal/apiserver/nodes"
	"github.com/pannier/pannier/host/internal/apiserver/plugins"
	"github.com/pannier/pannier/host/internal/apiserver/volumes"
	"github.com/pannier/pannier/host/internal/apiserver/workloads"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/config/doctor"
	"github.com/pannier/pannier/host/internal/consul/credentials"
	"github.com/pannier/pannier/host/internal/consul/ports"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/consul/services"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/csi/conditions"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/peer/noderecord"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/frontdoors"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

func (a *agent) openJournal(context.Context) (err error) {
	if a.journal, err = journal.Open(filepath.Join(a.cfg.DataDir, "journal"), a.log.Named("journal")); err == nil {
		a.closers.add(a.journal.Close)
	}
	return err
}

func (a *agent) openSecrets(context.Context) (err error) {
	a.sealer, err = secrets.OpenFiles(secrets.Files{
		First: filepath.Join(a.cfg.DataDir, "secrets.key"), Dir: filepath.Join(a.cfg.DataDir,
			"secrets.keys"), Shared: a.cfg.TLS != nil,
	})
	return err
}

// newConsul makes what gets services their tokens and registers them in Consul. An agent without a consul block refuses
// workloads that have services, by name. ledger records tokens; nil on a node, whose leader does. keySets returns the
// other servers' key sets (tokens.Config).
func (a *agent) newConsul(ledger tokens.Ledger, keySets func(context.Context) (map[string][]byte, error)) error {
	issuers, audiences, blocks := map[string]service.Consul{}, map[string]string{}, map[string]config.Consul{}
	consuls := map[string]service.Consul{}
	for _, c := range a.cfg.Consuls {
		issuers[c.Name], blocks[c.Name] = c.Consul, c
		if c.WantsJWT() {
			audiences[c.Name] = c.Audience
		}
		if !c.IdentityOnly {
			consuls[c.Name] = c.Consul
		}
	}
	a.tokens = tokens.New(tokens.Config{
		Ledger: ledger, Consuls: issuers, Audiences: audiences, Sealer: a.sealer, Events: a.events,
		KeySets: keySets,
		Log:     a.log.Named("tokens"),
		Identity: func(ctx context.Context, consul string, fn func(context.Context, identity.Identity) error) error {
			return catalog.Do(ctx, a.catalog, catalog.Identity, blocks[consul].IdentityPlugin, fn)
		},
	})
	// The registrar needs the workloads for what to keep in sync, and they need it: both are made before either is
	// opened.
	a.services = services.New(services.Config{
		Node: a.cfg.Name, ClusterID: a.clusterID, Consuls: consuls, Served: a.served,
		Registration: func(ctx context.Context, consul string,
			fn func(context.Context, registration.Registration) error,
		) error {
			return catalog.Do(ctx, a.catalog, catalog.Registration, blocks[consul].RegistrationPlugin, fn)
		},
		Bootstraps: func(ctx context.Context, consul string, fn func(context.Context, bootstrap.Bootstrap) error) error {
			return catalog.Do(ctx, a.catalog, catalog.Bootstrap, blocks[consul].BootstrapPlugin, fn)
		},
		Instances: func() map[string][]registration.Instance { return a.workloads.Registered.Instances() },
		Beats:     func() map[string][]registration.Beat { return a.workloads.Registered.Beats() },
		Reconfigured: func(consul, id, digest string) {
			a.workloads.Registered.Reconfigured(consul, id, digest)
		},
		Events: a.events, Log: a.log.Named("services"),
	})
	return nil
}

// newDrivers makes the registry of drivers. It needs the workloads for what is in use, and they need it: both are made
// before either is opened.
func (a *agent) newDrivers() {
	a.drivers = drivers.New(drivers.Config{
		DataDir: a.cfg.DataDir, Logger: a.log, Storage: a.catalog.Storage, Events: a.events,
		InUse: func(id string) []string { return a.workloads.WorkloadsUsing(id) }, DieWithHost: a.cfg.Dev,
		ReadSecret: config.ReadSecret, Confirmed: a.confirmed,
	})
	a.calls = drivers.Caller{Drivers: a.drivers, Storage: a.catalog.DoStorage}
}

// workloadDeps returns the workloads' dependencies in every role.
func (a *agent) workloadDeps() workload.Deps {
	files := secretsdir.New(a.cfg.SecretsDir)
	a.closers.add(files.Close)
	timeouts, reach := map[string]time.Duration{}, map[string][]string{}
	for _, c := range a.cfg.Consuls {
		timeouts[c.Name], reach[c.Name] = c.IdentityTimeout, c.CheckAddresses
	}
	return workload.Deps{
		Ledger: a.ledger, Drivers: a.drivers, Devices: a.devices,
		Calls: a.calls, ReadSecret: config.ReadSecret, Events: a.events, Services: a.services,
		Datacenter: a.cfg.Datacenter, Ports: ports.New(a.cfg.MinDynamicPort, a.cfg.MaxDynamicPort, a.cfg.PortsQuota),
		SecretsDir: files, IdentityTimeout: timeouts, CheckAddresses: reach, Traces: a.traces,
	}
}

// startDrivers makes the workloads and opens the drivers.
func (a *agent) startDrivers(ctx context.Context, deps workload.Deps) error {
	a.workloads = workload.New(a.cfg.Name, a.layout(), a.journal, a.log.Named("workload"), deps)
	a.closers.add(func() error { return a.drivers.Close(a.stopPlugins.Load()) }) //nolint:contextcheck // it is called after ctx has ended
	if err := a.drivers.Open(ctx, declared(a.cfg)); err != nil {
		return err
	}
	close(a.driversUp)
	a.closers.loop(ctx, a.followBrought)
	return nil
}

// declared returns the drivers of a configuration.
func declared(cfg *config.Agent) []drivers.Spec {
	var out []drivers.Spec
	for _, d := range cfg.Drivers {
		out = append(out, declaredDriver(d, false))
		if d.Controller != nil {
			out = append(out, declaredDriver(*d.Controller, true))
		}
	}
	return out
}

func declaredDriver(d config.Driver, apart bool) drivers.Spec {
	return drivers.Spec{
		ID: d.ID, Type: drivers.Type(d.Type), Apart: apart, Plugin: d.Plugin,
		Endpoint: d.Endpoint, Command: d.Command, Env: d.Env,
		User: d.User, Checksum: d.Checksum, Overlap: d.Overlap, Limits: d.Limits,
		MountDir: d.MountDir, StagePublishBaseDir: d.StagePublishBaseDir, HealthTimeout: d.HealthTimeout,
		Timeouts: drivers.Timeouts(d.Timeouts), SettleTime: d.SettleTime,
		AllowedMountFlags: d.AllowedMountFlags, EphemeralVolumes: (*drivers.EphemeralVolumes)(d.EphemeralVolumes),
		Source: drivers.SourceConfig,
	}
}

// openWorkloads opens the workloads, publishes what drivers report of the volumes that are mounted here, and keeps
// services registered.
func (a *agent) openWorkloads(ctx context.Context) error {
	a.closers.add(a.workloads.Close)
	if _, err := a.workloads.Open(ctx); err != nil {
		return err
	}
	m := &conditions.Monitor{
		Node: a.cfg.Name, Mounted: a.workloads.Mounted, Ask: a.controllers.ConditionsHere,
		NoVolumes: !a.cfg.VolumeMetrics, Events: a.events, Log: a.log.Named("conditions"),
	}
	a.metrics.MustRegister(m)
	a.closers.loop(ctx, m.Run)
	a.closers.loop(ctx, a.services.Run)
	return nil
}

func (a *agent) newRegistrar() {
	a.registrar = &noderecord.Registrar{
		Name: a.cfg.Name, BootID: process.BootID(), Cluster: a.ledger, Drivers: a.drivers,
		Devices: a.devices, Log: a.log.Named("node"),
	}
}

// followDrains stops this node's workloads while its record has a drain.
func (a *agent) followDrains(ctx context.Context) error {
	d := &noderecord.Drainer{
		Name: a.cfg.Name, Ledger: a.ledger, Workloads: a.workloads, Drivers: a.drivers,
		Events: a.events, Log: a.log.Named("drain"),
	}
	a.closers.loop(ctx, d.Run)
	return nil
}

// apiConfig returns the API's configuration in every role: what is the same in each.
func (a *agent) apiConfig() apiserver.Config {
	name, log, others := a.cfg.Name, a.log.Named("api"), &asknode.Asker{Name: a.cfg.Name, Traces: a.traces}
	cfg := apiserver.Config{
		Socket: a.cfg.Socket, Group: a.cfg.SocketGroup, Sockets: a.sockets, Audit: a.audit,
		HTTPAddress: net.JoinHostPort(a.cfg.BindAddr, strconv.Itoa(a.cfg.HTTPPort)),
		Name:        name, Logger: log, Metrics: a.metrics, Traces: a.traces,
		Volumes: volumes.Handler{
			Name: name, Log: log, Controllers: a.controllers, Drivers: a.drivers, Workloads: a.workloads, Events: a.events,
			Sealer: a.sealer,
		},
		Workloads: workloads.Handler{
			Name: name, VolumesDir: a.layout().Dir, CredentialsSocket: a.cfg.CredentialsSocket(),
			Workloads: a.workloads, Services: a.services, Tokens: a.tokens, Nodes: others,
		},
		Drivers: driversapi.Handler{Name: name, Drivers: a.drivers, Controllers: a.controllers},
		Plugins: plugins.Handler{
			Plugins: a.plugins, Uses: a.uses, Naming: a.naming, Drivers: a.drivers, Devices: a.devices,
			Workloads: a.workloads, Nodes: others,
		},
		Nodes: nodes.Handler{
			Name: name, Version: a.version, Datacenter: a.cfg.Datacenter, Log: log, Workloads: a.workloads,
			TLS: a.cfg.TLS, Services: a.services, Stop: func() { a.stopAgent(false) },
		},
		ACLs: acls.Handler{Name: name, DataDir: a.cfg.DataDir, Log: log},
		Agent: agentapi.Handler{
			Name: name, Version: a.version, Datacenter: a.cfg.Datacenter, DataDir: a.cfg.DataDir, Socket: a.cfg.Socket,
			StartedAt: a.started, Bus: a.events, Metrics: a.metrics, Nodes: others, Services: a.services,
			Leftovers: func() []string { return a.workloads.Repairs.Leftovers() }, End: a.stopAgent, ReadConfig: a.reload,
			Patient: func() doctor.Patient {
				_, err := a.cfg.Reload() // the files may have mistakes by now
				return doctor.Patient{Config: a.cfg, ConfigErr: err}
			},
			Diagnosis: a.diagnosis, Follow: a.monitor, Replace: a.upgrade, Upgraded: a.outcome.Load,
		},
	}
	a.metrics.MustRegister(a.hosting, a.plugins, a.workloads.Metrics)
	measureHost(a.metrics, a.cfg.DataDir)
	return cfg
}

func (a *agent) serveAPI(ctx context.Context, cfg apiserver.Config) error {
	a.notReady, cfg.Agent.Health = cfg.Health, cfg.Health
	a.server = apiserver.New(cfg)
	a.closers.add(a.server.Close)
	if err := a.server.Open(ctx); err != nil {
		return err
	}
	back := frontdoors.Backend{API: a.server.ServePlugin}
	if cfg.ACL != nil {
		back.Known = func(ctx context.Context, secret string) error {
			_, err := cfg.ACL.Resolve(ctx, secret)
			return err
		}
	}
	if cfg.Ledger != nil {
		back.Ledger = cfg.ACLs.Ledger
	}
	a.doors.Open(back)
	return nil
}

// serveCredentials gives units the secrets of their workloads.
func (a *agent) serveCredentials(ctx context.Context) error {
	s, err := credentials.Serve(ctx, credentials.Config{
		Path: a.cfg.CredentialsSocket(), Sockets: a.sockets, Find: a.workloads.Registered.Credential,
		Log: a.log.Named("credentials"),
	})
	if err == nil {
		a.closers.add(s.Close)
	}
	return err
}

// layout says where volumes are mounted.
func (a *agent) layout() mounts.Layout {
	return mounts.Layout{Dir: filepath.Join(a.cfg.DataDir, "csi")}
}

// followSignals reloads the configuration on SIGHUP.
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
				_, _ = a.reload(ctx) // it is logged
			}
		}
	})
	return nil
}

// measureHost adds the metrics of the agent's process and of its data directory's file system.
func measureHost(metrics *prometheus.Registry, dataDir string) {
	disk := func(name, help string, of func(fs *unix.Statfs_t) uint64) prometheus.Collector {
		return gauge(name, help, func() float64 {
			var fs unix.Statfs_t
			if unix.Statfs(dataDir, &fs) != nil {
				return 0 // the alert on it is right
			}
			return float64(of(&fs) * uint64(fs.Bsize))
		})
	}
	metrics.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		disk("data_dir_free_bytes", "Free bytes of the file system of the data directory, for a user other than root.",
			func(fs *unix.Statfs_t) uint64 { return fs.Bavail }),
		disk("data_dir_size_bytes", "Size of the file system of the data directory.",
			func(fs *unix.Statfs_t) uint64 { return fs.Blocks }),
	)
}

// measureMember adds the metrics of what makes this agent a member of a cluster.
func (m *member) measureMember() {
	m.metrics.MustRegister(
		gauge("lease_seconds", "How long this node may go on to use its volumes without hearing from a server; 0: it may not.",
			func() float64 { return m.lease.Left().Seconds() }),
		gauge("certificate_expiry_timestamp_seconds", "When the agent's certificate expires, in seconds since 1970.",
			func() float64 { return float64(m.certs.NotAfter().Unix()) }),
	)
}

func gauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "pannier_" + name, Help: help}, value)
}
