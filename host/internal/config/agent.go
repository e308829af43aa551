package config

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/sdk/service"
)

// Agent is the complete and valid configuration of an agent. docs/configuration.md describes each field. The tags name
// the keys of what only a new agent takes over (see Differences); what has none is taken over by a reload.
type Agent struct {
	// Name of this node, unique in the cluster.
	Name       string `key:"name"`
	Datacenter string `key:"datacenter"`
	// DataDir has all persistent data; absolute.
	DataDir string `key:"data_dir"`
	// PluginDir holds the plugins' binaries; absolute.
	PluginDir string `key:"plugin_dir"`
	// Socket is the path of the API's unix socket; absolute.
	Socket string `key:"socket"`
	// SocketGroup is the name or number of a group that may use the socket besides root; empty: root only.
	SocketGroup string `key:"socket_group"`
	// BindAddr is the IP address of all TCP listeners.
	BindAddr string `key:"bind_addr"`
	// AdvertiseAddr is the IP address at which other agents reach this one; empty: BindAddr.
	AdvertiseAddr string `key:"advertise_addr"`
	// HTTPPort serves health and metrics and, with TLS, the API; 0: any free port.
	HTTPPort int `key:"ports"`
	// RPCPort serves other agents, SerfPort is for gossip; 0: any free port.
	RPCPort, SerfPort int `key:"ports"`
	// MinDynamicPort and MaxDynamicPort bound the ports that workloads get.
	MinDynamicPort, MaxDynamicPort int `key:"ports"`
	// PortsQuota bounds how many of them the workloads of one namespace get.
	PortsQuota int `key:"ports"`
	// SecretsDir holds the secrets of workloads, on a tmpfs; absolute.
	SecretsDir string `key:"secrets_dir"`
	// LogLevel is trace, debug, info, warn or error.
	LogLevel string
	// LogFormat is text or json.
	LogFormat string `key:"log_format"`
	Server    Server `key:"server"`
	// TLS is this host's certificate; nil: the host is in no cluster, and opens no port for other agents.
	TLS *pki.Files `key:"tls"`
	// RetryJoin are serf addresses, host:port, of agents to join. They are tried until one answers.
	RetryJoin []string `key:"retry_join"`
	// Gossip is encrypted with this key.
	Gossip KeySource `key:"encrypt"`
	// Autopilot has the settings that apply until an operator changes them in the ledger.
	Autopilot claim.Autopilot `key:"autopilot"`
	// Ledger is encrypted on disk with this key.
	Ledger KeySource `key:"ledger_encryption"`
	ACL    ACL       `key:"acl"`
	// AuditPath is the audit log's file; absolute. Empty: there is none.
	AuditPath string `key:"audit"`
	// TracesEndpoint is the base URL of the OTLP/HTTP collector of traces; empty: there is none.
	TracesEndpoint string `key:"traces"`
	// VolumeMetrics is true if each mounted volume has metrics of its own.
	VolumeMetrics bool `key:"metrics"`
	// Plugins by name. Plugins in the directory without an entry run with the defaults.
	Plugins []Plugin
	// PluginSigning says whose plugins are run.
	PluginSigning signing.Policy `key:"plugin_signing"`
	// Drivers by id.
	Drivers []Driver
	// Consuls by name; empty: workloads can have no services.
	Consuls []Consul `key:"consul and identity blocks"`
	// LeavePluginsOnStop leaves plugins and drivers running when the agent stops, so
	// that the next one finds them.
	LeavePluginsOnStop bool `key:"leave_plugins_on_stop"`
	GC                 GC   `key:"gc"`
	// Dev is true if the agent was started with -dev and a temporary data directory, which is removed with it. It is false
	// if the data directory was given, which is then kept.
	Dev bool `key:"-dev"`
	// Places are where blocks with names are, the last one of a name: FILE:LINE, by such as csi_driver "x".
	Places map[string]string

	source Source
}

// Server is this agent's role in the ledger.
type Server struct {
	// Enabled is true if the agent keeps a copy of the ledger and votes.
	Enabled bool
	// BootstrapExpect is how many servers form a new ledger; 0: this one never does, and waits to be added to a
	// cluster.
	BootstrapExpect int
	// ElectionTimeout is how long servers wait for a leader; 0: the ledger's default.
	ElectionTimeout time.Duration
	// Liveness has the timeouts for nodes while this server leads.
	Liveness claim.Liveness
}

