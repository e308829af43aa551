package config

import (
	"path/filepath"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/sdk/service"
)

// Agent is the configuration of an agent, complete and valid. docs/configuration.md
// tells each field.
type Agent struct {
	// Name of this node, unique in the cluster.
	Name       string
	Datacenter string
	// DataDir holds all that lasts; absolute.
	DataDir string
	// PluginDir holds the plugins' binaries; absolute.
	PluginDir string
	// Socket is the path of the API's unix socket; absolute.
	Socket string
	// SocketGroup may use the socket beside root; a name or a number, empty: root only.
	SocketGroup string
	// BindAddr is the IP address on which everything is served that is on TCP.
	BindAddr string
	// AdvertiseAddr is the IP address at which other agents reach this one; empty: BindAddr.
	AdvertiseAddr string
	// HTTPPort serves health and metrics, and the API where there is a TLS; 0: any free one.
	HTTPPort int
	// RPCPort serves other agents, SerfPort gossips with them; 0: any free one.
	RPCPort, SerfPort int
	// MinDynamicPort and MaxDynamicPort bound the ports that workloads are given.
	MinDynamicPort, MaxDynamicPort int
	// SecretsDir holds the secrets of workloads, on a tmpfs; absolute.
	SecretsDir string
	// LogLevel is trace, debug, info, warn or error.
	LogLevel string
	// LogFormat is text or json.
	LogFormat string
	Server    Server
	// TLS is this host's certificate; nil: it is a host of its own, which opens no port
	// for other agents.
	TLS *TLS
	// RetryJoin are the serf addresses, host:port, of agents that are asked until one answers.
	RetryJoin []string
	// Gossip is encrypted with this key.
	Gossip    KeySource
	Autopilot Autopilot
	// Ledger is encrypted on disk with this key.
	Ledger KeySource
	ACL    ACL
	// AuditPath is the file that tells who called what; absolute. Empty: there is none.
	AuditPath string
	// Plugins by name; a plugin of the directory that has no entry runs with the defaults.
	Plugins []Plugin
	// Drivers by id.
	Drivers []Driver
	// Consuls by name; empty: services have nowhere to go.
	Consuls []Consul
	// LeavePluginsOnStop leaves plugins and drivers running when the agent stops, so
	// that the next one finds them.
	LeavePluginsOnStop bool
	GC                 GC
	// Dev says that the agent was started for trying out, with a data directory that
	// was made for it and goes with it. One that was named is kept: Dev is then false.
	Dev bool
}

// Server is this agent's part in the ledger.
type Server struct {
	// Enabled keeps a copy of the ledger here and votes.
	Enabled bool
	// BootstrapExpect is how many servers meet before the ledger is begun; 0: this one never
	// begins one, it waits to be added to a cluster.
	BootstrapExpect int
	// Liveness is what this server promises nodes while it leads.
	Liveness claim.Liveness
}

// Plugin configures one plugin of the plugin directory.
type Plugin struct {
	// Name is the binary's file name.
	Name string
	// Args follow the program's name.
	Args []string
	// User that runs it; empty: the agent's.
	User string
	// Group that it runs as; empty: the user's.
	Group string
	// Limits of what it may use.
	Limits Limits
	// Checksum is "sha256:" and 64 hex digits; empty: any binary is taken.
	Checksum string
	// Version constrains what the plugin says of itself, such as "~> 1.2"; empty: any.
	Version string
	// RollbackWindow is how long after a swap a failure brings the binary before it back.
	RollbackWindow time.Duration
	// Config is the config block as a JSON object; nil when there is none.
	Config []byte
}

// Limits bound what a plugin may use, together with what it starts. 0: the default.
type Limits struct {
	// Memory in bytes.
	Memory int64
	// OpenFiles of each of its processes.
	OpenFiles int
	// Processes and their threads.
	Processes int
}

// Driver declares a CSI driver on this node.
type Driver struct {
	ID string
	// Type is node, controller or monolith.
	Type string
	// Endpoint is the driver's socket: "unix://" and an absolute path.
	Endpoint string
	// Command runs the driver; empty: it is run by someone else.
	Command []string
	// User that runs it; empty: the agent's.
	User string
	// MountDir and StagePublishBaseDir are where a driver in a container sees its
	// folder and its staging and publish paths; both empty: it sees the host's paths.
	MountDir            string
	StagePublishBaseDir string
	// HealthTimeout bounds the wait for the driver's first healthy answer.
	HealthTimeout time.Duration
}

// Consul is one Consul datacenter that services of workloads may name.
type Consul struct {
	service.Consul
	// Audience is the aud of the JWT that a login is made with.
	Audience string
	// IdentityTimeout bounds the whole derivation of a service's token.
	IdentityTimeout time.Duration
}

// GC tells when what nobody uses is looked for.
type GC struct {
	// Interval between two looks.
	Interval time.Duration
	// ClaimThreshold is the age from which a claim is looked at.
	ClaimThreshold time.Duration
	// DriverThreshold is how long a driver is gone before the ledger forgets it.
	DriverThreshold time.Duration
	// WorkloadThreshold is how long an ended workload can still be read.
	WorkloadThreshold time.Duration
	// NodeThreshold is how long a node is down, and holds nothing, before the ledger
	// forgets it.
	NodeThreshold time.Duration
}

// The defaults that others tell too.
const (
	DefaultDataDir  = "/var/lib/pannier"
	DefaultSocket   = "/run/pannier/pannier.sock"
	DefaultHTTPPort = 7420
	DefaultRPCPort  = 7421
	DefaultSerfPort = 7422

	// The range is Nomad's.
	defaultMinDynamicPort = 20000
	defaultMaxDynamicPort = 32000

	defaultHealthTimeout  = 30 * time.Second
	defaultRollbackWindow = time.Minute
	// defaultConsulAddress is where a Consul agent listens when nobody tells it otherwise.
	defaultConsulAddress   = "127.0.0.1:8500"
	defaultIdentityTimeout = 5 * time.Minute
	// defaultAudience is what Nomad's own documentation of auth methods uses.
	defaultAudience = "consul.io"

	systemPluginDir = "/usr/lib/pannier/plugins"
	systemCSILocal  = "/usr/lib/pannier/csi-local"

	// maxSocketPath is what fits into a unix socket's address (unix(7): 108
	// bytes with the NUL).
	maxSocketPath = 107
)

func defaults() *Agent {
	return &Agent{
		Datacenter:         "dc1",
		Socket:             DefaultSocket,
		BindAddr:           "127.0.0.1",
		HTTPPort:           DefaultHTTPPort,
		RPCPort:            DefaultRPCPort,
		SerfPort:           DefaultSerfPort,
		MinDynamicPort:     defaultMinDynamicPort,
		MaxDynamicPort:     defaultMaxDynamicPort,
		LogLevel:           "info",
		LogFormat:          "text",
		Server:             Server{Enabled: true, BootstrapExpect: 1, Liveness: lease.Default},
		Autopilot:          defaultAutopilot,
		ACL:                ACL{SocketRoot: true},
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

// DefaultEndpoint is where the agent reaches a driver that names no endpoint.
func DefaultEndpoint(dataDir, id string) string {
	return "unix://" + filepath.Join(dataDir, "csi", id, "csi.sock")
}
