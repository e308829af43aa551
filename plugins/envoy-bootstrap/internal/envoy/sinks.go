package envoy

import (
	"crypto/sha1"
	"encoding/base64"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// addStatsSinks adds where the proxy sends its metrics.
func addStatsSinks(b *bootstrapv3.Bootstrap, p Proxy) error {
	statsd, err := sinkAddress(p, keyStatsdURL)
	if err != nil {
		return err
	}
	if statsd != nil {
		if err := addSink(b, "envoy.stat_sinks.statsd", &metricsv3.StatsdSink{StatsdSpecifier: &metricsv3.StatsdSink_Address{Address: statsd}}); err != nil {
			return err
		}
	}
	dogstatsd, err := sinkAddress(p, keyDogstatsdURL)
	if err != nil {
		return err
	}
	if dogstatsd != nil {
		if err := addSink(b, "envoy.stat_sinks.dog_statsd", &metricsv3.DogStatsdSink{DogStatsdSpecifier: &metricsv3.DogStatsdSink_Address{Address: dogstatsd}}); err != nil {
			return err
		}
	}
	extra, err := fragments(p, keyStatsSinks, func() *metricsv3.StatsSink { return &metricsv3.StatsSink{} })
	b.StatsSinks = append(b.StatsSinks, extra...)
	return err
}

func addSink(b *bootstrapv3.Bootstrap, name string, conf proto.Message) error {
	packed, err := anypb.New(conf)
	if err != nil {
		return err
	}
	b.StatsSinks = append(b.StatsSinks, &metricsv3.StatsSink{Name: name, ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: packed}})
	return nil
}

// sinkAddress is the address in the URL that key has; nil where it has none. The
// value may be $NAME, a variable of this process's environment that holds the whole
// URL, and ${HOST_IP} may be a part of it. What a variable holds is in no error.
func sinkAddress(p Proxy, key string) (*corev3.Address, error) {
	text, err := settings(p.Config).text(key)
	if err != nil || text == "" {
		return nil, err
	}
	u, err := url.Parse(expand(text))
	switch {
	case err != nil:
		return nil, invalid(key, "%q is no URL, or names a variable that holds none", text)
	case u.Scheme == "unix" && u.Path != "":
		return pipeAddress(u.Path), nil
	case u.Scheme != "udp":
		return nil, invalid(key, "%q is neither udp://IP:PORT nor unix:///PATH, or names a variable that is neither", text)
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || port == 0 || u.Hostname() == "" {
		return nil, invalid(key, "%q has no IP address and port, or names a variable that has none", text)
	}
	return socketAddress(Endpoint{Address: u.Hostname(), Port: uint32(port)}), nil
}

// expand is Consul's rule for the environment in a URL: $NAME alone is any variable,
// and within a longer text HOST_IP is the only one.
func expand(text string) string {
	if name, ok := strings.CutPrefix(text, "$"); ok && len(text) > 2 {
		return os.Getenv(name)
	}
	return os.Expand(text, func(name string) string {
		if name == "HOST_IP" {
			return os.Getenv(name)
		}
		return "${" + name + "}"
	})
}

// addStatsFlush sets how often the metrics are sent.
func addStatsFlush(b *bootstrapv3.Bootstrap, p Proxy) error {
	text, err := settings(p.Config).text(keyStatsFlush)
	if err != nil || text == "" {
		return err
	}
	every := &durationpb.Duration{}
	if err := unmarshal([]byte(strconv.Quote(text)), every); err != nil {
		return invalid(keyStatsFlush, "want seconds such as \"1.5s\", got %q", text)
	}
	b.StatsFlushInterval = every
	return nil
}

// collectorName is the cluster of the telemetry collector. Consul makes the listener
// behind it.
const collectorName = "consul_telemetry_collector_loopback"

// addCollector sends metrics to Consul's telemetry collector, once a minute unless
// the operator says more about metrics.
func addCollector(b *bootstrapv3.Bootstrap, p Proxy) error {
	dir, err := settings(p.Config).text(keyCollectorDir)
	if err != nil || dir == "" {
		return err
	}
	if b.StatsFlushInterval == nil && len(b.StatsSinks) == 0 {
		b.StatsFlushInterval = durationpb.New(time.Minute)
	}
	if err := addSink(b, "envoy.stat_sinks.metrics_service", &metricsv3.MetricsServiceConfig{
		TransportApiVersion: corev3.ApiVersion_V3,
		GrpcService: &corev3.GrpcService{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
			EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: collectorName},
		}},
		EmitTagsAsLabels: true,
	}); err != nil {
		return err
	}
	c, err := staticCluster(collectorName, pipeAddress(collectorSocket(dir, p)), &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
	})
	if err != nil {
		return err
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	return nil
}

// collectorSocket is the socket on which Consul lets the proxy listen for itself. Both
// sides make up its name in the same way; the hash keeps it short enough for a socket.
func collectorSocket(dir string, p Proxy) string {
	sum := sha1.Sum([]byte(orDefault(p.Namespace) + "_" + p.ID))
	return path.Join(dir, base64.RawURLEncoding.EncodeToString(sum[:])+".sock")
}
