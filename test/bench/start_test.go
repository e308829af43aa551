package bench

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testhost"
)

// measureStart starts an agent on an empty directory, and one whose plugin and driver are still running.
func measureStart(b *testing.B, r *table.Section) {
	const turns = 12
	h := newHost(b)
	var first, again table.Samples
	for range measure.Turns(turns, 20*time.Second) {
		a := startAgent(b, h)
		first = append(first, a.ready)
		h.Eventually("the driver is healthy", driversHealthy(h))
		a.end(unix.SIGKILL)
		a = startAgent(b, h)
		again = append(again, a.ready)
		a.end(unix.SIGTERM)
		if left := h.Processes(); len(left) > 0 {
			b.Fatalf("processes %v are left", left)
		}
		if err := os.RemoveAll(h.Path("data")); err != nil {
			b.Fatal(err)
		}
	}
	r.Add(
		first.Row("exec → ready, for the first time, p50", 0.5).Most(80),
		again.Row("exec → ready after kill -9, plugin and driver alive, p50", 0.5).Most(60),
	)
}

func driversHealthy(h *testhost.Host) func() error {
	return func() error {
		s, err := h.Status()
		if err != nil {
			return err
		}
		if len(s.GetDrivers()) == 0 {
			return fmt.Errorf("there is no driver")
		}
		for _, d := range s.GetDrivers() {
			if !d.GetHealthy() {
				return fmt.Errorf("driver %s: %s", d.GetId(), d.GetMessage())
			}
		}
		return nil
	}
}

// measureRestart starts an agent on a ledger with 100,000 volumes, each claimed by a workload on another node.
func measureRestart(b *testing.B, r *table.Section) { restarts(b, r, manyVolumes, 2500) }

// measureLongRestart does the same with 1,000,000.
func measureLongRestart(b *testing.B, r *table.Section) { restarts(b, r, 10*manyVolumes, 5000) }

func restarts(b *testing.B, r *table.Section, volumes int, target float64) {
	b.Helper()
	const turns = 3
	h := newHost(b)
	if err := os.MkdirAll(h.Path("data"), 0o700); err != nil {
		b.Fatal(err)
	}
	ledger, err := cluster.Open(b.Context(), cluster.Config{Dir: h.Path("data/ledger"), Name: "a", BootstrapExpect: 1})
	if err != nil {
		b.Fatal(err)
	}
	fill(b, ledger, volumes, "b")
	if err := ledger.Close(); err != nil {
		b.Fatal(err)
	}
	var stopped, killed table.Samples
	for range measure.Turns(turns, 30*time.Second) {
		a := startAgent(b, h)
		stopped = append(stopped, a.ready)
		h.Eventually("the driver is healthy", driversHealthy(h))
		a.end(unix.SIGKILL)
		a = startAgent(b, h)
		killed = append(killed, a.ready)
		h.Eventually("the driver is healthy", driversHealthy(h))
		a.end(unix.SIGTERM)
	}
	r.Add(
		stopped.Row("exec → ready after a stop, p50", 0.5).Most(target),
		killed.Row("exec → ready after kill -9, p50", 0.5).Most(target),
	)
}
