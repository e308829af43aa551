// Package conditions watches the condition of the volumes that are mounted on this node, as their drivers report it
// (CSI spec, NodeGetVolumeHealth and ControllerGetVolumeHealth), and publishes an event when it changes.
//
// Nothing is decided from a condition: it is for people. Only drivers that report conditions are asked.
package conditions

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/storage"
)

const (
	// every is the pause between two looks at all volumes.
	every = 30 * time.Second
	// answerWithin bounds the question about one volume.
	answerWithin = 10 * time.Second
	// atOnce is how many volumes are asked about at the same time: three processes wake up for each question.
	atOnce = 8
)

// The types of the events, of the topic "volume".
const (
	TypeAbnormal = "abnormal"
	TypeNormal   = "normal"
)

// Volume is a volume that is mounted on this node, in one of the places where it is.
type Volume struct {
	claim.Volume
	At mounts.Place
}

// Monitor watches the volumes of a node.
type Monitor struct {
	// Node is this node's name.
	Node string
	// Mounted lists the volumes that are mounted here, each once.
	Mounted func() []Volume
	// Ask reads a volume's condition from the driver's node service and its controller here; nil: it says nothing.
	Ask    func(ctx context.Context, v claim.Volume, at mounts.Place) (node, controller *storage.Condition, err error)
	Events *events.Bus
	Log    hclog.Logger

	known map[source]storage.Condition
}

// source is a part of a volume's driver that reports its condition.
type source struct {
	volume     claim.VolumeRef
	controller bool
}

// Run looks at the volumes until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		m.look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look asks about each volume once. One without an answer keeps the condition that was last known.
func (m *Monitor) look(ctx context.Context) {
	now := map[source]storage.Condition{}
	var mu sync.Mutex
	var asked errgroup.Group
	asked.SetLimit(atOnce)
	for _, v := range m.Mounted() {
		asked.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, answerWithin)
			defer cancel()
			node, controller, err := m.Ask(ctx, v.Volume, v.At)
			mu.Lock()
			defer mu.Unlock()
			m.answered(v, node, controller, err, now)
			return nil
		})
	}
	_ = asked.Wait()
	m.known = now
}

// answered adds the answer about one volume to what is known now.
func (m *Monitor) answered(v Volume, node, controller *storage.Condition, err error, now map[source]storage.Condition) {
	if err != nil && !errors.Is(err, context.Canceled) {
		m.Log.Debug("the condition of a volume is not known", "volume", v.VolumeRef, "error", err)
	}
	for from, c := range map[source]*storage.Condition{{v.VolumeRef, false}: node, {v.VolumeRef, true}: controller} {
		before, known := m.known[from]
		switch {
		case c == nil && err != nil && known:
			now[from] = before
		case c != nil:
			now[from] = *c
			m.changed(v, from, before, *c)
		}
	}
}

// changed publishes a condition that became abnormal, is abnormal in another way, or is normal again.
func (m *Monitor) changed(v Volume, from source, before, c storage.Condition) {
	if c.Abnormal == before.Abnormal && (!c.Abnormal || c.Message == before.Message) {
		return
	}
	by := fmt.Sprintf("driver %q on node %q", v.PluginID, m.Node)
	if from.controller {
		by = fmt.Sprintf("the controller of driver %q", v.PluginID)
	}
	e := events.Event{
		Topic: events.TopicVolume, Type: TypeNormal, Subject: v.String(),
		Message: by + " reports no problem with it any more",
		Details: map[string]string{"driver": v.PluginID, "node": m.Node},
	}
	if c.Abnormal {
		e.Type, e.Message = TypeAbnormal, fmt.Sprintf("%s reports: %s", by, c.Message)
		m.Log.Warn("a driver reports a problem with a volume", "volume", v.VolumeRef, "by", by, "problem", c.Message)
	}
	m.Events.Publish(e)
}
