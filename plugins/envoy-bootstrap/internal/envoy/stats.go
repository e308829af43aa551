package envoy

import (
	"crypto/sha1"
	"encoding/base64"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// addStatsSinks adds the targets that the proxy sends its metrics to.
func addStatsSinks(b *bootstrapv3.Bootstrap, p Proxy) error {
	statsd, err := sinkAddress(p, keyStatsdURL)
	if err != nil {
		return err
	}
	if statsd != nil {
		if err := addSink(b, "envoy.stat_sinks.statsd",
			&metricsv3.StatsdSink{StatsdSpecifier: &metricsv3.StatsdSink_Address{Address: statsd}}); err != nil {
			return err
		}
	}
	dogstatsd, err := sinkAddress(p, keyDogstatsdURL)
	if err != nil {
		return err
	}
	if dogstatsd != nil {
		if err := addSink(b, "envoy.stat_sinks.dog_statsd",
			&metricsv3.DogStatsdSink{DogStatsdSpecifier: &metricsv3.DogStatsdSink_Address{Address: dogstatsd}}); err != nil {
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
	b.StatsSinks = append(b.StatsSinks,
		&metricsv3.StatsSink{Name: name, ConfigType: &metricsv3.StatsSink_TypedConfig{TypedConfig: packed}})
	return nil
}

// sinkAddress returns the address in the URL in key; nil if there is none. The value may be $NAME, an environment
// variable that holds the whole URL, and may contain ${HOST_IP}. Errors do not quote the content of variables.
func sinkAddress(p Proxy, key string) (*corev3.Address, error) {
	text, err := settings(p.Config).text(key)
	if err != nil || text == "" {
		return nil, err
	}
	u, err := url.Parse(expand(text))
	switch {
	case err != nil:
		return nil, invalid(key, "%q is not a URL, or names a variable that does not hold one", text)
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

// expand follows Consul's rule for environment variables in a URL: $NAME alone may be any variable; inside a
// longer text only HOST_IP is allowed.
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

// addStatsFlush sets how often metrics are sent.
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

// collectorName is the cluster of the telemetry collector. Consul configures the listener behind it.
const collectorName = "consul_telemetry_collector_loopback"

// addCollector sends metrics to Consul's telemetry collector, once a minute unless the operator configures another
// interval.
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
	c, err := staticCluster(collectorName, pipeAddress(collectorSocket(dir, p)),
		&httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{Http2ProtocolOptions: &corev3.Http2ProtocolOptions{}},
		})
	if err != nil {
		return err
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
	return nil
}

// collectorSocket returns the socket that Consul makes the proxy listen on. Both sides compute its name in the
// same way; the hash keeps it short enough for a socket's address.
func collectorSocket(dir string, p Proxy) string {
	sum := sha1.Sum([]byte(orDefault(p.Namespace) + "_" + p.ID))
	return path.Join(dir, base64.RawURLEncoding.EncodeToString(sum[:])+".sock")
}

// addStatsConfig sets how the names of metrics are split into tags.
func addStatsConfig(b *bootstrapv3.Bootstrap, p Proxy) error {
	text, err := settings(p.Config).text(keyStatsConfig)
	if err != nil {
		return err
	}
	if text != "" {
		b.StatsConfig = &metricsv3.StatsConfig{}
		return fragment(keyStatsConfig, []byte(text), b.StatsConfig)
	}
	own, err := settings(p.Config).list(keyStatsTags)
	if err != nil {
		return err
	}
	// use_all_default_tags is Envoy's default, but Consul sets it explicitly, too.
	conf := &metricsv3.StatsConfig{UseAllDefaultTags: wrapperspb.Bool(true)}
	taken := map[string]bool{}
	for _, tag := range own {
		name, value, found := strings.Cut(tag, "=")
		if !found {
			value = "1"
		}
		name = strings.ToLower(name)
		taken[name] = true
		conf.StatsTags = append(conf.StatsTags, fixedTag(name, value))
	}
	conf.StatsTags = append(conf.StatsTags, nameTags()...)
	for _, tag := range [][2]string{
		{"local_cluster", p.Service},
		{"consul.source.service", p.Service},
		{"consul.source.namespace", orDefault(p.Namespace)},
		{"consul.source.partition", orDefault(p.Partition)},
		{"consul.source.datacenter", p.Datacenter},
	} {
		if name, value := tag[0], tag[1]; value != "" && !taken[name] {
			conf.StatsTags = append(conf.StatsTags, fixedTag(name, value))
		}
	}
	b.StatsConfig = conf
	return nil
}

func fixedTag(name, value string) *metricsv3.TagSpecifier {
	return &metricsv3.TagSpecifier{TagName: name, TagValue: &metricsv3.TagSpecifier_FixedValue{FixedValue: value}}
}

func regexTag(name, pattern string) *metricsv3.TagSpecifier {
	return &metricsv3.TagSpecifier{TagName: name, TagValue: &metricsv3.TagSpecifier_Regex{Regex: pattern}}
}

// segment is one part of a metric's name.
const segment = `[^.]+`

// target is the name that Consul gives to the cluster of a destination, as its parts: the text before and after
// the segment of each part.
var target = []struct{ tag, before, behind string }{
	{"custom_hash", `(?:`, `~)?`},
	{"service_subset", `(?:`, `\.)?`},
	{"service", ``, `\.`},
	{"namespace", ``, `\.`},
	{"partition", `(?:`, `\.)?`},
	{"datacenter", ``, `\.`},
	{"routing_type", ``, `\.`},
	{"trust_domain", ``, `\.`},
}

// deprecated are the tags that Consul had before 1.9 and still sets, without "destination" in their names. There
// was none for the partition.
var deprecated = []string{
	"custom_hash", "service_subset", "service", "namespace", "datacenter", "routing_type",
	"trust_domain",
}

// nameTags split the names that Consul gives to clusters and listeners. The outer group of a pattern is removed
// from the metric's name; the inner one is the tag's value.
var nameTags = sync.OnceValue(func() []*metricsv3.TagSpecifier {
	const (
		cluster     = `^cluster\.`
		passthrough = cluster + `(?:passthrough~)?`
		peer        = cluster + `(` + segment + `\.(?:` + segment + `\.)?(` + segment + `)\.external\.` + segment +
			`\.consul\.)`
	)
	var tags []*metricsv3.TagSpecifier
	for _, part := range target {
		tags = append(tags, regexTag("consul.destination."+part.tag, passthrough+partPattern(part.tag)))
		if part.tag == "datacenter" {
			tags = append(tags, regexTag("consul.destination.peer", peer))
		}
	}
	tags = append(tags,
		regexTag("consul.destination.target", passthrough+throughPattern("datacenter")),
		regexTag("consul.destination.full_target", passthrough+throughPattern("trust_domain")))
	for _, tag := range [][2]string{
		{"service", `upstream(?:_peered)?\.((<>)(?:\.<>)?(?:\.<>)?\.<>\.)`},
		{"datacenter", `upstream\.(<>(?:\.<>)?(?:\.<>)?\.(<>)\.)`},
		{"peer", `upstream_peered\.(<>(?:\.<>)?\.(<>)\.)`},
		{"namespace", `upstream(?:_peered)?\.(<>(?:\.(<>))?(?:\.<>)?\.<>\.)`},
		{"partition", `upstream\.(<>(?:\.<>)?(?:\.(<>))?\.<>\.)`},
	} {
		tags = append(tags, regexTag("consul.upstream."+tag[0], `^(?:tcp|http)\.`+strings.ReplaceAll(tag[1], "<>", segment)))
	}
	for _, tag := range deprecated {
		tags = append(tags, regexTag("consul."+tag, cluster+partPattern(tag)))
	}
	return append(tags,
		regexTag("consul.target", cluster+throughPattern("datacenter")),
		regexTag("consul.full_target", cluster+throughPattern("trust_domain")))
})

// partPattern matches one part of a destination's name.
func partPattern(tag string) string {
	var p strings.Builder
	p.WriteString(`(`)
	for _, part := range target {
		value := segment
		switch {
		case part.tag == tag:
			value = `(` + segment + `)`
		case part.tag == "routing_type" && (tag == "partition" || tag == "datacenter"):
			value = `internal[^.]*` // a peer's name has neither
		}
		p.WriteString(part.before + value + part.behind)
	}
	p.WriteString(`consul\.)`)
	return p.String()
}

// throughPattern matches all parts up to the one of the tag last.
func throughPattern(last string) string {
	var p strings.Builder
	p.WriteString(`((`)
	for _, part := range target {
		if part.tag == last {
			p.WriteString(part.before + segment + `)` + part.behind)
			continue
		}
		p.WriteString(part.before + segment + part.behind)
	}
	p.WriteString(`consul\.)`)
	return p.String()
}
