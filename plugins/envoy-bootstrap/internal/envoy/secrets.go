package envoy

import (
	"path/filepath"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	injectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/credential_injector/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	genericv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/injected_credentials/generic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The secrets that Envoy reads from files in Proxy.Dir, and reads again when a file in there is replaced: a static
// secret is read once.
const (
	tokenSecret = "consul_token"
	caSecret    = "consul_ca"
)

// secretFile is the name of a secret's file in Proxy.Dir.
func secretFile(secret string) string { return "envoy_" + secret + ".json" }

// readsToken reports that Envoy reads the token from its file.
func (p Proxy) readsToken() bool { return p.Dir != "" && p.Token != "" }

// files are those that the bootstrap names, by their names in Dir. That of the token names the token's own file, so it
// stays the same with another token.
func (p Proxy) files() (map[string][]byte, error) {
	files := map[string][]byte{}
	add := func(s *tlsv3.Secret) error {
		packed, err := anypb.New(s)
		if err != nil {
			return err
		}
		files[secretFile(s.GetName())], err = encode(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{packed}}, "  ")
		return err
	}
	if p.readsToken() {
		if err := add(&tlsv3.Secret{Name: tokenSecret, Type: &tlsv3.Secret_GenericSecret{
			GenericSecret: &tlsv3.GenericSecret{Secret: fileSource(p.TokenFile)},
		}}); err != nil {
			return nil, err
		}
	}
	if p.Dir != "" && p.Server.TLS {
		if err := add(&tlsv3.Secret{Name: caSecret, Type: &tlsv3.Secret_ValidationContext{
			ValidationContext: validationContext(p.Server.CA),
		}}); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func validationContext(ca string) *tlsv3.CertificateValidationContext {
	return &tlsv3.CertificateValidationContext{
		TrustedCa: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: ca}},
	}
}

// secret is the configuration of one that is read from its file.
func (p Proxy) secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{
			Path:             filepath.Join(p.Dir, secretFile(name)),
			WatchedDirectory: &corev3.WatchedDirectory{Path: p.Dir},
		}},
		ResourceApiVersion: corev3.ApiVersion_V3,
	}}
}

// tokenFilters make a cluster send the token in its file with each request; none if the proxy does not read it.
func (p Proxy) tokenFilters() (filters []*hcmv3.HttpFilter, err error) {
	if !p.readsToken() {
		return nil, nil
	}
	credential, err := anypb.New(&genericv3.Generic{Credential: p.secret(tokenSecret), Header: tokenHeader})
	if err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name string
		conf proto.Message
	}{
		{"envoy.filters.http.credential_injector", &injectorv3.CredentialInjector{Credential: &corev3.TypedExtensionConfig{
			Name: "envoy.http.injected_credentials.generic", TypedConfig: credential,
		}}},
		{"envoy.filters.http.upstream_codec", &codecv3.UpstreamCodec{}},
	} {
		packed, err := anypb.New(f.conf)
		if err != nil {
			return nil, err
		}
		filters = append(filters, &hcmv3.HttpFilter{
			Name: f.name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed},
		})
	}
	return filters, nil
}

// streamRetry is for a stream that Consul has ended since its token was replaced: Envoy's own pauses grow to 30 s.
func streamRetry() *corev3.RetryPolicy {
	return &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
		BaseInterval: durationpb.New(250 * time.Millisecond), MaxInterval: durationpb.New(2 * time.Second),
	}}
}
