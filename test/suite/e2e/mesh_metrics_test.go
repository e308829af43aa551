package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/xds"
)

// The URLs of a proxy's metrics have the host's address, and variables that the operator has given the plugin. Both
// reach the plugin's process, and a change takes effect without a restart of the agent.
func TestProxyMetricsOfTheHost(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	base, err := os.ReadFile(m.Path("agent.hcl"))
	check.NoError(t, err)
	m.Write("agent.hcl", string(base)+`
plugin "envoy-bootstrap" {
  env = { METRICS_URL = "unix:///run/metrics.sock" }
}
`)
	m.open()
	spec := m.meshWorkload("w", sidecarService("web", `
          config {
            envoy_statsd_url    = "udp://$${HOST_IP}:8125"
            envoy_dogstatsd_url = "$METRICS_URL"
          }`))
	sinks := func(want ...string) {
		t.Helper()
		m.Run("workload", "start", spec)
		if got := metricsOf(t, m.service("w").GetBootstrapFile()); !slices.Equal(got, want) {
			t.Errorf("the bootstrap sends metrics to %q, want %q", got, want)
		}
		m.Run("workload", "stop", spec)
	}
	sinks("127.0.0.1:8125", "/run/metrics.sock")

	m.Write("agent.hcl", string(base)+`
plugin "envoy-bootstrap" {
  env {
    HOST_IP     = "192.0.2.7"
    METRICS_URL = "udp://192.0.2.8:9125"
  }
}
`)
	if out := m.Run("agent", "reload"); !strings.Contains(out, `plugin "envoy-bootstrap": changed`) {
		t.Errorf("reload says %q", out)
	}
	sinks("192.0.2.7:8125", "192.0.2.8:9125")
	m.nothingInMesh()
}

// metricsOf returns where a bootstrap sends statsd and dogstatsd metrics.
func metricsOf(t *testing.T, file string) (all []string) {
	t.Helper()
	b, err := xds.Read(file)
	check.NoError(t, err)
	for _, sink := range b.GetStatsSinks() {
		var statsd metricsv3.StatsdSink
		var dogstatsd metricsv3.DogStatsdSink
		var to *corev3.Address
		switch {
		case sink.GetTypedConfig().MessageIs(&statsd):
			check.NoError(t, sink.GetTypedConfig().UnmarshalTo(&statsd))
			to = statsd.GetAddress()
		case sink.GetTypedConfig().MessageIs(&dogstatsd):
			check.NoError(t, sink.GetTypedConfig().UnmarshalTo(&dogstatsd))
			to = dogstatsd.GetAddress()
		}
		if path := to.GetPipe().GetPath(); path != "" {
			all = append(all, path)
			continue
		}
		all = append(all, fmt.Sprintf("%s:%d", to.GetSocketAddress().GetAddress(), to.GetSocketAddress().GetPortValue()))
	}
	return all
}
