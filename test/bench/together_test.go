package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
)

// measureTogether starts and stops many workloads at once, each with a volume of its own, in turns with the same calls
// on the driver's socket. A time is that of all of them together.
func measureTogether(b *testing.B, r *table.Section) {
	const workloads, turns = 100, 8
	ctx := b.Context()
	h := newHost(b)
	h.Start()
	pannier := caller{b, h.Client()}
	conn := dialDriver(b, h)
	var driver [workloads]*direct
	id := func(n int) string { return fmt.Sprint("volume-", n) }
	for n := range workloads {
		pannier.create(ctx, id(n))
		driver[n] = newDirect(b, conn, pannier.create(ctx, fmt.Sprint("direct-", n)))
	}
	all := func(do func(n int) (time.Duration, error)) time.Duration {
		at := time.Now()
		parallel(b, workloads, workloads, func(n int) error { _, err := do(n); return err })
		return time.Since(at)
	}
	var start, stop, stage, unstage table.Samples
	for turn := range measure.Turns(turns+1, 40*time.Second) {
		if turn == 1 { // the first made the file systems
			start, stop, stage, unstage = nil, nil, nil, nil
		}
		start = append(start, all(func(n int) (time.Duration, error) { return pannier.start(ctx, id(n)) }))
		stop = append(stop, all(func(n int) (time.Duration, error) { return pannier.stop(ctx, id(n)) }))
		stage = append(stage, all(func(n int) (time.Duration, error) { return driver[n].stagePublish(ctx) }))
		unstage = append(unstage, all(func(n int) (time.Duration, error) { return driver[n].unpublishUnstage(ctx) }))
	}
	r.Add(
		start.Row("all are started, p50", 0.5),
		stage.Row("stage and publish of all alone, p50", 0.5),
		table.Over("the first over the second", start.Row("", 0.5), stage.Row("", 0.5)).Most(1.3),
		stop.Row("all are stopped, p50", 0.5),
		unstage.Row("unpublish and unstage of all alone, p50", 0.5),
		table.Over("the first over the second", stop.Row("", 0.5), unstage.Row("", 0.5)),
	)
}
