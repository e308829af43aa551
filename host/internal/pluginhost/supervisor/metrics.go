package supervisor

import (
	"path"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/status"
)

// metrics counts for operators. The series of a process begin with its first call and end with the process, so that a
// dashboard has the old and the new one side by side while calls move.
type metrics struct {
	calls  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	events *prometheus.CounterVec
	info   *prometheus.Desc
	status func() []Status
}

func newMetrics(status func() []Status) *metrics {
	return &metrics{
		status: status,
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pannier_plugin_calls_total",
			Help: "Unary calls to a process of a plugin that have ended, by method and gRPC code.",
		}, []string{"plugin", "version", "generation", "method", "code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pannier_plugin_call_duration_seconds", Help: "Duration of the unary calls to a process of a plugin.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30, 150},
		}, []string{"plugin", "version", "generation"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pannier_plugin_events_total",
			Help: "What has happened to a plugin since the agent started, by the type of event: swapped, rolled-back, …",
		}, []string{"plugin", "type"}),
		info: prometheus.NewDesc("pannier_plugin_info", "1 for the process of a plugin that serves.",
			[]string{"plugin", "kind", "version", "generation"}, nil),
	}
}

// called counts a call.
func (m *metrics) called(gen *generation, method string, err error, took time.Duration) {
	number := strconv.FormatUint(gen.Run.Number, 10)
	m.calls.WithLabelValues(gen.i.name, gen.Run.Version, number, path.Base(method), status.Code(err).String()).Inc()
	m.took.WithLabelValues(gen.i.name, gen.Run.Version, number).Observe(took.Seconds())
}

// forget ends the series of a process.
func (m *metrics) forget(gen *generation) {
	of := prometheus.Labels{"plugin": gen.i.name, "generation": strconv.FormatUint(gen.Run.Number, 10)}
	m.calls.DeletePartialMatch(of)
	m.took.DeletePartialMatch(of)
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.info
	m.calls.Describe(out)
	m.took.Describe(out)
	m.events.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	for _, p := range m.status() {
		if p.PID != 0 {
			out <- prometheus.MustNewConstMetric(m.info, prometheus.GaugeValue, 1,
				p.Name, p.Kind, p.Version, strconv.FormatUint(p.Generation, 10))
		}
	}
	m.calls.Collect(out)
	m.took.Collect(out)
	m.events.Collect(out)
}
