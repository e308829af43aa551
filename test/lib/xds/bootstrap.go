package xds

import (
	"errors"
	"fmt"
	"os"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	injectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/credential_injector/v3"
	genericv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/injected_credentials/generic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"

	// The messages that are packed into bootstraps of Consul's proxies.
	_ "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/trace/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
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

// Token returns the ACL token that a bootstrap's stream sends to Consul: from the file of a secret, if the cluster of
// Consul adds it.
func Token(b *bootstrapv3.Bootstrap) string {
	if _, cluster, err := adsService(b); err == nil {
		if token, err := injected(cluster); err == nil && token != "" {
			return token
		}
	}
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

// injected returns the token that a cluster's filter adds to requests; empty: it has none.
func injected(c *clusterv3.Cluster) (string, error) {
	options := &httpv3.HttpProtocolOptions{}
	for _, packed := range c.GetTypedExtensionProtocolOptions() {
		if err := packed.UnmarshalTo(options); err != nil {
			return "", err
		}
	}
	for _, f := range options.GetHttpFilters() {
		filter, generic := &injectorv3.CredentialInjector{}, &genericv3.Generic{}
		if f.GetTypedConfig().UnmarshalTo(filter) != nil {
			continue
		}
		if err := filter.GetCredential().GetTypedConfig().UnmarshalTo(generic); err != nil {
			return "", err
		}
		secret, err := secretOf(generic.GetCredential())
		if err != nil {
			return "", err
		}
		text, err := content(secret.GetGenericSecret().GetSecret())
		return string(text), err
	}
	return "", nil
}

// secretOf reads a secret from its file.
func secretOf(conf *tlsv3.SdsSecretConfig) (*tlsv3.Secret, error) {
	text, err := os.ReadFile(conf.GetSdsConfig().GetPathConfigSource().GetPath())
	if err != nil {
		return nil, err
	}
	answer, secret := &discoveryv3.DiscoveryResponse{}, &tlsv3.Secret{}
	if err := protojson.Unmarshal(text, answer); err != nil {
		return nil, err
	}
	if n := len(answer.GetResources()); n != 1 {
		return nil, fmt.Errorf("a file has %d secrets, and Envoy takes one", n)
	}
	return secret, answer.GetResources()[0].UnmarshalTo(secret)
}
