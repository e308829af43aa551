package bench

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testhost"
)

// measureReattach kills an agent with a plugin of each kind, and starts another one. The agent's own events
// tell when each plugin served again.
func measureReattach(b *testing.B, r *table.Section) {
	const turns = 15
	plugins := []string{"csi-bridge", "sids", "consul-services", "envoy-bootstrap"}
	h := newHostWith(b, testhost.LocalDriver(b), plugins[1:]...)
	a := startAgent(b, h)
	h.Eventually("all plugins run", pluginsRun(h, len(plugins)))
	h.Eventually("the driver is healthy", driversHealthy(h))
	var all table.Samples
	for range measure.Turns(turns, 30*time.Second) {
		before := pids(b, h)
		a.end(unix.SIGKILL)
		began := time.Now()
		a = startAgent(b, h)
		var last time.Time
		h.Eventually("all plugins are found again", func() (err error) {
			last, err = reattached(b.Context(), caller{b, h.Client()}, plugins, began)
			return err
		})
		all = append(all, last.Sub(began))
		if now := pids(b, h); now != before {
			b.Fatalf("the plugins are processes %s, and were %s", now, before)
		}
	}
	a.end(unix.SIGTERM)
	r.Add(
		all.Row("exec → all four plugins serve again after kill -9, p50", 0.5).Most(200),
		all.Row("the longest", 1),
	)
}

// pluginsRun returns a check that this many plugins run.
func pluginsRun(h *testhost.Host, want int) func() error {
	return func() error {
		s, err := h.Status()
		if err != nil {
			return err
		}
		running := 0
		for _, p := range s.GetPlugins() {
			if p.GetState() == "running" {
				running++
			}
		}
		if running < want {
			return fmt.Errorf("%d of %d run: %v", running, want, s.GetPlugins())
		}
		return nil
	}
}

// pids returns the plugins' process ids by their names.
func pids(b *testing.B, h *testhost.Host) string {
	b.Helper()
	s, err := h.Status()
	if err != nil {
		b.Fatal(err)
	}
	all := map[string]int64{}
	for _, p := range s.GetPlugins() {
		all[p.GetName()] = p.GetPid()
	}
	return fmt.Sprint(all)
}

// reattached returns the time at which the last of the plugins served again, after since: events outlive the agent.
func reattached(ctx context.Context, c caller, plugins []string, since time.Time) (last time.Time, err error) {
	stream, err := c.Agent.Events(ctx, &hostv1.EventsRequest{Recent: 1000})
	if err != nil {
		return last, err
	}
	found := map[string]bool{}
	for stream.Receive() {
		e := stream.Msg().GetEvent()
		at := e.GetTime().AsTime()
		if e.GetTopic() != "plugin" || e.GetType() != "reattached" || at.Before(since) {
			continue
		}
		found[e.GetSubject()] = true
		if at.After(last) {
			last = at
		}
	}
	err = errors.Join(stream.Err(), stream.Close())
	if err == nil && len(found) < len(plugins) {
		err = fmt.Errorf("%v of %v are found again", found, plugins)
	}
	return last, err
}
