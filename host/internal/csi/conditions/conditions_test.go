package conditions

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/storage"
)

// Volumes are asked about again and again, and at once when the metrics are read.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mounted := []Volume{{Definition: claim.Definition{VolumeRef: claim.VolumeRef{Namespace: "prod", ID: "v"}, PluginID: "d"}}}
		began := time.Now()
		var asked []int // after how many seconds
		m := &Monitor{
			Node: "n1", Events: events.New(0), Log: hclog.NewNullLogger(), Mounted: func() []Volume { return mounted },
			Ask: func(context.Context, claim.Definition, mounts.Place, bool) (Answer, error) {
				asked = append(asked, int(time.Since(began).Seconds()))
				return Answer{Node: &storage.Condition{}}, nil
			},
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.Run(ctx) })
		until := func(second int) {
			time.Sleep(time.Until(began.Add(time.Duration(second) * time.Second)))
			synctest.Wait()
		}
		until(100)
		metrics := make(chan prometheus.Metric, 100)
		m.Collect(metrics)
		until(161)
		stop()
		running.Wait()
		want := []int{0, 30, 60, 90, 100, 130, 160}
		if !slices.Equal(asked, want) {
			t.Errorf("it was asked after %d seconds, want %d", asked, want)
		}
	})
}

// One event for each change, and none for what is as before, for a volume that was always well, or for a driver that
// does not answer.
func TestChanges(t *testing.T) {
	well, bad, worse := &storage.Condition{}, &storage.Condition{Abnormal: true, Message: "worn"},
		&storage.Condition{Abnormal: true, Message: "gone"}
	var node, controller *storage.Condition
	var failed error
	mounted := []Volume{{Definition: claim.Definition{VolumeRef: claim.VolumeRef{Namespace: "prod", ID: "v"}, PluginID: "d"}}}
	bus := events.New(0)
	m := &Monitor{
		Node: "n1", Events: bus, Log: hclog.NewNullLogger(), Mounted: func() []Volume { return mounted },
		Ask: func(context.Context, claim.Definition, mounts.Place, bool) (Answer, error) {
			return Answer{Node: node, Controller: controller}, failed
		},
	}
	for n, look := range []struct {
		node, controller *storage.Condition
		err              error
		mounted          bool
		want             []string // types of the new events
	}{
		{well, nil, nil, true, nil},
		{bad, nil, nil, true, []string{TypeAbnormal}},
		{bad, well, nil, true, nil},
		{worse, well, nil, true, []string{TypeAbnormal}},
		{nil, nil, errors.New("it hangs"), true, nil},
		{nil, bad, errors.New("the node's part hangs"), true, []string{TypeAbnormal}},
		{worse, well, nil, true, []string{TypeNormal}},
		{worse, bad, nil, true, []string{TypeAbnormal}},
		{well, bad, nil, true, []string{TypeNormal}},
		{well, well, nil, true, []string{TypeNormal}},
		{bad, well, nil, true, []string{TypeAbnormal}},
		{bad, well, nil, false, nil},
		{bad, well, nil, true, []string{TypeAbnormal}}, // mounted again, it is news again
	} {
		node, controller, failed = look.node, look.controller, look.err
		if m.Mounted = func() []Volume { return nil }; look.mounted {
			m.Mounted = func() []Volume { return mounted }
		}
		before := len(bus.Recent(1000))
		m.look(t.Context())
		var got []string
		for _, e := range bus.Recent(1000)[before:] {
			got = append(got, e.Type)
			if e.Subject != "prod/v" || e.Topic != events.TopicVolume || e.Details["driver"] != "d" {
				t.Errorf("look %d: event %+v", n, e)
			}
		}
		if !slices.Equal(got, look.want) {
			t.Errorf("look %d: events %q, want %q", n, got, look.want)
		}
	}
}
