package envoy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// templateArgs are the fields that an operator's template may use: Consul's, for which the template was written.
// Fields with JSON in their names are texts to be inserted into JSON.
type templateArgs struct {
	GRPC

	ProxyCluster, ProxyID, NodeName, ProxySourceService                       string
	AgentCAPEM, LocalAgentClusterName, Token                                  string
	AdminAccessLogConfig                                                      []string
	AdminAccessLogPath, AdminBindAddress, AdminBindPort                       string
	StaticClustersJSON, StaticListenersJSON, StaticSecretsJSON                string
	StatsSinksJSON, StatsConfigJSON, StatsFlushInterval, TracingConfigJSON    string
	Namespace, Partition, Datacenter                                          string
	PrometheusBackendPort, PrometheusScrapePath                               string
	PrometheusCAFile, PrometheusCAPath, PrometheusCertFile, PrometheusKeyFile string
}

// GRPC is the address of the xDS server; templates may use its fields with or without the prefix.
type GRPC struct {
	AgentAddress, AgentPort, AgentSocket string
	AgentTLS                             bool
}

// standIn replaces the token when a template is tried, so that an error cannot contain the token.
const standIn = "00000000-0000-0000-0000-000000000000"

// fromTemplate makes the bootstrap from an operator's template and the parts of our own bootstrap.
func fromTemplate(ctx context.Context, p Proxy, text string, own *bootstrapv3.Bootstrap) ([]byte, error) {
	args, err := argsOf(p, own)
	if err != nil {
		return nil, err
	}
	if p.Token != "" {
		args.Token = standIn
	}
	b, err := filled(ctx, text, args)
	if err != nil || p.Token == "" {
		return b, err
	}
	args.Token = p.Token
	if b, err = filled(ctx, text, args); status.Code(err) == codes.InvalidArgument {
		return nil, invalid(keyTemplate, "gives a valid bootstrap with the token %q, but not with the proxy's", standIn)
	}
	return b, err
}

// filled checks what the template gives. Fields that are unknown here are kept, since the operator's Envoy may know
// them: the result is then the text of the template.
func filled(ctx context.Context, template string, args templateArgs) ([]byte, error) {
	text, err := render(ctx, template, args)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{}
	err = fragment(keyTemplate, text, b)
	if err == nil {
		return encode(b, "  ")
	}
	b = &bootstrapv3.Bootstrap{}
	if unmarshalAs(adapter{known: true}, text, b) != nil || validate(b) != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = json.Indent(&out, bytes.TrimSpace(text), "", "  ")
	out.WriteByte('\n')
	return out.Bytes(), err
}

func argsOf(p Proxy, own *bootstrapv3.Bootstrap) (templateArgs, error) {
	j := &joiner{}
	s, err := scrapeOf(p)
	if err != nil {
		return templateArgs{}, err
	}
	log, err := adminLogPath(p)
	if err != nil {
		return templateArgs{}, err
	}
	args := templateArgs{
		GRPC: GRPC{
			AgentAddress: p.Server.Endpoint.Address, AgentPort: portText(
				p.Server.Endpoint), AgentSocket: p.Server.Socket, AgentTLS: p.Server.TLS,
		},
		ProxyCluster: p.Service, ProxyID: p.ID, ProxySourceService: p.Service,
		AgentCAPEM:            strings.ReplaceAll(p.Server.CA, "\n", `\n`),
		LocalAgentClusterName: agentClusterName,
		AdminAccessLogPath:    log, AdminBindAddress: p.Admin.Address, AdminBindPort: portText(p.Admin),
		StaticClustersJSON:  join(j, own.GetStaticResources().GetClusters()[1:]), // templates make the first one themselves
		StaticListenersJSON: join(j, own.GetStaticResources().GetListeners()),
		StatsSinksJSON:      join(j, own.GetStatsSinks()),
		StatsConfigJSON:     j.text(own.GetStatsConfig()),
		StatsFlushInterval:  strings.Trim(j.text(own.GetStatsFlushInterval()), `"`),
		TracingConfigJSON:   j.text(own.GetTracing()), //nolint:staticcheck // SA1019: Consul's key is about this field
		Namespace:           p.Namespace, Partition: p.Partition, Datacenter: p.Datacenter,
		PrometheusScrapePath: s.path, PrometheusBackendPort: s.backend,
		PrometheusCAFile: s.caFile, PrometheusCAPath: s.caPath, PrometheusCertFile: s.certFile, PrometheusKeyFile: s.keyFile,
		StaticSecretsJSON: join(j, own.GetStaticResources().GetSecrets()),
		NodeName:          own.GetNode().GetMetadata().GetFields()[nodeNameField].GetStringValue(),
	}
	if p.AccessLogs != nil && p.AccessLogs.Enabled {
		for _, log := range own.GetAdmin().GetAccessLog() {
			args.AdminAccessLogConfig = append(args.AdminAccessLogConfig, j.text(log))
		}
	}
	return args, j.err
}

