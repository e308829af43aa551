package pluginbench

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
)

// measureBad lets binaries take over that fail every call, or answer none, and waits until each is rolled back: within
// most milliseconds.
func measureBad(mode string, each int, most float64) func(b *testing.B, r *table.Section) {
	return func(b *testing.B, r *table.Section) {
		measureRollBacks(b, r, mode, each, most)
	}
}

func measureRollBacks(b *testing.B, r *table.Section, mode string, each int, most float64) {
	g := newRig(b, "storage")
	g.good = g.fixture
	g.put(b, "good", "1.0.0")
	g.open(b)
	plugins := catalog.New(g.host)
	l := startLoad(func(ctx context.Context) error {
		return plugins.DoStorage(ctx, "", func(ctx context.Context, client storage.Client) error {
			_, err := client.Attach(ctx, storage.Driver{ID: "d"}, storage.AttachRequest{})
			return err
		})
	})
	var gone table.Samples
	var failed []int
	for n := range measure.Turns(each, 20*time.Second) {
		before := l.failures()
		gone = append(gone, g.rollBack(b, mode, fmt.Sprintf("4.%d.0", n)))
		failed = append(failed, l.failures()-before)
		if mode != "fails" { // else none were repeated for long
			l.settle()
		}
	}
	l.end()
	g.await(b, "the old processes are gone", func(st supervisor.Status) bool { return st.Draining == 0 })
	r.Add(
		gone.Row("it takes over → it is rolled back, p50", 0.5),
		gone.Row("it takes over → it is rolled back, the longest", 0.99).Most(most),
		table.Row{What: "failed calls of one of them, the most", Value: float64(slices.Max(failed)), AtMost: 19},
	)
}

// rollBack installs a bad binary, and returns for how long it served.
func (g *rig) rollBack(b *testing.B, mode, version string) time.Duration {
	b.Helper()
	g.put(b, mode, version)
	st := g.await(b, version+" is rolled back", func(st supervisor.Status) bool {
		n := len(st.Swaps) - 1
		return n > 0 && st.Swaps[n].Rollback && st.Swaps[n].From.Version == version
	})
	in, back := st.Swaps[len(st.Swaps)-2], st.Swaps[len(st.Swaps)-1]
	return back.At.Add(back.Took).Sub(in.At.Add(in.Took))
}

// settle waits until the calls that were repeated at once are a small part of those that the good binary has answered.
func (l *load) settle() {
	answered := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.times)
	}
	for enough := answered() + 3000; answered() < enough; time.Sleep(time.Millisecond) {
	}
}

func (l *load) failures() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.failed)
}
