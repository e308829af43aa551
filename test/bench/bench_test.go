package bench

import (
	"flag"
	"testing"

	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

var out = flag.String("out", "", "the file that the table is written to")

func TestMain(m *testing.M) { testns.Main(m, 0) }

// BenchmarkPannier takes all measurements once, regardless of b.N.
func BenchmarkPannier(b *testing.B) {
	testbin.RequireRoot(b, "all numbers")
	r := &table.Report{Machine: machine(b)}
	for _, section := range []struct {
		name    string
		measure func(b *testing.B, r *table.Report)
	}{
		{"Start and stop of a workload with one volume, beside the driver alone", measureLatency},
		{"Whole commands", measureCommands},
		{"Claims in the ledger, one durable voter", measureLedger},
		{"Start and stop of a workload with a sidecar: service, token and bootstrap", measureMesh},
		{"The agent's start", measureStart},
		{"The agent's start with plugins of all kinds that outlived the one before it", measureReattach},
		{"The agent's program is replaced 30 times, at 1,000 calls per second", measureUpgrade},
		{"An idle host with ten workloads, four plugins and csi-local", measureIdle},
		{"Memory, with 10,000 volumes", measureMemory},
		{"Restart with 100,000 claims", measureRestart},
	} {
		r.Section(section.name)
		section.measure(b, r)
	}
	if *out == "" {
		b.Log("\n" + r.String())
	} else if err := r.Write(*out); err != nil {
		b.Fatal(err)
	}
}
