package supervisor_test

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

// scrape returns the values of all series, by name and labels; of a histogram its count.
func scrape(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() != "plugin" {
					key += " " + l.GetValue()
				}
			}
			values[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// The metrics have the calls of each process by its version, and those of a process that has ended are gone.
func TestMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })
	mustCall(t, s, "fixture", "")
	mustCall(t, s, "fixture", "")
	started := map[string]float64{
		"pannier_plugin_calls_total OK 1 Attach 1.2.3": 2,
		"pannier_plugin_call_duration_seconds 1 1.2.3": 2,
		"pannier_plugin_events_total started":          1,
		"pannier_plugin_info 1 storage.v1 1.2.3":       1,
	}
	if got := scrape(t, s); !maps.Equal(got, started) {
		t.Errorf("got %v, want %v", got, started)
	}
	w.put("fixture", "good", "1.3.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" && st.Draining == 0 })
	mustCall(t, s, "fixture", "")
	got := scrape(t, s)
	for series, want := range map[string]float64{
		"pannier_plugin_calls_total OK 2 Attach 1.3.0": 1,
		"pannier_plugin_call_duration_seconds 2 1.3.0": 1,
		"pannier_plugin_events_total swapped":          1,
		"pannier_plugin_info 2 storage.v1 1.3.0":       1,
	} {
		if got[series] != want {
			t.Errorf("%s is %v, want %v, of %v", series, got[series], want, got)
		}
	}
	waitFor(t, "the end of the old process's series", func() bool {
		_, there := scrape(t, s)["pannier_plugin_calls_total OK 1 Attach 1.2.3"]
		return !there
	})
}