// Plugin configures one plugin of the plugin directory.
type Plugin struct {
	// Name is the binary's file name.
	Name string
	// Args follow the program's name.
	Args []string
	// Env are variables of its environment.
	Env map[string]string
	// User runs it; empty: the agent's.
	User string
	// Group runs it; empty: the user's.
	Group string
	// Limits of its resources.
	Limits process.Limits
	// Checksum is "sha256:" and 64 hex digits; empty: any binary is accepted.
	Checksum string
	// Version constrains the version that the plugin reports, such as "~> 1.2"; empty: any.
	Version string
	// RollbackWindow is how long after a swap a failure restores the previous binary. 0: it never does.
	RollbackWindow time.Duration
	// KeepVersions is how many copies that served are kept, the one that serves included.
	KeepVersions int
	// StateLimit bounds what the host keeps for it, in bytes; 0: the default.
	StateLimit int64
	// Config is the config block as a JSON object; nil when there is none.
	Config []byte
	// Frontend is set for a plugin with listen or api blocks.
	Frontend *Frontend
	// Where is the place of the config block, or of the plugin's last block if it has none: FILE:LINE.
	Where string
}

// Frontend is what the host has for a front door.
type Frontend struct {
	// Sockets that it serves.
	Sockets []Socket
	// API is its access to the API; nil: none.
	API *API
}

// Listens returns the sockets of a front door; f may be nil.
func (f *Frontend) Listens() []Socket {
	if f == nil {
		return nil
	}
	return f.Sockets
}

// SameAPI reports whether another configuration has the same access to the API. Both may be nil.
func (f *Frontend) SameAPI(other *Frontend) bool {
	access := func(f *Frontend) (_ API, has bool) {
		if f == nil || f.API == nil {
			return API{}, false
		}
		return *f.API, true
	}
	mine, has := access(f)
	theirs, have := access(other)
	return mine == theirs && has == have
}

// CredentialsSocket is the path of the socket from which units load the secrets of their workloads.
func (a *Agent) CredentialsSocket() string {
	return strings.TrimSuffix(a.Socket, ".sock") + "-credentials.sock"
}

// Socket is a listening socket of a front door.
type Socket struct {
	Name string
	// Address is unix:// and an absolute path, or an IP address (or nothing, for all) and a port.
	Address string
	// Mode, Owner and Group of a unix socket's file. An empty owner or group is the agent's.
	Mode         fs.FileMode
	Owner, Group string
}

// API is a front door's access to the API: as a token with a policy, or as the one of a file.
type API struct {
	Policy, TokenFile string
}

// Driver declares a CSI driver on this node.
type Driver struct {
	ID string
	// Type is node, controller or monolith.
	Type string
	// Endpoint is the driver's socket: "unix://" and an absolute path.
	Endpoint string
	// Plugin is the storage plugin that the driver is reached through; empty: csi-bridge, or the only one.
	Plugin string
	// Command runs the driver; empty: something else runs it.
	Command []string
	// Env are variables of its environment: values, or file:// references that are read when it is started.
	Env map[string]string
	// User runs it; empty: the agent's.
	User string
	// Checksum is the checksum of the command's program: "sha256:" and 64 hex digits; empty: any.
	Checksum string
	// Overlap is true if two processes of it may run side by side.
	Overlap bool
	// Limits of its resources; 0: none.
	Limits process.Limits
	// MountDir and StagePublishBaseDir are where a driver in a container sees its
	// folder and its staging and publish paths; both empty: it sees the host's paths.
	MountDir            string
	StagePublishBaseDir string
	// HealthTimeout bounds the wait for the driver's first healthy answer.
	HealthTimeout time.Duration
	// Timeouts bound its calls that mount and unmount; 0: the default. SettleTime is how long a claim is kept for a call
	// that was never answered.
	Timeouts   DriverTimeouts
	SettleTime time.Duration
	// AllowedMountFlags are mount flags that volumes and workloads may ask for besides harmless ones: a name, or
	// name=value.
	AllowedMountFlags []string
	// EphemeralVolumes opens the driver for volumes of one workload each; nil: it is not open.
	EphemeralVolumes *EphemeralVolumes
	// Controller is the driver's controller, if that is another process than its node service: its endpoint, and how it
	// is run.
	Controller *Driver
}

// EphemeralVolumes says for whom a driver makes ephemeral volumes.
type EphemeralVolumes struct {
	// Namespaces of workloads; empty: all.
	Namespaces []string
	// Secrets of the calls: file:// references.
	Secrets map[string]string
}

