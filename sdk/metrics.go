package sdk

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// Counter is a metric that only grows. The host exposes a plugin's metrics with its own, as
// pannier_plugin_custom_NAME{plugin="..."}: those of the process that serves, so a swap begins them anew.
//
// All processes of a plugin may have 1,000 series at a time. Observations of further ones are dropped, and the log
// says so once. Make metrics in variables of a package: NewCounter and the others panic if a name or label is not
// valid (lower-case letters, digits and _, 64 at most), or a name is used twice.
type Counter struct{ metric *metric }

// NewCounter makes a counter. labels are the names of its labels.
func NewCounter(name, help string, labels ...string) *Counter {
	return &Counter{metrics.add(pluginv1.Metric_KIND_COUNTER, name, help, nil, labels)}
}

// Add adds v, which must not be negative. values are those of the labels, in their order.
func (c *Counter) Add(v float64, values ...string) {
	if v < 0 {
		panic(fmt.Sprintf("counter %s: %v is negative", c.metric.name, v))
	}
	c.metric.change(values, func(s *pluginv1.Series) { s.Value += v })
}

// Gauge is a metric that can go up and down. See Counter.
type Gauge struct{ metric *metric }

// NewGauge makes a gauge. labels are the names of its labels.
func NewGauge(name, help string, labels ...string) *Gauge {
	return &Gauge{metrics.add(pluginv1.Metric_KIND_GAUGE, name, help, nil, labels)}
}

// Set sets the gauge. values are those of the labels, in their order.
func (g *Gauge) Set(v float64, values ...string) {
	g.metric.change(values, func(s *pluginv1.Series) { s.Value = v })
}

// Add adds v, which may be negative.
func (g *Gauge) Add(v float64, values ...string) {
	g.metric.change(values, func(s *pluginv1.Series) { s.Value += v })
}

// Histogram is a metric that counts observations by size. See Counter.
type Histogram struct{ metric *metric }

// NewHistogram makes a histogram with at most 32 buckets, whose bounds must ascend. labels are the names of its
// labels.
func NewHistogram(name, help string, bounds []float64, labels ...string) *Histogram {
	if len(bounds) == 0 || len(bounds) > wire.MaxBuckets || !slices.IsSorted(bounds) {
		panic(fmt.Sprintf("histogram %s: 1 to %d bounds are needed, in ascending order", name, wire.MaxBuckets))
	}
	return &Histogram{metrics.add(pluginv1.Metric_KIND_HISTOGRAM, name, help, bounds, labels)}
}

// Observe counts an observation. values are those of the labels, in their order.
func (h *Histogram) Observe(v float64, values ...string) {
	h.metric.change(values, func(s *pluginv1.Series) {
		s.Value += v
		s.Count++
		for _, b := range s.GetBuckets() {
			if v <= b.GetBound() {
				b.Count++
			}
		}
	})
}

// metrics are this process's metrics.
var metrics = &metricSet{}

type metricSet struct {
	mu      sync.Mutex
	all     []*metric
	series  int
	dropped bool // it was logged
}

type metric struct {
	set        *metricSet
	kind       pluginv1.Metric_Kind
	name, help string
	bounds     []float64
	labels     []string
	series     map[string]*pluginv1.Series
}

func (m *metricSet) add(kind pluginv1.Metric_Kind, name, help string, bounds []float64, labels []string) *metric {
	for _, l := range labels {
		if !wire.MetricName.MatchString(l) || l == "plugin" || l == "le" {
			panic(fmt.Sprintf("metric %s: %q cannot be a label", name, l))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !wire.MetricName.MatchString(name) || len(labels) > wire.MaxLabels ||
		slices.ContainsFunc(m.all, func(other *metric) bool { return other.name == name }) {
		panic(fmt.Sprintf("metric %q: the name is not valid or used twice, or there are over %d labels", name, wire.MaxLabels))
	}
	one := &metric{
		set: m, kind: kind, name: name, help: help, bounds: bounds, labels: labels,
		series: map[string]*pluginv1.Series{},
	}
	m.all = append(m.all, one)
	return one
}

// change changes one series, and makes it if need be.
func (m *metric) change(values []string, do func(*pluginv1.Series)) {
	if len(values) != len(m.labels) {
		panic(fmt.Sprintf("metric %s has the labels %q, and got %d values", m.name, m.labels, len(values)))
	}
	key := strings.Join(values, "\x00")
	m.set.mu.Lock()
	defer m.set.mu.Unlock()
	s := m.series[key]
	if s == nil {
		if m.set.series >= wire.MaxSeries {
			if !m.set.dropped {
				m.set.dropped = true
				Logger().Warn("the plugin has too many series of metrics: new ones are dropped", "limit", wire.MaxSeries,
					"metric", m.name)
			}
			return
		}
		s = &pluginv1.Series{}
		for _, v := range values {
			s.Values = append(s.Values, wire.Cut(v, wire.MaxLabelValue))
		}
		for _, b := range m.bounds {
			s.Buckets = append(s.Buckets, &pluginv1.Bucket{Bound: b})
		}
		m.series[key] = s
		m.set.series++
	}
	do(s)
}

// collect returns a copy of all metrics.
func (m *metricSet) collect() (out []*pluginv1.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.all {
		shown := &pluginv1.Metric{Name: one.name, Help: one.help, Kind: one.kind, Labels: one.labels}
		for _, s := range one.series {
			shown.Series = append(shown.Series, proto.CloneOf(s))
		}
		out = append(out, shown)
	}
	return out
}
