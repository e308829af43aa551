package pluginbench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
)

// bad lists the faults of new binaries, which are used in turn.
var bad = []string{
	"exit", "hang", "garbage", "wrong-cookie", "wrong-wire", "plain", "other-certificate", "wrong-kind", "panic", "unwell",
	"hang-in-configure", "exit-after-handshake",
}

// measureSwaps swaps a plugin under load.
func measureSwaps(b *testing.B, r *table.Section) {
	const swaps, quietFor, bound = 100, 5 * time.Second, 35 * time.Second
	driver := startDriver(b)
	g := newRig(b, "storage")
	g.open(b)
	plugins := catalog.New(g.host)
	call := func(ctx context.Context) error {
		return plugins.DoStorage(ctx, "", func(ctx context.Context, client storage.Client) error {
			// Do not use Probe: csi-local syncs a file for it, and the disk would be measured.
			_, err := client.List(ctx, driver, storage.Page{})
			return err
		})
	}
	processes, sockets := len(g.processes()), len(g.sockets())

	quiet := startLoad(call)
	select {
	case <-time.After(quietFor):
	case <-b.Context().Done():
	}
	quiet.end()

	var inPlace table.Samples
	swapping := startLoad(call)
	for n := range measure.Turns(swaps/2, bound) {
		inPlace = append(inPlace, g.swap(b, n))
		g.refuse(b, n)
	}
	swapping.end()

	g.await(b, "the old processes are gone", func(st supervisor.Status) bool { return st.Draining == 0 })
	if p, s := len(g.processes()), len(g.sockets()); p != processes || s != sockets {
		b.Errorf("%d processes and %d sockets after the swaps, before them %d and %d", p, s, processes, sockets)
	}
	if failed := slices.Concat(quiet.failed, swapping.failed); len(failed) > 0 {
		b.Errorf("%d calls failed, the first with %v", len(failed), failed[0])
	}
	usual := quiet.times.Quantile(0.5)
	extra := func(s table.Samples, q float64) float64 {
		return float64(max(s.Quantile(q)-usual, 0)) / float64(time.Millisecond)
	}
	r.Add(
		table.Row{What: "calls in that time", Value: float64(len(swapping.times))},
		table.Row{What: "calls that failed", Value: float64(len(swapping.failed))},
		table.Row{What: "extra delay of a call, p99.9", Value: extra(swapping.times, 0.999), Unit: "ms", AtMost: 35},
		table.Row{What: "the longest extra delay", Value: extra(swapping.times, 1), Unit: "ms"},
		table.Row{What: "the same without swaps, p99.9", Value: extra(quiet.times, 0.999), Unit: "ms"},
		table.Row{What: "the longest without swaps", Value: extra(quiet.times, 1), Unit: "ms"},
		inPlace.Row("file in place → the new generation serves, p50", 0.5).Most(220),
		inPlace.Row("file in place → the new generation serves, p99", 0.99),
	)
}

// swap installs a good binary and returns how long it takes until it serves.
func (g *rig) swap(b *testing.B, n int) time.Duration {
	b.Helper()
	before := g.await(b, "it runs", func(st supervisor.Status) bool { return st.State == supervisor.Running }).SHA256
	at := g.put(b, "good", fmt.Sprintf("2.%d.0", n))
	g.await(b, "the new one serves", func(st supervisor.Status) bool { return st.SHA256 != before })
	return time.Since(at)
}

// refuse installs a bad binary and waits until it is refused.
func (g *rig) refuse(b *testing.B, n int) {
	b.Helper()
	before := g.await(b, "it runs", func(st supervisor.Status) bool { return st.State == supervisor.Running })
	mode := bad[n%len(bad)]
	at := g.put(b, mode, fmt.Sprintf("3.%d.0", n)).UTC()
	st := g.await(b, mode+" is refused", func(st supervisor.Status) bool {
		return len(st.Swaps) > 0 && st.Swaps[len(st.Swaps)-1].At.After(at) && st.Swaps[len(st.Swaps)-1].Error != ""
	})
	if st.PID != before.PID {
		b.Fatalf("%s took over: %+v", mode, st)
	}
}

// load makes a call every millisecond, even if earlier calls have not ended. The time of a call counts from
// when it is due, so delays of the caller count.
type load struct {
	stop chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	times  table.Samples
	failed []error
}

func startLoad(call func(context.Context) error) *load {
	l := &load{stop: make(chan struct{})}
	l.wg.Go(func() {
		due := time.Now()
		for {
			due = due.Add(time.Millisecond)
			select {
			case <-l.stop:
				return
			case <-time.After(time.Until(due)):
			}
			at := due
			l.wg.Go(func() {
				err := call(context.Background())
				l.note(time.Since(at), err)
			})
		}
	})
	return l
}

func (l *load) note(took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = append(l.times, took)
	if err != nil {
		l.failed = append(l.failed, err)
	}
}

// end stops making calls and waits for those in flight.
func (l *load) end() {
	close(l.stop)
	l.wg.Wait()
}
