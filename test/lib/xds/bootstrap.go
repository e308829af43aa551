package xds

import (
	"errors"
	"fmt"
	"os"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	// The messages that are packed into bootstraps of Consul's proxies.
	_ "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
)

// Read reads the bootstrap in a file. Unknown fields, and values that break a rule of Envoy's API, are errors.
func Read(path string) (*bootstrapv3.Bootstrap, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read a bootstrap: %w", err)
	}
	b, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// Parse is Read for a text.
func Parse(text []byte) (*bootstrapv3.Bootstrap, error) {
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(text, b); err != nil {
		return nil, fmt.Errorf("parse a bootstrap: %w", err)
	}
	if err := b.ValidateAll(); err != nil {
		return nil, fmt.Errorf("validate a bootstrap: %w", err)
	}
	return b, nil
}

// Token returns the ACL token that a bootstrap's stream sends to Consul.
func Token(b *bootstrapv3.Bootstrap) string {
	for _, s := range b.GetDynamicResources().GetAdsConfig().GetGrpcServices() {
		for _, header := range s.GetInitialMetadata() {
			if header.GetKey() == "x-consul-token" {
				return header.GetValue()
			}
		}
	}
	return ""
}

// adsService returns the service of a bootstrap's one stream, and its static cluster.
func adsService(b *bootstrapv3.Bootstrap) (*corev3.GrpcService, *clusterv3.Cluster, error) {
	dynamic := b.GetDynamicResources()
	ads := dynamic.GetAdsConfig()
	switch {
	case dynamic.GetCdsConfig().GetAds() == nil || dynamic.GetLdsConfig().GetAds() == nil:
		return nil, nil, errors.New("the bootstrap does not take clusters and listeners over ADS")
	case ads.GetApiType() != corev3.ApiConfigSource_DELTA_GRPC:
		return nil, nil, fmt.Errorf("the bootstrap wants %s: Consul has nothing but DELTA_GRPC", ads.GetApiType())
	case ads.GetTransportApiVersion() != corev3.ApiVersion_V3:
		return nil, nil, fmt.Errorf("the bootstrap wants the transport API %s, not V3", ads.GetTransportApiVersion())
	case len(ads.GetGrpcServices()) != 1:
		return nil, nil, fmt.Errorf("the bootstrap names %d servers for ADS, want one", len(ads.GetGrpcServices()))
	}
	service := ads.GetGrpcServices()[0]
	name := service.GetEnvoyGrpc().GetClusterName()
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == name {
			return service, c, nil
		}
	}
	return nil, nil, fmt.Errorf("the bootstrap has no static cluster %q, which its ADS names", name)
}
