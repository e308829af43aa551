package pluginbench

import (
	"flag"
	"testing"

	"github.com/pannier/pannier/test/bench/table"
)

var out = flag.String("out", "", "the file whose table gets the rows")

// BenchmarkPlugins takes all measurements once, regardless of b.N.
func BenchmarkPlugins(b *testing.B) {
	r := &table.Report{}
	for _, section := range []struct {
		name    string
		measure func(b *testing.B, r *table.Report)
	}{
		{"A call of a plugin, beside a bare gRPC call and go-plugin's own client", measureCalls},
		{"1,000 calls a second while a plugin's binary is swapped 100 times, half of the new ones bad", measureSwaps},
		{"1,000 calls a second while 100 new binaries come up well and then fail every call", measureFailing},
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
