package bench

import (
	"flag"
	"os"
	"testing"

	"github.com/pannier/pannier/test/testbin"
	"github.com/pannier/pannier/test/testns"
)

var out = flag.String("out", "", "the file that the table is written to")

func TestMain(m *testing.M) { testns.Main(m) }

// BenchmarkPannier measures everything once, whatever b.N is.
func BenchmarkPannier(b *testing.B) {
	testbin.RequireRoot(b, "all numbers")
	r := &report{machine: machine(b)}
	for _, section := range []struct {
		name    string
		measure func(b *testing.B, r *report)
	}{
		{"Start and stop of a workload with one volume, beside the driver alone", measureLatency},
		{"Claims in the ledger, one durable voter", measureLedger},
		{"The agent's start", measureStart},
		{"Memory, with 10,000 volumes", measureMemory},
		{"Restart with 100,000 claims", measureRestart},
	} {
		r.section(section.name)
		section.measure(b, r)
	}
	if *out == "" {
		b.Log("\n" + r.String())
	} else if err := os.WriteFile(*out, []byte(r.String()), 0o644); err != nil {
		b.Fatal(err)
	}
}
