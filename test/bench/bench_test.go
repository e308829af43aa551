package bench

import (
	"testing"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 0) }

// BenchmarkPannier takes all measurements once, regardless of b.N.
func BenchmarkPannier(b *testing.B) {
	testbin.RequireRoot(b, "all numbers")
	measure.Section(b, "latency", "Start and stop of a workload with one volume, beside the driver alone", measureLatency)
	measure.Section(b, "together", "100 workloads on one host, started and stopped at once, beside the driver alone",
		measureTogether)
	measure.Section(b, "commands", "Whole commands", measureCommands)
	measure.Section(b, "ledger", "Claims in the ledger, one durable voter", measureLedger)
	measure.Section(b, "mesh", "Start and stop of a workload with a sidecar: service, token and bootstrap", measureMesh)
	measure.Section(b, "proxies", "Two services in the mesh, with an Envoy each", measureProxies)
	measure.Section(b, "start", "The agent's start", measureStart)
	measure.Section(b, "reattach", "The agent's start with plugins of all kinds that outlived the one before it",
		measureReattach)
	measure.Section(b, "upgrade", "The agent's program is replaced 30 times, at 1,000 calls per second", measureUpgrade)
	measure.Section(b, "traces", "Start and stop of a workload, with its spans exported and without", measureTraces)
	measure.Section(b, "idle", "An idle host with ten workloads, four plugins and csi-local", measureIdle)
	measure.Section(b, "memory", "Memory, with 10,000 volumes", measureMemory)
	measure.Section(b, "restart", "Restart with 100,000 claims", measureRestart)
	if measure.Full() {
		measure.Section(b, "restart-long", "Restart with 1,000,000 claims", measureLongRestart)
	}
}
