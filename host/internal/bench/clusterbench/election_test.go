package clusterbench

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
)

// measureElection kills the current leader and at once lets a node claim a volume. The killed server is
// restarted and votes before the next leader is killed.
func measureElection(b *testing.B, r *table.Section) {
	// Enough that the 99th percentile is not only the worst value. They take about four minutes, which a run within
	// bounds does not have.
	const kills, bound = 120, 100 * time.Second
	s := form(b, "")
	n, operator := s.node(b, "node-1"), s.operator(b)
	unix.Sync() // writing the built programs to disk takes seconds and must not be measured
	var outages table.Samples
	for kill := range measure.Turns(kills, bound) {
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		// There are two volumes, because with the first one the node finds the leader.
		for i := 2 * kill; i < 2*kill+2; i++ {
			check.NoError(b, register(ctx, operator, i, "shared"))
		}
		check.NoError(b, take(ctx, n, 2*kill, n.name))
		leader := s.leader(b)
		at := time.Now()
		leader.Kill()
		check.NoError(b, take(ctx, n, 2*kill+1, n.name))
		outages = append(outages, time.Since(at))
		cancel()
		leader.Launch()
		s.awaitVoters(b)
	}
	r.Add(
		outages.Row("kill -9 of the leader → a node's next claim is taken, p50", 0.5).Most(1300),
		outages.Row("kill -9 of the leader → a node's next claim is taken, p99", 0.99).Most(2500),
		outages.Row("the worst", 1),
		table.Row{What: "kills", Value: float64(len(outages))},
	)
}
