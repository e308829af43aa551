package pluginbench

import (
	"testing"

	"github.com/pannier/pannier/test/bench/measure"
)

// BenchmarkPlugins takes all measurements once, regardless of b.N.
func BenchmarkPlugins(b *testing.B) {
	measure.Section(b, "calls", "A call of a plugin, beside a bare gRPC call and go-plugin's own client", measureCalls)
	measure.Section(b, "swaps",
		"1,000 calls a second while a plugin's binary is swapped 100 times, half of the new ones bad", measureSwaps)
	measure.Section(b, "failing", "1,000 calls a second while 25 new binaries come up well and then fail every call",
		measureBad("fails", 25, 2000))
	measure.Section(b, "hanging", "1,000 calls a second while 5 new binaries come up well and then answer no call",
		measureBad("hangs-in-calls", 5, 2500))
}