// DriverTimeouts bound a driver's calls.
type DriverTimeouts struct{ Stage, Unstage, Publish, Unpublish time.Duration }

// Consul is a Consul datacenter that services may name, or an issuer of identities that workloads may name.
type Consul struct {
	service.Consul
	// Audience is the aud claim of the JWT for a login.
	Audience string
	// IdentityTimeout bounds the derivation of a service's token.
	IdentityTimeout time.Duration
	// CheckAddresses are the addresses, networks and names to which its agent may be asked to connect by checks, besides
	// this host's own.
	CheckAddresses []string
	// IdentityPlugin, RegistrationPlugin and BootstrapPlugin are the plugins that reach it; empty: sids, consul-services
	// and envoy-bootstrap, or the only ones of their kinds.
	IdentityPlugin, RegistrationPlugin, BootstrapPlugin string
	// IdentityOnly is set for an identity block: its plugin issues identities, and there is no Consul.
	IdentityOnly bool
}

// Block is how the block is named in messages.
func (c Consul) Block() string {
	if c.IdentityOnly {
		return fmt.Sprintf("identity %q", c.Name)
	}
	return fmt.Sprintf("consul %q", c.Name)
}

// WantsJWT reports whether its identity plugin gets a JWT of the cluster for each token.
func (c Consul) WantsJWT() bool { return c.IdentityOnly || c.AuthMethod != "" }

// GC configures garbage collection.
type GC struct {
	// Interval between two collections.
	Interval time.Duration
	// ClaimThreshold is the age from which claims are checked.
	ClaimThreshold time.Duration
	// DriverThreshold is how long a driver has been gone when its record is removed.
	DriverThreshold time.Duration
	// WorkloadThreshold is how long the record of an ended workload is kept.
	WorkloadThreshold time.Duration
	// NodeThreshold is how long a node without workloads and claims has been down when its record is removed.
	NodeThreshold time.Duration
}

// LockFile is the file of the data directory that a running agent has locked (flock(2)).
const LockFile = "agent.lock"

// Defaults that help texts show.
const (
	DefaultDataDir  = "/var/lib/pannier"
	DefaultSocket   = "/run/pannier/pannier.sock"
	DefaultHTTPPort = 7420
	DefaultRPCPort  = 7421
	DefaultSerfPort = 7422

	// The same range as in Nomad.
	defaultMinDynamicPort = 20000
	defaultMaxDynamicPort = 32000
	defaultPortsQuota     = 2000

	defaultHealthTimeout  = 30 * time.Second
	defaultRollbackWindow = 30 * time.Second
	// defaultConsulAddress is a Consul agent's default address.
	defaultConsulAddress   = "127.0.0.1:8500"
	defaultIdentityTimeout = 5 * time.Minute
	// defaultAudience is from Nomad's documentation of auth methods.
	defaultAudience = "consul.io"

	systemPluginDir = "/usr/lib/pannier/plugins"
	systemCSILocal  = "/usr/lib/pannier/csi-local"

	// maxSocketPath is what fits into a unix socket's address (unix(7): 108
	// bytes with the NUL).
	maxSocketPath = 107
)

func defaults() *Agent {
	return &Agent{
		Places:             map[string]string{},
		Datacenter:         "dc1",
		Socket:             DefaultSocket,
		BindAddr:           "127.0.0.1",
		HTTPPort:           DefaultHTTPPort,
		RPCPort:            DefaultRPCPort,
		SerfPort:           DefaultSerfPort,
		MinDynamicPort:     defaultMinDynamicPort,
		MaxDynamicPort:     defaultMaxDynamicPort,
		PortsQuota:         defaultPortsQuota,
		LogLevel:           "info",
		LogFormat:          "text",
		Server:             Server{Enabled: true, BootstrapExpect: 1, Liveness: claim.DefaultLiveness},
		Autopilot:          defaultAutopilot(),
		ACL:                ACL{SocketRoot: true},
		VolumeMetrics:      true,
		LeavePluginsOnStop: true,
		GC: GC{
			Interval:          5 * time.Minute,
			ClaimThreshold:    5 * time.Minute,
			DriverThreshold:   24 * time.Hour,
			WorkloadThreshold: 24 * time.Hour,
			NodeThreshold:     24 * time.Hour,
		},
	}
}

// DefaultEndpoint is the endpoint of a driver that is declared without one.
func DefaultEndpoint(dataDir, id string) string {
	return "unix://" + filepath.Join(dataDir, "csi", id, "csi.sock")
}
