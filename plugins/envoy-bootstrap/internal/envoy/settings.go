package envoy

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The keys of a proxy's configuration that a bootstrap is made of. Consul's page
// "Envoy proxy configuration reference" has them.
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

// settings is a proxy's configuration, with Consul's leniency: a key's case does not
// matter, and a number or a bool is taken for its text.
type settings map[string]any

// invalid is the error of a key whose value cannot be used. text must not quote what
// an environment variable holds.
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

// text is the value of key; "" where there is none.
func (s settings) text(key string) (string, error) {
	return scalar(key, s.value(key))
}

// list is the value of key as a list; a single value is a list of one.
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
