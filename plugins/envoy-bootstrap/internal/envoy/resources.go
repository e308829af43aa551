package envoy

import (
	"cmp"
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tracev3 "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// agentClusterName is the name that Consul uses for its own xDS server.
	agentClusterName = "local_agent"
	// selfAdminName is the cluster of the proxy's own admin API.
	selfAdminName = "self_admin"
	// prometheusBackendName is the cluster of a server that answers Prometheus in place of the admin API.
	prometheusBackendName = "prometheus_backend"
	// httpOptionsName is the extension that sets which HTTP version a cluster uses.
	httpOptionsName = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
)

// agentCluster is the cluster of Consul's xDS server.
func agentCluster(p Proxy) (*clusterv3.Cluster, error) {
	s := p.Server
	address := socketAddress(s.Endpoint)
	if s.Socket != "" {
		address = pipeAddress(s.Socket)
	}
	filters, err := p.tokenFilters()
	if err != nil {
		return nil, err
	}
	c, err := staticCluster(agentClusterName, address, &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
	}, filters...)
	if err != nil {
		return nil, err
	}
	c.ConnectTimeout = durationpb.New(time.Second)
	if !s.TLS {
		return c, nil
	}
	common := &tlsv3.CommonTlsContext{}
	if p.Dir != "" {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: p.secret(caSecret),
		}
	} else {
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validationContext(s.CA)}
	}
	c.TransportSocket, err = tlsSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: common})
	return c, err
}

func tlsSocket(conf proto.Message) (*corev3.TransportSocket, error) {
	packed, err := anypb.New(conf)
	if err != nil {
		return nil, err
	}
	return &corev3.TransportSocket{
		Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed},
	}, nil
}

// http1Cluster is a cluster of a server that speaks HTTP/1.
func http1Cluster(name string, at Endpoint) (*clusterv3.Cluster, error) {
	c, err := staticCluster(name, socketAddress(at), &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}},
	})
	if err != nil {
		return nil, err
	}
	c.ConnectTimeout = durationpb.New(5 * time.Second)
	return c, nil
}

func staticCluster(name string, address *corev3.Address,
	speaks *httpv3.HttpProtocolOptions_ExplicitHttpConfig, filters ...*hcmv3.HttpFilter,
) (*clusterv3.Cluster, error) {
	options, err := anypb.New(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: speaks},
		HttpFilters:             filters,
	})
	if err != nil {
		return nil, err
	}
	return &clusterv3.Cluster{
		Name:                          name,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		TypedExtensionProtocolOptions: map[string]*anypb.Any{httpOptionsName: options},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
			}}}},
		},
	}, nil
}

// socketMode is the mode of the sockets that the proxy makes.
const socketMode = 0o600

func socketAddress(e Endpoint) *corev3.Address {
	if e.Socket != "" {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: e.Socket, Mode: socketMode}}}
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: e.Address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: e.Port},
	}}}
}

func pipeAddress(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

// adminEndpoint is a part of the admin API that gets its own listener, so that the rest stays private.
type adminEndpoint struct {
	name  string
	bind  Endpoint
	match *routev3.RouteMatch
	// path is its path in the admin API.
	path string
	// backend is the port of another server that answers in place of the admin API; 0: none does.
	backend uint32
	// tls of the listener; nil: plain HTTP.
	tls *tlsv3.DownstreamTlsContext
}

// addEndpoints adds listeners for metrics, statistics and readiness, if configured.
func addEndpoints(b *bootstrapv3.Bootstrap, p Proxy) error {
	prometheus, err := prometheusOf(b, p)
	if err != nil {
		return err
	}
	stats, err := bindOf(p, keyStatsBind)
	if err != nil {
		return err
	}
	for _, e := range []adminEndpoint{
		prometheus,
		{name: "envoy_metrics", bind: stats, match: below("/stats"), path: "/stats"},
		{name: "envoy_ready", bind: p.Ready, match: exactly("/ready"), path: "/ready"},
	} {
		if e.bind == (Endpoint{}) {
			continue
		}
		if err := addBackend(b, p, e); err != nil {
			return err
		}
		l, err := e.listener()
		if err != nil {
			return err
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
	}
	return nil
}

// bindOf returns the address in key; the zero Endpoint if there is none.
func bindOf(p Proxy, key string) (Endpoint, error) {
	text, err := settings(p.Config).text(key)
	if err != nil || text == "" {
		return Endpoint{}, err
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return Endpoint{}, invalid(key, "want ADDRESS:PORT, got %q", text)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || host == "" {
		return Endpoint{}, invalid(key, "want ADDRESS:PORT with a port from 1 to 65535, got %q", text)
	}
	return Endpoint{Address: host, Port: uint32(n)}, nil
}

// addBackend adds the cluster behind an endpoint once: Envoy refuses two clusters with the same name, and the operator
// may have configured one.
func addBackend(b *bootstrapv3.Bootstrap, p Proxy, e adminEndpoint) error {
	name, at := e.cluster(), p.Admin
	if e.backend != 0 {
		at = Endpoint{Address: cmp.Or(p.Admin.Address, "127.0.0.1"), Port: e.backend}
	}
	if at == (Endpoint{}) {
		return status.Errorf(codes.InvalidArgument, "the listener %s needs the proxy's admin API, and it has none", e.name)
	}
	if slices.ContainsFunc(b.StaticResources.Clusters,
		func(c *clusterv3.Cluster) bool { return c.GetName() == name }) {
		return nil
	}
	c, err := http1Cluster(name, at)
	if err != nil {
		return err
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	return nil
}

// cluster is the name of the one behind the endpoint.
func (e adminEndpoint) cluster() string {
	if e.backend != 0 {
		return prometheusBackendName
	}
	return selfAdminName
}

func exactly(path string) *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: path}}
}

func below(prefix string) *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: prefix}}
}

