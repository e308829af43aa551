package meshbench

import (
	"flag"
	"testing"

	"github.com/pannier/pannier/test/bench/table"
)

var out = flag.String("out", "", "the file whose table gets the rows")

// BenchmarkMesh takes all measurements once, regardless of b.N.
func BenchmarkMesh(b *testing.B) {
	m := newMesh(b)
	r := &table.Report{}
	for _, section := range []struct {
		name    string
		measure func(b *testing.B, m *mesh, r *table.Report)
	}{
		{"SI tokens, beside Consul's API alone", measureTokens},
		{"Envoy bootstrap, beside Consul's own command", measureBootstrap},
		{"1,000 services in one Consul", measureSync},
	} {
		r.Section(section.name)
		section.measure(b, m, r)
	}
	if *out == "" {
		b.Log("\n" + r.String())
	} else if err := r.Write(*out); err != nil {
		b.Fatal(err)
	}
}
