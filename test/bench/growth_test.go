package bench

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/usage"
)

// BenchmarkGrowth measures the same quantities at growing sizes, for `make bench-plots`. A section's title is the size.
func BenchmarkGrowth(b *testing.B) {
	testbin.RequireRoot(b, "what grows")
	measure.Section(b, "workloads", "workloads on a host", measureWorkloads)
}

// measureWorkloads runs more and more workloads with a volume each on one host, and starts and stops one more.
func measureWorkloads(b *testing.B, r *table.Section) {
	const rounds, restarts = 60, 6
	sizes := []int{1, 3, 10, 30, 100, 300, 1000}
	ctx := b.Context()
	h := newHost(b)
	a := startAgent(b, h)
	h.Eventually("the driver is healthy", driversHealthy(h))
	c := caller{b, h.Client()}
	c.create(ctx, "more")
	id := func(n int) string { return fmt.Sprint("volume-", n) }
	had := 0
	for turn := range measure.Turns(len(sizes), 2*time.Minute) {
		size := sizes[turn]
		parallel(b, size-had, 8, func(n int) error {
			c.create(ctx, id(had+n))
			_, err := c.start(ctx, id(had+n))
			return err
		})
		had = size
		var start, stop, ready table.Samples
		for range measure.Turns(rounds, 20*time.Second) {
			start = append(start, took(b)(c.start(ctx, "more")))
			stop = append(stop, took(b)(c.stop(ctx, "more")))
		}
		for range measure.Turns(restarts, 20*time.Second) {
			a.end(unix.SIGKILL)
			a = startAgent(b, h)
			ready = append(ready, a.ready)
			h.Eventually("the driver is healthy", driversHealthy(h))
		}
		for _, row := range []table.Row{
			start.Row("claim to published, p50", 0.5).Most(10),
			stop.Row("release, p50", 0.5).Most(15),
			ready.Row("restart of the agent after kill -9, p50", 0.5).Most(500),
			{What: "resident memory of the agent", Value: usage.Memory(b, a.cmd.Process.Pid, "VmRSS"), Unit: "MiB", AtMost: 64},
		} {
			row.At = float64(size)
			r.Add(row)
		}
	}
	parallel(b, had, 8, func(n int) error { _, err := c.stop(ctx, id(n)); return err })
	a.end(unix.SIGTERM)
}
