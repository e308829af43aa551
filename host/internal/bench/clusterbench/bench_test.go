package clusterbench

import (
	"flag"
	"testing"

	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

var (
	out  = flag.String("out", "", "the file whose table gets the rows")
	only = flag.String("only", "", "the name of the one section to measure; empty: all")
)

func TestMain(m *testing.M) { testns.Main(m, 0) }

// BenchmarkCluster takes all measurements once, regardless of b.N.
func BenchmarkCluster(b *testing.B) {
	testbin.RequireRoot(b, "agents with volumes")
	r := &table.Report{}
	for _, section := range []struct {
		name, title string
		measure     func(b *testing.B, r *table.Report)
	}{
		{"claims", "Durable claims on three servers, beside Consul and etcd on three servers", measureClaims},
		{"election", "The leader is killed", measureElection},
		{"ledger", "100,000 claims on three servers", measureLedger},
		{"release", "1,000 claims of a node that is down", measureRelease},
		{"nodes", "1,000 nodes", measureNodes},
		{"scale", "A ledger that grows to 10,000 nodes and 1,000,000 volumes", measureScale},
	} {
		if *only != "" && *only != section.name {
			continue
		}
		r.Section(section.title)
		section.measure(b, r)
	}
	if *out == "" {
		b.Log("\n" + r.String())
	} else if err := r.Write(*out); err != nil {
		b.Fatal(err)
	}
}