func portText(e Endpoint) string { return strconv.FormatUint(uint64(e.Port), 10) }

// joiner converts messages to text for a template and keeps the first error.
type joiner struct{ err error }

// text returns m as JSON; "" for a message that is not set.
func (j *joiner) text(m proto.Message) string {
	if !m.ProtoReflect().IsValid() || j.err != nil {
		return ""
	}
	var raw []byte
	raw, j.err = encode(m, "")
	return strings.TrimSpace(string(raw))
}

func join[M proto.Message](j *joiner, messages []M) string {
	texts := make([]string, len(messages))
	for i, m := range messages {
		texts[i] = j.text(m)
	}
	return strings.Join(texts, ",\n")
}

// The keys of a proxy's configuration that affect the bootstrap. They are listed on Consul's page "Envoy proxy
// configuration reference".
const (
	keyStatsdURL       = "envoy_statsd_url"
	keyDogstatsdURL    = "envoy_dogstatsd_url"
	keyStatsTags       = "envoy_stats_tags"
	keyStatsSinks      = "envoy_extra_stats_sinks_json"
	keyStatsConfig     = "envoy_stats_config_json"
	keyStatsFlush      = "envoy_stats_flush_interval"
	keyStatsBind       = "envoy_stats_bind_addr"
	keyPrometheusBind  = "envoy_prometheus_bind_addr"
	keyTracing         = "envoy_tracing_json"
	keyStaticClusters  = "envoy_extra_static_clusters_json"
	keyStaticListeners = "envoy_extra_static_listeners_json"
	keyCollectorDir    = "envoy_telemetry_collector_bind_socket_dir"
	keyTemplate        = "envoy_bootstrap_json_tpl"
)

// Keys that only Pannier has, for what are flags of Consul's command.
const (
	keyPrometheusBackend = "envoy_prometheus_backend_port"
	keyPrometheusPath    = "envoy_prometheus_scrape_path"
	keyPrometheusCAFile  = "envoy_prometheus_ca_file"
	keyPrometheusCAPath  = "envoy_prometheus_ca_path"
	keyPrometheusCert    = "envoy_prometheus_cert_file"
	keyPrometheusKey     = "envoy_prometheus_key_file"
	keyNodeName          = "envoy_node_name"
	keyAdminLog          = "envoy_admin_access_log_path"
)

// settings is a proxy's configuration. As in Consul, a key's case does not matter, and a number or a bool may
// stand for a string.
type settings map[string]any

// invalid is the error of a key whose value cannot be used. text must not quote the content of an environment
// variable.
func invalid(key, text string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, "%s: %s", key, fmt.Sprintf(text, args...))
}

func (s settings) value(key string) any {
	if v, ok := s[key]; ok {
		return v
	}
	for k, v := range s {
		if strings.EqualFold(k, key) {
			return v
		}
	}
	return nil
}

// text returns the value of key; "" if there is none.
func (s settings) text(key string) (string, error) {
	return scalar(key, s.value(key))
}

// list returns the value of key as a list; a single value is a list of one.
func (s settings) list(key string) ([]string, error) {
	v := s.value(key)
	if v == nil || v == "" {
		return nil, nil
	}
	values, ok := v.([]any)
	if !ok {
		values = []any{v}
	}
	texts := make([]string, len(values))
	for i, v := range values {
		text, err := scalar(key, v)
		if err != nil {
			return nil, err
		}
		texts[i] = text
	}
	return texts, nil
}

func scalar(key string, v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case bool:
		if v {
			return "1", nil
		}
		return "0", nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	}
	return "", invalid(key, "want a string, got %T", v)
}
