package generator

// Resources of operators, as in Consul's documentation.
const (
	zipkinTracing = `{
  "http": {
    "name": "envoy.tracers.zipkin",
    "typedConfig": {
      "@type": "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig",
      "collector_cluster": "zipkin",
      "collector_endpoint_version": "HTTP_JSON",
      "collector_endpoint": "/api/v1/spans",
      "shared_span_context": false
    }
  }
}`
	zipkinCluster = `{
  "name": "zipkin", "type": "STRICT_DNS", "connect_timeout": "5s",
  "load_assignment": {"cluster_name": "zipkin", "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "zipkin.test", "port_value": 9411}}}}]}]}
}`
	selfAdminCluster = `{
  "name": "self_admin", "type": "STATIC", "connectTimeout": "1s",
  "loadAssignment": {"clusterName": "self_admin", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"pipe": {"path": "/run/admin.sock"}}}}]}]}
}`
	bypassListener = `{
  "name": "test_envoy_mtls_bypass_listener",
  "address": {"socket_address": {"address": "0.0.0.0", "port_value": 20201}},
  "filter_chains": [{"filters": [{
    "name": "envoy.filters.network.http_connection_manager",
    "typedConfig": {
      "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
      "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
      }}],
      "route_config": {"name": "self_admin_route", "validate_clusters": false, "virtual_hosts": [{"name": "self_admin", "domains": ["*"], "routes": [
        {"match": {"path": "/"}, "route": {"cluster": "local_app"}}
      ]}]},
      "stat_prefix": "envoy_mtls_bypass",
      "tracing": {"random_sampling": {}}
    }
  }]}]
}`
	tcpListener = `{
  "name": "tcp", "address": {"socket_address": {"address": "127.0.0.1", "port_value": "20202"}},
  "filterChains": [{"filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "stat_prefix": "tcp", "cluster": "zipkin"
  }}]}]
}`
	dogSink = `{
  "name": "envoy.stat_sinks.dog_statsd",
  "typed_config": {"@type": "type.googleapis.com/envoy.config.metrics.v3.DogStatsdSink", "address": {"socket_address": {"protocol": "UDP", "port_value": 8125, "address": "172.31.20.6"}}}
}`
	ownStatsConfig = `{
  "stats_matcher": {"reject_all": true},
  "stats_tags": [{"tag_name": "envoy.http_user_agent", "regex": "^http(?=\\.).*?\\.user_agent\\.((.+?)\\.)\\w+?$"}],
  "use_all_default_tags": false
}`
	bareTemplate = `{
  "admin": {"address": {"socket_address": {"address": "{{ .AdminBindAddress }}", "port_value": {{ .AdminBindPort }}}}},
  "node": {"id": "{{ .ProxyID }}", "cluster": "custom-{{ .ProxyCluster }}"},
  "static_resources": {"clusters": [{"name": "{{ .LocalAgentClusterName }}", "connect_timeout": "1s"}]},
  "dynamic_resources": {"ads_config": {"api_type": "GRPC", "transport_api_version": "V3",
    "grpc_services": {"initial_metadata": [{"key": "x-consul-token", "value": "{{ .Token }}"}], "envoy_grpc": {"cluster_name": "{{ .LocalAgentClusterName }}"}}}}
}`
	// futureTemplate has fields that are unknown here, one of them in a message.
	futureTemplate = `{
  "admin": {
    "access_log": [],
    "address": {"socket_address": {"address": "{{ .AdminBindAddress }}", "port_value": {{ .AdminBindPort }}}}
  },
  "node": {"cluster": "{{ .ProxyCluster }}", "id": "{{ .ProxyID }}", "mood": "good"},
  "custom": ["a", {"b": "{{ .Datacenter }}"}]
}`
	// wholeTemplate uses every feature of templates.
	wholeTemplate = `{
  "admin": {
    {{- if .AdminAccessLogConfig }}
    "access_log": [{{ range $i, $log := .AdminAccessLogConfig }}{{ if $i }},{{ end }}{{ $log }}{{ end }}],
    {{- else }}
    "access_log": [{"name": "a", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog", "path": "{{ .AdminAccessLogPath }}"}}],
    {{- end }}
    "address": {"socket_address": {"address": "{{ .AdminBindAddress }}", "port_value": {{ .AdminBindPort }}}}
  },
  "node": {
    "id": "{{ .ProxyID }}", "cluster": "{{ .ProxyCluster }}",
    "metadata": {"node": "{{ .NodeName }}", "source": "{{ .ProxySourceService }}", "namespace": "{{ .Namespace }}", "partition": "{{ .Partition }}", "dc": "{{ .Datacenter }}",
      "scrape": "{{ .PrometheusScrapePath }}{{ .PrometheusBackendPort }}{{ .PrometheusCAFile }}{{ .PrometheusCAPath }}{{ .PrometheusCertFile }}{{ .PrometheusKeyFile }}",
      "tls": {{ .GRPC.AgentTLS }}, "ca": "{{ if .AgentTLS }}{{ .AgentCAPEM }}{{ end }}"}
  },
  "static_resources": {
    "clusters": [{"name": "{{ .LocalAgentClusterName }}", "type": "STATIC", "connect_timeout": "3s",
      "loadAssignment": {"clusterName": "x", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {
        {{- if .AgentSocket }}"pipe": {"path": "{{ .AgentSocket }}"}{{ else }}"socket_address": {"address": "{{ .AgentAddress }}", "port_value": {{ .AgentPort }}}{{ end }}}}}]}]}}
      {{- if .StaticClustersJSON }}, {{ .StaticClustersJSON }}{{ end }}],
    "listeners": [{{ .StaticListenersJSON }}],
    "secrets": [{{ .StaticSecretsJSON }}]
  },
  "stats_sinks": [{{ .StatsSinksJSON }}],
  {{- if .StatsConfigJSON }}"stats_config": {{ .StatsConfigJSON }},{{ end }}
  {{- if .StatsFlushInterval }}"stats_flush_interval": "{{ .StatsFlushInterval }}",{{ end }}
  {{- if .TracingConfigJSON }}"tracing": {{ .TracingConfigJSON }},{{ end }}
  "dynamic_resources": {"ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3",
    "grpc_services": {"initial_metadata": [{"key": "x-consul-token", "value": "{{ .Token }}"}], "envoy_grpc": {"cluster_name": "{{ .LocalAgentClusterName }}"}}}}
}`
)