func (e adminEndpoint) listener() (*listenerv3.Listener, error) {
	router, err := anypb.New(&routerv3.Router{})
	if err != nil {
		return nil, err
	}
	manager, err := anypb.New(&hcmv3.HttpConnectionManager{
		StatPrefix: e.name,
		CodecType:  hcmv3.HttpConnectionManager_HTTP1,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			Name: "self_admin_route",
			VirtualHosts: []*routev3.VirtualHost{{
				Name:    selfAdminName,
				Domains: []string{"*"},
				Routes: []*routev3.Route{
					{Match: e.match, Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: e.cluster()},
						PrefixRewrite:    e.path,
					}}},
					{
						Match:  below("/"),
						Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 404}},
					},
				},
			}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router},
		}},
	})
	if err != nil {
		return nil, err
	}
	chain := &listenerv3.FilterChain{Filters: []*listenerv3.Filter{{
		Name:       "envoy.filters.network.http_connection_manager",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager},
	}}}
	if e.tls != nil {
		if chain.TransportSocket, err = tlsSocket(e.tls); err != nil {
			return nil, err
		}
	}
	return &listenerv3.Listener{
		Name: e.name + "_listener", Address: socketAddress(e.bind), FilterChains: []*listenerv3.FilterChain{chain},
	}, nil
}

// addStatic adds the clusters and listeners that the operator configured.
func addStatic(b *bootstrapv3.Bootstrap, p Proxy) error {
	clusters, err := fragments(p, keyStaticClusters, func() *clusterv3.Cluster { return &clusterv3.Cluster{} })
	if err != nil {
		return err
	}
	listeners, err := fragments(p, keyStaticListeners, func() *listenerv3.Listener { return &listenerv3.Listener{} })
	if err != nil {
		return err
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, clusters...)
	b.StaticResources.Listeners = append(b.StaticResources.Listeners, listeners...)
	return nil
}

// addTracing adds the tracing that the operator configured.
func addTracing(b *bootstrapv3.Bootstrap, p Proxy) error {
	text, err := settings(p.Config).text(keyTracing)
	if err != nil || text == "" {
		return err
	}
	tracing := &tracev3.Tracing{}
	b.Tracing = tracing //nolint:staticcheck // SA1019: Consul's key is about this field
	return fragment(keyTracing, []byte(text), tracing)
}

// fragments parses the messages in key: JSON objects separated by commas.
func fragments[M proto.Message](p Proxy, key string, newMessage func() M) ([]M, error) {
	text, err := settings(p.Config).text(key)
	if err != nil || text == "" {
		return nil, err
	}
	var parts []json.RawMessage
	if err := json.Unmarshal([]byte("["+text+"]"), &parts); err != nil {
		return nil, invalid(key, "want JSON objects separated by commas: %v", err)
	}
	messages := make([]M, len(parts))
	for i, part := range parts {
		messages[i] = newMessage()
		if err := fragment(key, part, messages[i]); err != nil {
			return nil, err
		}
	}
	return messages, nil
}

// fragment parses one message of an operator and checks it.
func fragment(key string, text []byte, m proto.Message) error {
	if err := unmarshal(text, m); err != nil {
		return invalid(key, "want the JSON of %s: %v", m.ProtoReflect().Descriptor().FullName(), err)
	}
	if err := validate(m); err != nil {
		return invalid(key, "%v", err)
	}
	return nil
}
