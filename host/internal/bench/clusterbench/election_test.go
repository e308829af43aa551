package clusterbench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/bench/table"
)

// measureElection kills the leader, each time the one that was elected, and lets a node
// claim a volume at once. The server is started again, and votes, before the next one goes.
func measureElection(b *testing.B, r *table.Report) {
	// So many that one of a hundred is not the worst alone: about four minutes.
	const kills = 120
	s := form(b, "")
	n, operator := s.node(b, "node-1"), s.operator(b)
	unix.Sync() // what was built and set up is no part of it, and keeps a disk busy for seconds
	var outages table.Samples
	for kill := range kills {
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		// Two volumes: with the first one the node finds out who leads.
		for i := 2 * kill; i < 2*kill+2; i++ {
			if err := register(ctx, operator, i, "shared"); err != nil {
				b.Fatal(err)
			}
		}
		if err := take(ctx, n.Client, 2*kill, n.name); err != nil {
			b.Fatal(err)
		}
		leader := s.leader(b)
		at := time.Now()
		leader.Kill()
		if err := take(ctx, n.Client, 2*kill+1, n.name); err != nil {
			b.Fatal(err)
		}
		outages = append(outages, time.Since(at))
		cancel()
		leader.Launch()
		s.awaitVoters(b)
	}
	r.Add(
		table.Row{What: "kill -9 of the leader → a node's next claim is taken, p50", Value: outages.P50(), Unit: "ms"},
		table.Row{
			What: "kill -9 of the leader → a node's next claim is taken, p99", Value: outages.P99(), Unit: "ms",
			AtMost: 3000,
		},
		table.Row{
			What:  fmt.Sprintf("the worst of the %d kills", kills),
			Value: float64(outages.Quantile(1)) / float64(time.Millisecond), Unit: "ms",
		},
	)
}
