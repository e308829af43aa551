package apiserver

import (
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
)

// callMetrics count the calls.
type callMetrics struct {
	total *prometheus.CounterVec
	time  *prometheus.HistogramVec
}

func newCallMetrics() *callMetrics {
	return &callMetrics{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pannier_api_requests_total", Help: "Calls of the API by procedure and code.",
		}, []string{"procedure", "code"}),
		time: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "pannier_api_request_duration_seconds", Help: "Duration of calls of the API, without streams.",
			Buckets: []float64{.001, .005, .025, .1, .5, 2.5, 10, 30, 120},
		}, []string{"procedure"}),
	}
}

// label returns a procedure's label, such as VolumeService/GetVolume.
func label(procedure string) string { return strings.TrimPrefix(procedure, "/pannier.host.v1.") }

func (m *callMetrics) observe(procedure string, err error) {
	code := "ok"
	if err != nil {
		code = connect.CodeOf(err).String()
	}
	m.total.WithLabelValues(label(procedure), code).Inc()
}

func (m *callMetrics) took(procedure string, d time.Duration) {
	m.time.WithLabelValues(label(procedure)).Observe(d.Seconds())
}

// register adds the server's metrics to the registry.
func (s *Server) register() error {
	s.calls = newCallMetrics()
	all := []prometheus.Collector{s.calls.total, s.calls.time, collector{s}}
	if s.audit != nil {
		all = append(all, s.audit.failed, s.audit.left)
	}
	for _, c := range all {
		if err := s.cfg.Metrics.Register(c); err != nil {
			return fmt.Errorf("register the metrics: %w", err)
		}
	}
	return nil
}

// collector reads the host's state when it is scraped.
type collector struct{ *Server }

// Describe leaves the metrics to be checked with each scrape.
func (c collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(ch chan<- prometheus.Metric) { c.cfg.Agent.Collect(c.running, ch) }
