package envoy

import (
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// scrapePath is where Prometheus looks for metrics if nothing else is configured.
const scrapePath = "/metrics"

// The names of the secrets that the listener for Prometheus serves with.
const (
	prometheusCertName       = "prometheus_cert"
	prometheusValidationName = "prometheus_validation_context"
)

// scrape is how Prometheus reaches a proxy.
type scrape struct {
	path                              string
	backend                           string // a port
	caFile, caPath, certFile, keyFile string
}

func scrapeOf(p Proxy) (s scrape, err error) {
	for key, value := range map[string]*string{
		keyPrometheusPath: &s.path, keyPrometheusBackend: &s.backend, keyPrometheusCAFile: &s.caFile,
		keyPrometheusCAPath: &s.caPath, keyPrometheusCert: &s.certFile, keyPrometheusKey: &s.keyFile,
	} {
		if *value, err = settings(p.Config).text(key); err != nil {
			return s, err
		}
	}
	if s.path == "" {
		s.path = scrapePath
	}
	if s.path[0] != '/' {
		return s, invalid(keyPrometheusPath, "want a path that starts with /, got %q", s.path)
	}
	return s, nil
}

// prometheusOf returns the listener for Prometheus, and adds the secrets that it serves TLS with; without a bind there
// is none.
func prometheusOf(b *bootstrapv3.Bootstrap, p Proxy) (adminEndpoint, error) {
	bind, err := bindOf(p, keyPrometheusBind)
	if err != nil || bind == (Endpoint{}) {
		return adminEndpoint{}, err
	}
	s, err := scrapeOf(p)
	if err != nil {
		return adminEndpoint{}, err
	}
	e := adminEndpoint{
		name: "envoy_prometheus_metrics", bind: bind, match: exactly(s.path), path: "/stats/prometheus",
	}
	if s.backend != "" {
		n, err := strconv.ParseUint(s.backend, 10, 16)
		if err != nil || n == 0 {
			return e, invalid(keyPrometheusBackend, "want a port from 1 to 65535, got %q", s.backend)
		}
		e.backend = uint32(n)
	}
	ca := s.caFile != "" || s.caPath != ""
	switch {
	case !ca && s.certFile == "" && s.keyFile == "":
		return e, nil
	case !ca || s.certFile == "" || s.keyFile == "":
		return e, invalid(keyPrometheusCert, "TLS needs %s, %s, and %s or %s", keyPrometheusCert, keyPrometheusKey,
			keyPrometheusCAFile, keyPrometheusCAPath)
	}
	b.StaticResources.Secrets = append(b.StaticResources.Secrets, s.secrets()...)
	e.tls = &tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: prometheusCertName}},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContextSdsSecretConfig{
			ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: prometheusValidationName},
		},
	}}
	return e, nil
}

// secrets name the files of the certificate and of the authority: the proxy reads them.
func (s scrape) secrets() []*tlsv3.Secret {
	validation := &tlsv3.CertificateValidationContext{}
	if s.caFile != "" {
		validation.TrustedCa = fileSource(s.caFile)
	} else {
		validation.WatchedDirectory = &corev3.WatchedDirectory{Path: s.caPath}
	}
	return []*tlsv3.Secret{
		{Name: prometheusCertName, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
			CertificateChain: fileSource(s.certFile), PrivateKey: fileSource(s.keyFile),
		}}},
		{Name: prometheusValidationName, Type: &tlsv3.Secret_ValidationContext{ValidationContext: validation}},
	}
}

func fileSource(path string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: path}}
}
