package clusterbench

import (
	"testing"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 0) }

// BenchmarkCluster takes all measurements once, regardless of b.N.
func BenchmarkCluster(b *testing.B) {
	testbin.RequireRoot(b, "agents with volumes")
	measure.Section(b, "claims", "Durable claims on three servers, beside Consul and etcd on three servers",
		measureClaims)
	measure.Section(b, "election", "The leader is killed", measureElection)
	measure.Section(b, "snapshot", "100,000 claims on three servers", measureLedger)
	measure.Section(b, "release", "1,000 claims of a node that is down", measureRelease)
	measure.Section(b, "nodes", "1,000 nodes", measureNodes)
	measure.Section(b, "scale", "A ledger that grows", measureScale)
}
