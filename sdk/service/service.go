// Package service is the model of a workload's services, and of how to reach a Consul. The kinds registration,
// identity and bootstrap share it.
//
// The JSON field names are the protobuf messages' of pannier.service.v1, so that one can be converted to the other
// through JSON (convert.go).
package service

// Consul is one Consul datacenter, as a host reaches it through its local agent. Files are paths on the host.
type Consul struct {
	// Name of the agent's consul block; DefaultConsul for the unnamed one.
	Name string `json:"name,omitempty"`
	// Address of the HTTP API: "127.0.0.1:8500", "https://…:8501" or "unix:///…".
	Address string `json:"address,omitempty"`
	// TokenFile holds the ACL token for registrations; empty: none is sent.
	TokenFile string `json:"token_file,omitempty"`
	// CAFile has the certificates of authorities; it, and GRPCCAFile, may be a directory of such files.
	CAFile   string `json:"ca_file,omitempty"`
	CertFile string `json:"cert_file,omitempty"`
	KeyFile  string `json:"key_file,omitempty"`
	// TLSServerName is the name that the certificate must have, instead of the host name.
	TLSServerName string `json:"tls_server_name,omitempty"`
	// GRPCAddress of the xDS server: "127.0.0.1:8502", "https://…:8503" or "unix:///…"; empty: the agent is asked
	// for it.
	GRPCAddress string `json:"grpc_address,omitempty"`
	// GRPCCAFile verifies the xDS server; empty: CAFile.
	GRPCCAFile string `json:"grpc_ca_file,omitempty"`
	// Datacenter, Namespace and Partition; empty: the Consul agent's own.
	Datacenter string `json:"datacenter,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Partition  string `json:"partition,omitempty"`
	// AuthMethod is the auth method for a login with a JWT; empty: tokens are minted.
	AuthMethod string `json:"auth_method,omitempty"`
}

// DefaultConsul is the name of the unnamed consul block.
const DefaultConsul = "default"

// Service is one service of a workload. It has the names and defaults of Nomad's service block. Durations are strings
// as Consul's API accepts them ("10s").
type Service struct {
	Name string `json:"name"`
	// Port is a number, or the label of one of the workload's ports; empty: none.
	Port string `json:"port,omitempty"`
	// Address to register; empty: the Consul agent's.
	Address string   `json:"address,omitempty"`
	Tags    []string `json:"tags,omitempty"`
	// CanaryTags and CanaryMeta replace Tags and Meta while the workload is a canary.
	CanaryTags      []string          `json:"canary_tags,omitempty"`
	Meta            map[string]string `json:"meta,omitempty"`
	CanaryMeta      map[string]string `json:"canary_meta,omitempty"`
	TaggedAddresses map[string]string `json:"tagged_addresses,omitempty"`
	// EnableTagOverride lets other tools change the tags in the catalog.
	EnableTagOverride bool     `json:"enable_tag_override,omitempty"`
	Checks            []Check  `json:"checks,omitempty"`
	Connect           *Connect `json:"connect,omitempty"`
	Weights           *Weights `json:"weights,omitempty"`
	// Consul is the name of the agent's consul block; empty: DefaultConsul.
	Consul string `json:"consul,omitempty"`
	// IdentityOnly is set for an identity of the workload that is no service: from the agent's identity block that
	// Consul names. It is not registered, and has only a name.
	IdentityOnly bool `json:"identity_only,omitempty"`
	// Intentions are the services of the mesh that may call this one, AnyService for all; empty: it says nothing about
	// that.
	Intentions []string `json:"intentions,omitempty"`
}

// AnyService stands for all services in Service.Intentions.
const AnyService = "*"

// Weights of a service in DNS answers.
type Weights struct {
	Passing int32 `json:"passing,omitempty"`
	Warning int32 `json:"warning,omitempty"`
}

// The types of checks. A process check passes while the workload's process runs.
const (
	CheckHTTP    = "http"
	CheckTCP     = "tcp"
	CheckGRPC    = "grpc"
	CheckProcess = "process"
)

// Check is one health check of a service.
type Check struct {
	Name string `json:"name,omitempty"`
	Type string `json:"type"`
	// Port as in Service; empty: the service's.
	Port string `json:"port,omitempty"`
	// Address to check; empty: the service's or, without one, 127.0.0.1.
	Address string `json:"address,omitempty"`
	// Path, Protocol (http or https), Method, Body and Header are for http checks.
	Path     string                  `json:"path,omitempty"`
	Protocol string                  `json:"protocol,omitempty"`
	Method   string                  `json:"method,omitempty"`
	Body     string                  `json:"body,omitempty"`
	Header   map[string]HeaderValues `json:"header,omitempty"`
	Interval string                  `json:"interval,omitempty"`
	Timeout  string                  `json:"timeout,omitempty"`
	// InitialStatus is passing, warning or critical; empty: critical.
	InitialStatus          string `json:"initial_status,omitempty"`
	SuccessBeforePassing   int32  `json:"success_before_passing,omitempty"`
	FailuresBeforeWarning  int32  `json:"failures_before_warning,omitempty"`
	FailuresBeforeCritical int32  `json:"failures_before_critical,omitempty"`
	TLSSkipVerify          bool   `json:"tls_skip_verify,omitempty"`
	TLSServerName          string `json:"tls_server_name,omitempty"`
	GRPCService            string `json:"grpc_service,omitempty"`
	GRPCUseTLS             bool   `json:"grpc_use_tls,omitempty"`
	// Expose makes an http or grpc check go through the sidecar, on a separate listener.
	Expose bool `json:"expose,omitempty"`
	// Notes are for people.
	Notes string `json:"notes,omitempty"`
}

// HeaderValues are the values of one header.
type HeaderValues struct {
	Values []string `json:"values,omitempty"`
}

// Connect puts a service into the mesh: exactly one of its fields is set.
type Connect struct {
	Native         bool            `json:"native,omitempty"`
	SidecarService *SidecarService `json:"sidecar_service,omitempty"`
	Gateway        *Gateway        `json:"gateway,omitempty"`
	// Admin says where the proxy's admin API and its readiness listen: AdminUnix, AdminTCP or AdminNone; empty:
	// AdminUnix.
	Admin string `json:"admin,omitempty"`
}

// Where a proxy's admin API and its readiness listen. The admin API shows the proxy's token to whoever reaches it.
const (
	AdminUnix = "unix" // on sockets in the service's folder, which only the workload's user reaches
	AdminTCP  = "tcp"  // on ports of 127.0.0.1, which every local user reaches
	AdminNone = "none"
)

// Identified reports whether the service gets a token.
func (s *Service) Identified() bool { return s.Connect != nil || s.IdentityOnly }

// Proxied reports whether the service has a proxy: a sidecar, or itself as a gateway.
func (s *Service) Proxied() bool {
	return s.Connect != nil && !s.Connect.Native
}

// Upstreams are those of the service's sidecar, not a copy of them.
func (s *Service) Upstreams() []Upstream {
	if s.Connect == nil || s.Connect.SidecarService == nil || s.Connect.SidecarService.Proxy == nil {
		return nil
	}
	return s.Connect.SidecarService.Proxy.Upstreams
}

// SidecarService is the sidecar of a service.
type SidecarService struct {
	// Port of the public listener: a number or a label; empty: Consul picks one.
	Port                   string            `json:"port,omitempty"`
	Tags                   []string          `json:"tags,omitempty"`
	Meta                   map[string]string `json:"meta,omitempty"`
	DisableDefaultTCPCheck bool              `json:"disable_default_tcp_check,omitempty"`
	Proxy                  *Proxy            `json:"proxy,omitempty"`
}

// Proxy configures a sidecar.
type Proxy struct {
	LocalServiceAddress string `json:"local_service_address,omitempty"`
	// LocalServicePort; 0: the service's port.
	LocalServicePort int32 `json:"local_service_port,omitempty"`
	// LocalServicePortLabel is a label of the workload's ports, in place of LocalServicePort.
	LocalServicePortLabel string     `json:"local_service_port_label,omitempty"`
	Upstreams             []Upstream `json:"upstreams,omitempty"`
	Expose                *Expose    `json:"expose,omitempty"`
	// Config is opaque to Pannier, except the envoy_* keys, which affect the bootstrap.
	Config      map[string]any `json:"config,omitempty"`
	MeshGateway *MeshGateway   `json:"mesh_gateway,omitempty"`
}

// Upstream is a service that the sidecar makes available on a local port or socket.
type Upstream struct {
	DestinationName string `json:"destination_name,omitempty"`
	// DestinationType is service or prepared_query; empty: service.
	DestinationType      string `json:"destination_type,omitempty"`
	DestinationNamespace string `json:"destination_namespace,omitempty"`
	DestinationPartition string `json:"destination_partition,omitempty"`
	DestinationPeer      string `json:"destination_peer,omitempty"`
	Datacenter           string `json:"datacenter,omitempty"`
	LocalBindAddress     string `json:"local_bind_address,omitempty"`
	LocalBindPort        int32  `json:"local_bind_port,omitempty"`
	// LocalBindPortLabel is a label of the workload's ports, in place of LocalBindPort. The host replaces it by the
	// number.
	LocalBindPortLabel  string         `json:"local_bind_port_label,omitempty"`
	LocalBindSocketPath string         `json:"local_bind_socket_path,omitempty"`
	LocalBindSocketMode string         `json:"local_bind_socket_mode,omitempty"`
	MeshGateway         *MeshGateway   `json:"mesh_gateway,omitempty"`
	Config              map[string]any `json:"config,omitempty"`
}

// MeshGateway has the mode in which mesh gateways are used.
type MeshGateway struct {
	// Mode is none, local or remote.
	Mode string `json:"mode,omitempty"`
}

// Expose opens paths of the service to callers outside the mesh.
type Expose struct {
	Checks bool         `json:"checks,omitempty"`
	Paths  []ExposePath `json:"paths,omitempty"`
}

// ExposePath is one exposed path.
type ExposePath struct {
	Path string `json:"path,omitempty"`
	// Protocol is http or http2.
	Protocol      string `json:"protocol,omitempty"`
	LocalPathPort int32  `json:"local_path_port,omitempty"`
	// LocalPathPortLabel is a label of the workload's ports, in place of LocalPathPort.
	LocalPathPortLabel string `json:"local_path_port_label,omitempty"`
	// ListenerPort is a number or a label.
	ListenerPort string `json:"listener_port,omitempty"`
}

// Gateway makes the service a gateway: exactly one of Ingress, Terminating, Mesh and API is set.
type Gateway struct {
	Proxy       *GatewayProxy `json:"proxy,omitempty"`
	Ingress     *Ingress      `json:"ingress,omitempty"`
	Terminating *Terminating  `json:"terminating,omitempty"`
	Mesh        *Mesh         `json:"mesh,omitempty"`
	API         *APIGateway   `json:"api,omitempty"`
}

// GatewayProxy configures a gateway's proxy.
type GatewayProxy struct {
	ConnectTimeout                  string                 `json:"connect_timeout,omitempty"`
	EnvoyGatewayBindTaggedAddresses bool                   `json:"envoy_gateway_bind_tagged_addresses,omitempty"`
	EnvoyGatewayBindAddresses       map[string]BindAddress `json:"envoy_gateway_bind_addresses,omitempty"`
	EnvoyGatewayNoDefaultBind       bool                   `json:"envoy_gateway_no_default_bind,omitempty"`
	EnvoyDNSDiscoveryType           string                 `json:"envoy_dns_discovery_type,omitempty"`
	Config                          map[string]any         `json:"config,omitempty"`
}

// BindAddress is an address that a gateway listens on.
type BindAddress struct {
	Address string `json:"address,omitempty"`
	Port    int32  `json:"port,omitempty"`
}

// Ingress is the config entry of an ingress gateway.
type Ingress struct {
	TLS       *IngressTLS       `json:"tls,omitempty"`
	Listeners []IngressListener `json:"listeners,omitempty"`
}

// IngressTLS of all listeners, or of one service.
type IngressTLS struct {
	Enabled       bool     `json:"enabled,omitempty"`
	TLSMinVersion string   `json:"tls_min_version,omitempty"`
	TLSMaxVersion string   `json:"tls_max_version,omitempty"`
	CipherSuites  []string `json:"cipher_suites,omitempty"`
	SDS           *SDS     `json:"sds,omitempty"`
}

// SDS is where Envoy gets a certificate: a cluster of its bootstrap that serves secrets, and the secret's name there.
type SDS struct {
	ClusterName  string `json:"cluster_name,omitempty"`
	CertResource string `json:"cert_resource,omitempty"`
}

// IngressListener is one listener with its services.
type IngressListener struct {
	Port int32 `json:"port,omitempty"`
	// Protocol is tcp, http, http2 or grpc; empty: tcp.
	Protocol string           `json:"protocol,omitempty"`
	Services []IngressService `json:"services,omitempty"`
}

// IngressService is a service behind a listener.
type IngressService struct {
	Name  string   `json:"name,omitempty"`
	Hosts []string `json:"hosts,omitempty"`
	// TLS of the service's hosts has SDS only.
	TLS             *IngressTLS      `json:"tls,omitempty"`
	RequestHeaders  *HeaderModifiers `json:"request_headers,omitempty"`
	ResponseHeaders *HeaderModifiers `json:"response_headers,omitempty"`
	// Bounds for each instance of the service; 0: Envoy's defaults.
	MaxConnections        int32 `json:"max_connections,omitempty"`
	MaxPendingRequests    int32 `json:"max_pending_requests,omitempty"`
	MaxConcurrentRequests int32 `json:"max_concurrent_requests,omitempty"`
}

// HeaderModifiers change the headers of requests or answers.
type HeaderModifiers struct {
	Add    map[string]string `json:"add,omitempty"`
	Set    map[string]string `json:"set,omitempty"`
	Remove []string          `json:"remove,omitempty"`
}

// Terminating is the config entry of a terminating gateway.
type Terminating struct {
	Services []LinkedService `json:"services,omitempty"`
}

// LinkedService is a service outside the mesh.
type LinkedService struct {
	Name     string `json:"name,omitempty"`
	CAFile   string `json:"ca_file,omitempty"`
	CertFile string `json:"cert_file,omitempty"`
	KeyFile  string `json:"key_file,omitempty"`
	SNI      string `json:"sni,omitempty"`
}

// Mesh makes the service a mesh gateway. It has no settings.
type Mesh struct{}

// APIGateway is a gateway for callers outside the mesh. Its listeners and routes are config entries that others write.
type APIGateway struct{}