// keyConfigs are proxy configurations with each key that affects a bootstrap, alone and with the keys that change
// its meaning.
func keyConfigs() map[string]map[string]any {
	everything := map[string]any{
		"envoy_statsd_url":                          "udp://127.0.0.1:9125",
		"envoy_dogstatsd_url":                       "unix:///run/dog.sock",
		"envoy_stats_tags":                          []string{"team=mesh"},
		"envoy_extra_stats_sinks_json":              dogSink,
		"envoy_stats_flush_interval":                "3.25s",
		"envoy_prometheus_bind_addr":                "0.0.0.0:9102",
		"envoy_stats_bind_addr":                     "0.0.0.0:9103",
		"envoy_tracing_json":                        zipkinTracing,
		"envoy_extra_static_clusters_json":          zipkinCluster + "," + selfAdminCluster,
		"envoy_extra_static_listeners_json":         bypassListener + "," + tcpListener,
		"envoy_telemetry_collector_bind_socket_dir": "/run/collector",
	}
	withTemplate := map[string]any{"envoy_bootstrap_json_tpl": wholeTemplate}
	for k, v := range everything {
		withTemplate[k] = v
	}
	return map[string]map[string]any{
		"keys of no bootstrap":  {"protocol": "http", "envoy_local_cluster_json": "{", "bind_port": 1},
		"statsd":                {"envoy_statsd_url": "udp://127.0.0.1:9125"},
		"statsd on IPv6":        {"envoy_statsd_url": "udp://[::1]:9125"},
		"statsd on a socket":    {"envoy_statsd_url": "unix:///run/statsd.sock"},
		"dogstatsd":             {"envoy_dogstatsd_url": "udp://127.0.0.1:9125"},
		"dogstatsd on a socket": {"envoy_dogstatsd_url": "unix:///run/dog.sock"},
		"both statsd": {
			"envoy_statsd_url":    "udp://127.0.0.1:9125",
			"envoy_dogstatsd_url": "udp://127.0.0.1:9126",
		},
		"stats tags":             {"envoy_stats_tags": []string{"canary", "Region=eu=west", "empty="}},
		"stats tags over ours":   {"envoy_stats_tags": []string{"local_cluster=mine", "consul.source.datacenter=dc9"}},
		"stats tags as one text": {"envoy_stats_tags": "canary"},
		"no stats tags":          {"envoy_stats_tags": []string{}},
		"stats sinks":            {"envoy_extra_stats_sinks_json": dogSink},
		"two stats sinks": {
			"envoy_extra_stats_sinks_json": dogSink + ",\n" + dogSink,
			"envoy_statsd_url":             "udp://127.0.0.1:9125",
		},
		"stats config":           {"envoy_stats_config_json": ownStatsConfig},
		"stats config over tags": {"envoy_stats_config_json": ownStatsConfig, "envoy_stats_tags": []string{"canary"}},
		"stats flush":            {"envoy_stats_flush_interval": "1.5s"},
		"stats listener":         {"envoy_stats_bind_addr": "0.0.0.0:9103"},
		"prometheus":             {"envoy_prometheus_bind_addr": "0.0.0.0:9102"},
		"prometheus on IPv6":     {"envoy_prometheus_bind_addr": "[::]:9102"},
		"prometheus and stats": {
			"envoy_prometheus_bind_addr": "0.0.0.0:9102",
			"envoy_stats_bind_addr":      "0.0.0.0:9103",
		},
		"prometheus and own admin": {
			"envoy_prometheus_bind_addr":       "0.0.0.0:9102",
			"envoy_extra_static_clusters_json": selfAdminCluster,
		},
		"prometheus and own clusters": {
			"envoy_prometheus_bind_addr":       "0.0.0.0:9102",
			"envoy_extra_static_clusters_json": zipkinCluster, "envoy_extra_static_listeners_json": tcpListener,
		},
		"tracing": {
			"envoy_tracing_json":               zipkinTracing,
			"envoy_extra_static_clusters_json": zipkinCluster,
		},
		"own cluster":   {"envoy_extra_static_clusters_json": zipkinCluster},
		"own clusters":  {"envoy_extra_static_clusters_json": zipkinCluster + ",\n" + selfAdminCluster},
		"own listener":  {"envoy_extra_static_listeners_json": bypassListener},
		"own listeners": {"envoy_extra_static_listeners_json": bypassListener + "," + tcpListener},
		"collector":     {"envoy_telemetry_collector_bind_socket_dir": "/run/collector"},
		"collector and flush": {
			"envoy_telemetry_collector_bind_socket_dir": "/run/collector/",
			"envoy_stats_flush_interval":                "5s",
		},
		"collector and statsd": {
			"envoy_telemetry_collector_bind_socket_dir": "/run/collector",
			"envoy_statsd_url":                          "udp://127.0.0.1:9125",
		},
		"collector and clusters": {
			"envoy_telemetry_collector_bind_socket_dir": "/run/collector",
			"envoy_extra_static_clusters_json":          zipkinCluster, "envoy_prometheus_bind_addr": "0.0.0.0:9102",
		},
		"bare template":                        {"envoy_bootstrap_json_tpl": bareTemplate},
		"template of fields that nobody knows": {"envoy_bootstrap_json_tpl": futureTemplate},
		"one of everything": {
			"envoy_extra_static_clusters_json":  `{"name": "a"}`,
			"envoy_extra_static_listeners_json": tcpListener,
			"envoy_extra_stats_sinks_json":      dogSink,
		},
		"two of everything": {
			"envoy_extra_static_clusters_json":  `{"name": "a"}, {"name": "b"}`,
			"envoy_extra_static_listeners_json": tcpListener + "," + bypassListener,
			"envoy_extra_stats_sinks_json":      dogSink + " , " + dogSink,
		},
		"whole template":           {"envoy_bootstrap_json_tpl": wholeTemplate},
		"keys in capitals":         {"Envoy_Statsd_URL": "udp://127.0.0.1:9125"},
		"everything":               everything,
		"everything in a template": withTemplate,
	}
}
