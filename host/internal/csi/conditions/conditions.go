// Package conditions watches the condition of the volumes that are mounted on this node, as their drivers report it
// (CSI spec, NodeGetVolumeHealth and ControllerGetVolumeHealth) and as their file systems answer. It publishes an event
// when it changes. While the metrics are read, it also asks how full the volumes are (NodeGetVolumeStats).
//
// Nothing is decided from a condition: it is for people. Only drivers that report these are asked for one.
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
	"github.com/pannier/pannier/internal/notify"
	"github.com/pannier/pannier/sdk/storage"
)

const (
	// every is the pause between two looks at all volumes.
	every = 30 * time.Second
	// answerWithin bounds the question about one volume.
	answerWithin = 10 * time.Second
	// atOnce is how many volumes are asked about at the same time.
	atOnce = 8
	// readLately is how long after the metrics were read it is asked how full volumes are.
	readLately = 5 * time.Minute
)

// The types of the events, of the topic "volume".
const (
	TypeAbnormal = "abnormal"
	TypeNormal   = "normal"
)

// Volume is a volume that is mounted on this node, in one of the places where it is.
type Volume struct {
	claim.Definition
	At mounts.Place
}

// Answer is what the driver of a volume says of it. Node and Controller are what its node service and its controller
// here report; nil: nothing.
type Answer struct {
	Node, Controller *storage.Condition
	Usage            []storage.Usage
}

// Monitor watches the volumes of a node, and has their metrics.
type Monitor struct {
	// Node is this node's name.
	Node string
	// Mounted lists the volumes that are mounted here, each once.
	Mounted func() []Volume
	// Ask reads a volume's condition, and if wanted its usage.
	Ask func(ctx context.Context, v claim.Definition, at mounts.Place, usage bool) (Answer, error)
	// NoVolumes leaves out the metrics of single volumes.
	NoVolumes bool
	Events    *events.Bus
	Log       hclog.Logger

	mu    sync.Mutex
	known map[source]storage.Condition
	full  map[volumeKey][]storage.Usage
	read  time.Time        // the metrics, last
	begun notify.Broadcast // the metrics are read again
}

// volumeKey is a volume and its driver.
type volumeKey struct {
	claim.VolumeRef
	driver string
}

// source is a part of a volume's driver that reports its condition.
type source struct {
	volumeKey
	controller bool
}

// Run looks at the volumes until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	for {
		begun := m.begun.Wait()
		m.look(ctx)
		select {
		case <-time.After(every):
		case <-begun:
		case <-ctx.Done():
			return
		}
	}
}

// look asks about each volume once. One without an answer keeps the condition that was last known.
func (m *Monitor) look(ctx context.Context) {
	now, full := map[source]storage.Condition{}, map[volumeKey][]storage.Usage{}
	m.mu.Lock()
	usage := !m.NoVolumes && m.isRead()
	m.mu.Unlock()
	var mu sync.Mutex
	var asked errgroup.Group
	asked.SetLimit(atOnce)
	for _, v := range m.Mounted() {
		asked.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, answerWithin)
			defer cancel()
			answer, err := m.Ask(ctx, v.Definition, v.At, usage)
			mu.Lock()
			defer mu.Unlock()
			m.answered(v, answer, err, now)
			if len(answer.Usage) > 0 {
				full[volumeKey{v.VolumeRef, v.PluginID}] = answer.Usage
			}
			return nil
		})
	}
	_ = asked.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known, m.full = now, full
}

// isRead reports whether the metrics were read lately. m.mu is held.
func (m *Monitor) isRead() bool { return !m.read.IsZero() && time.Since(m.read) < readLately }

// answered adds the answer about one volume to what is known now.
func (m *Monitor) answered(v Volume, answer Answer, err error, now map[source]storage.Condition) {
	if err != nil && !errors.Is(err, context.Canceled) {
		m.Log.Debug("the condition of a volume is not known", "volume", v.VolumeRef, "error", err)
	}
	key := volumeKey{v.VolumeRef, v.PluginID}
	for from, c := range map[source]*storage.Condition{{key, false}: answer.Node, {key, true}: answer.Controller} {
		before, known := m.known[from]
		switch {
		case c == nil && err != nil && known:
			now[from] = before
		case c == nil && known: // it answers again, and its driver reports nothing
			m.changed(v, from, before, storage.Condition{})
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
	by := fmt.Sprintf("node %q, with driver %q,", m.Node, v.PluginID)
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
		m.Log.Warn("a volume has a problem", "volume", v.VolumeRef, "by", by, "problem", c.Message)
	}
	m.Events.Publish(e)
}
