package envoy

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// agentClusterName is the name that Consul keeps for its own xDS server.
	agentClusterName = "local_agent"
	// selfAdminName is the cluster of the proxy's own admin API.
	selfAdminName = "self_admin"
	// httpOptionsName is the extension by which a cluster says which HTTP it speaks.
	httpOptionsName = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
)

// agentCluster is Consul's xDS server.
func agentCluster(s Server) (*clusterv3.Cluster, error) {
	address := socketAddress(s.Endpoint)
	if s.Socket != "" {
		address = pipeAddress(s.Socket)
	}
	c, err := staticCluster(agentClusterName, address, &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
	})
	if err != nil {
		return nil, err
	}
	c.ConnectTimeout = durationpb.New(time.Second)
	if !s.TLS {
		return c, nil
	}
	conf, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
			TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: s.CA}},
		}},
	}})
	if err != nil {
		return nil, err
	}
	c.TransportSocket = &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: conf}}
	return c, nil
}

// selfAdminCluster is the proxy's own admin API.
func selfAdminCluster(admin Endpoint) (*clusterv3.Cluster, error) {
	c, err := staticCluster(selfAdminName, socketAddress(admin), &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}},
	})
	if err != nil {
		return nil, err
	}
	c.ConnectTimeout = durationpb.New(5 * time.Second)
	return c, nil
}

func staticCluster(name string, address *corev3.Address, speaks *httpv3.HttpProtocolOptions_ExplicitHttpConfig) (*clusterv3.Cluster, error) {
	options, err := anypb.New(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: speaks},
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

func socketAddress(e Endpoint) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: e.Address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: e.Port},
	}}}
}

func pipeAddress(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}
