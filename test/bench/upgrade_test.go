package bench

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// measureUpgrade replaces the program of an agent with a plugin of each kind and a driver, while it answers 1,000 calls
// per second.
func measureUpgrade(b *testing.B, r *table.Section) {
	const (
		upgrades = 30
		quiet    = 5 * time.Second // before the first one
		pause    = time.Second     // after each
	)
	h := newHostWith(b, testhost.LocalDriver(b), "sids", "consul-services", "envoy-bootstrap")
	var programs [2][]byte
	for n := range programs {
		data, err := os.ReadFile(testbin.BuildVersion(b, "host/cmd/pannier-agent", fmt.Sprintf("%d.0.0", n+1)))
		if err != nil {
			b.Fatal(err)
		}
		programs[n] = data
	}
	h.Install(programs[0])
	a := startAgent(b, h)
	h.Eventually("all plugins run", pluginsRun(h, 4))
	h.Eventually("the driver is healthy", driversHealthy(h))
	before := pids(b, h)
	caller{b, h.Client()}.create(b.Context(), "read")

	load := startLoad(h)
	time.Sleep(quiet)
	calm := load.cut()
	for n := range measure.Turns(upgrades, time.Minute) {
		h.Install(programs[(n+1)%2])
		h.Run("agent", "upgrade")
		time.Sleep(pause)
	}
	all, failed := load.end()
	if now := pids(b, h); now != before {
		b.Fatalf("the plugins are processes %s, and were %s", now, before)
	}
	a.end(unix.SIGTERM)
	extra := func(q float64) float64 {
		return max(0, float64(all.Quantile(q)-calm.Quantile(0.5))/float64(time.Millisecond))
	}
	r.Add(
		table.Row{What: "calls", Value: float64(len(all))},
		table.Row{What: "failed calls", Value: float64(len(failed))},
		table.Row{What: "extra delay, p50", Value: extra(0.5), Unit: "ms"},
		table.Row{What: "extra delay, p99", Value: extra(0.99), Unit: "ms"},
		table.Row{What: "extra delay, p99.9", Value: extra(0.999), Unit: "ms", AtMost: 250},
		table.Row{What: "extra delay, longest", Value: extra(1), Unit: "ms"},
	)
	for _, err := range failed[:min(len(failed), 5)] {
		b.Log(err)
	}
}

// callers is how many clients make the calls of a load, with a connection each.
const callers = 64

// load is a call every millisecond that the agent answers alone: one that asks the driver too would measure how many of
// these the driver can answer. Its time counts from when it is due.
type load struct {
	stop    chan struct{}
	running sync.WaitGroup

	mu     sync.Mutex
	took   table.Samples
	failed []error
}

func startLoad(h *testhost.Host) *load {
	l := &load{stop: make(chan struct{})}
	due := make(chan time.Time, 60_000) // a minute's
	for range callers {
		client := h.Client()
		l.running.Go(func() {
			for at := range due {
				_, err := client.Volumes.ListVolumes(context.Background(), &hostv1.ListVolumesRequest{PerPage: 1})
				l.mu.Lock()
				l.took = append(l.took, time.Since(at))
				if err != nil {
					l.failed = append(l.failed, err)
				}
				l.mu.Unlock()
			}
		})
	}
	l.running.Go(func() {
		defer close(due)
		for at := time.Now(); ; at = at.Add(time.Millisecond) {
			select {
			case <-l.stop:
				return
			case <-time.After(time.Until(at)):
				due <- at
			}
		}
	})
	return l
}

// cut returns what the calls took so far, and forgets it.
func (l *load) cut() table.Samples {
	l.mu.Lock()
	defer l.mu.Unlock()
	took := l.took
	l.took = nil
	return took
}

// end ends the load, and returns what the calls took since the cut, and the errors.
func (l *load) end() (table.Samples, []error) {
	close(l.stop)
	l.running.Wait()
	return l.took, l.failed
}
