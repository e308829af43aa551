package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/otlp"
	"github.com/pannier/pannier/test/lib/testhost"
)

// measureTraces starts and stops workloads on a host that exports the spans of each to a collector, and in turns on one
// that records none.
func measureTraces(b *testing.B, r *table.Section) {
	const target = 1.03
	collector := otlp.New(b, nil)
	hosts := []struct {
		what        string
		config      string
		c           caller
		start, stop table.Samples
	}{
		{what: "without traces"},
		{what: "with traces", config: "traces {\n  endpoint = \"" + collector.URL + "\"\n}\n"},
	}
	for n := range hosts {
		h := newHostWith(b, testhost.LocalDriver(b)+hosts[n].config)
		h.Start()
		hosts[n].c = caller{b, h.Client()}
		hosts[n].c.create(b.Context(), "traced")
	}
	for n := range measure.Turns(warmUp+rounds, 40*time.Second) {
		for at := range hosts {
			h := &hosts[(at+n)%len(hosts)]
			if n == warmUp {
				h.start, h.stop = nil, nil
			}
			h.start = append(h.start, took(b)(h.c.start(b.Context(), "traced")))
			h.stop = append(h.stop, took(b)(h.c.stop(b.Context(), "traced")))
		}
	}
	for _, h := range hosts {
		r.Add(h.start.Row("start "+h.what+", p50", 0.5), h.stop.Row("release "+h.what+", p50", 0.5))
	}
	off, on := hosts[0], hosts[1]
	r.Add(
		table.Over("start with traces over one without", on.start.Row("", 0.5), off.start.Row("", 0.5)).Most(target),
		table.Over("release with traces over one without", on.stop.Row("", 0.5), off.stop.Row("", 0.5)).Most(target),
		table.Row{What: "spans of a start and its release", Value: spansOfATurn(collector)},
	)
}

// spansOfATurn is how many spans a start and its release have, of those that the collector has got.
func spansOfATurn(c *otlp.Collector) float64 {
	spans, starts := 0.0, 0.0
	for _, s := range c.Spans() {
		spans++
		if strings.HasSuffix(s.Name, "/StartWorkload") {
			starts++
		}
	}
	return spans / max(starts, 1)
}
