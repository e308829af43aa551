package envoy

// Proxy is what a bootstrap is made of.
type Proxy struct {
	// ID is the proxy's service id in Consul. It becomes Envoy's node id, by which
	// Consul finds the proxy's configuration.
	ID string
	// Service is the name of the service that the proxy stands for: a sidecar's
	// destination, or a gateway's own name.
	Service    string
	Datacenter string
	// Namespace and Partition; empty: default.
	Namespace, Partition string
	// Config is the opaque configuration of the registration, as JSON gives it. Keys
	// other than the bootstrap's are ignored.
	Config map[string]any
	// AccessLogs is what Consul's proxy-defaults say about them; nil: nothing.
	AccessLogs *AccessLogs
	// Admin is where the admin API listens.
	Admin Endpoint
	// Ready is where the proxy answers /ready; port 0: nowhere.
	Ready Endpoint
	// Server is Consul's xDS server.
	Server Server
	// Token goes with every xDS stream; empty: an anonymous stream.
	Token string
}

// Endpoint is an IP address and a TCP port.
type Endpoint struct {
	Address string
	Port    uint32
}

// Server is an xDS server. Socket, the path of a unix socket, is taken before Endpoint.
type Server struct {
	Endpoint Endpoint
	Socket   string
	TLS      bool
	// CA are the PEM certificates that the server's is checked against. Without one
	// Envoy checks nothing.
	CA string
}

// AccessLogs is the part of Consul's proxy-defaults that is about access logs.
type AccessLogs struct {
	Enabled bool
	// Type is stdout, stderr or file; empty: stdout.
	Type string
	// Path of the file, for the type file.
	Path string
	// JSONFormat is taken before TextFormat; both empty: Consul's JSON.
	JSONFormat, TextFormat string
}
