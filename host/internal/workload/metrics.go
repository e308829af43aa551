package workload

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// stepMetrics are how long the steps of workloads take.
type stepMetrics struct{ *prometheus.HistogramVec }

func newStepMetrics() stepMetrics {
	return stepMetrics{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "pannier_workload_step_duration_seconds",
		Help:    "Duration of the steps of workloads' starts (do) and stops (undo) on this node; result is ok or error.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120},
	}, []string{"step", "direction", "result"})}
}

func (s stepMetrics) observe(step string, undo bool, err error, took time.Duration) {
	direction, result := "do", "ok"
	if undo {
		direction = "undo"
	}
	if err != nil {
		result = "error"
	}
	s.WithLabelValues(step, direction, result).Observe(took.Seconds())
}
