package hostservices

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	pluginv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/v1"
	"github.com/pannier/pannier/sdk/wire"
)

// MetricPrefix begins the names of the plugins' metrics, so that a plugin cannot pass off its own for the host's.
const MetricPrefix = "pannier_plugin_custom_"

// metricsTimeout bounds asking a plugin for its metrics: a plugin that hangs must not take the host's metrics with it.
const metricsTimeout = 2 * time.Second

// Describe implements prometheus.Collector. Nothing is known before the plugins are asked.
func (s *Services) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector: it asks each plugin's newest process for its metrics. If plugins have
// metrics of one name, those that are of another type than the first plugin's are left out, and it gives the help.
func (s *Services) Collect(out chan<- prometheus.Metric) {
	answers := s.gather()
	kinds, helps := map[string]pluginv1.Metric_Kind{}, map[string]string{}
	for _, plugin := range slices.Sorted(maps.Keys(answers)) {
		left, seen := wire.MaxSeries, map[string]bool{}
		for _, m := range answers[plugin] {
			if !wellFormed(m) {
				continue
			}
			if kind, known := kinds[m.GetName()]; known && kind != m.GetKind() {
				continue
			}
			if _, known := helps[m.GetName()]; !known {
				kinds[m.GetName()], helps[m.GetName()] = m.GetKind(), wire.Cut(m.GetHelp(), wire.MaxHelp)
			}
			desc := prometheus.NewDesc(MetricPrefix+m.GetName(), helps[m.GetName()], m.GetLabels(),
				prometheus.Labels{"plugin": plugin})
			for _, series := range m.GetSeries() {
				key := strings.Join(append([]string{m.GetName()}, series.GetValues()...), "\x00")
				metric := exposed(desc, m.GetKind(), series)
				if metric == nil || seen[key] || left == 0 {
					continue
				}
				seen[key] = true
				left--
				out <- metric
			}
		}
	}
}

// gather asks all plugins at a time.
func (s *Services) gather() map[string][]*pluginv1.Metric {
	ctx, cancel := context.WithTimeout(s.closing, metricsTimeout)
	defer cancel()
	s.mu.Lock()
	newest := map[string]*grpc.ClientConn{}
	for plugin, links := range s.links {
		if len(links) > 0 {
			newest[plugin] = links[len(links)-1]
		}
	}
	s.mu.Unlock()
	var mu sync.Mutex
	var asking sync.WaitGroup
	answers := map[string][]*pluginv1.Metric{}
	for plugin, conn := range newest {
		asking.Go(func() {
			res, err := pluginv1.NewHostServiceClient(conn).Metrics(ctx, &pluginv1.MetricsRequest{})
			if err != nil {
				s.log.Debug("a plugin has not told its metrics", "plugin", plugin, "error", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			answers[plugin] = res.GetMetrics()
		})
	}
	asking.Wait()
	return answers
}

// wellFormed reports whether a metric keeps to the bounds of HostService.
func wellFormed(m *pluginv1.Metric) bool {
	if !wire.MetricName.MatchString(m.GetName()) || len(m.GetLabels()) > wire.MaxLabels {
		return false
	}
	for i, l := range m.GetLabels() {
		if !wire.MetricName.MatchString(l) || l == "plugin" || l == "le" || slices.Contains(m.GetLabels()[:i], l) {
			return false
		}
	}
	return true
}

// exposed converts one series; nil: it is not valid.
func exposed(desc *prometheus.Desc, kind pluginv1.Metric_Kind, s *pluginv1.Series) prometheus.Metric {
	for _, v := range s.GetValues() {
		if len(v) > wire.MaxLabelValue {
			return nil
		}
	}
	var metric prometheus.Metric
	var err error
	switch kind {
	case pluginv1.Metric_KIND_COUNTER:
		metric, err = prometheus.NewConstMetric(desc, prometheus.CounterValue, s.GetValue(), s.GetValues()...)
	case pluginv1.Metric_KIND_GAUGE:
		metric, err = prometheus.NewConstMetric(desc, prometheus.GaugeValue, s.GetValue(), s.GetValues()...)
	case pluginv1.Metric_KIND_HISTOGRAM:
		if len(s.GetBuckets()) > wire.MaxBuckets {
			return nil
		}
		buckets := map[float64]uint64{}
		for _, b := range s.GetBuckets() {
			buckets[b.GetBound()] = b.GetCount()
		}
		metric, err = prometheus.NewConstHistogram(desc, s.GetCount(), s.GetValue(), buckets, s.GetValues()...)
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	return metric
}
