package envoy

import (
	"net"
	"slices"
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// adminEndpoint is a part of the admin API that is served on a listener of its own,
// so that the rest of it stays private.
type adminEndpoint struct {
	name  string
	bind  Endpoint
	match *routev3.RouteMatch
	// path is what the admin API calls it.
	path string
}

// addEndpoints adds a listener for metrics, statistics and readiness, each where it
// is wanted.
func addEndpoints(b *bootstrapv3.Bootstrap, p Proxy) error {
	prometheus, err := bindOf(p, keyPrometheusBind)
	if err != nil {
		return err
	}
	stats, err := bindOf(p, keyStatsBind)
	if err != nil {
		return err
	}
	for _, e := range []adminEndpoint{
		{"envoy_prometheus_metrics", prometheus, exactly("/metrics"), "/stats/prometheus"},
		{"envoy_metrics", stats, below("/stats"), "/stats"},
		{"envoy_ready", p.Ready, exactly("/ready"), "/ready"},
	} {
		if e.bind == (Endpoint{}) {
			continue
		}
		if err := addSelfAdmin(b, p.Admin); err != nil {
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

// bindOf is the address that key has; the zero Endpoint where it has none.
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

// addSelfAdmin adds the cluster of the admin API once: Envoy refuses a second one of
// the same name, and the operator may have brought one.
func addSelfAdmin(b *bootstrapv3.Bootstrap, admin Endpoint) error {
	if slices.ContainsFunc(b.StaticResources.Clusters, func(c *clusterv3.Cluster) bool { return c.GetName() == selfAdminName }) {
		return nil
	}
	c, err := selfAdminCluster(admin)
	if err != nil {
		return err
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	return nil
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
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: selfAdminName},
						PrefixRewrite:    e.path,
					}}},
					{Match: below("/"), Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 404}}},
				},
			}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: router}}},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.Listener{
		Name:    e.name + "_listener",
		Address: socketAddress(e.bind),
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager},
		}}}},
	}, nil
}
