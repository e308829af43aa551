package meshbench

import (
	"testing"

	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
)

// BenchmarkMesh takes all measurements once, regardless of b.N.
func BenchmarkMesh(b *testing.B) {
	var m *mesh
	with := func(do func(b *testing.B, m *mesh, r *table.Section)) func(*testing.B, *table.Section) {
		return func(section *testing.B, r *table.Section) {
			if m == nil {
				m = newMesh(b) // all sections use it
			}
			do(section, m, r)
		}
	}
	measure.Section(b, "tokens", "SI tokens, beside Consul's API alone", with(measureTokens))
	measure.Section(b, "bootstrap", "Envoy bootstrap, beside Consul's own command", with(measureBootstrap))
}
