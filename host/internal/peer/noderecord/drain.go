package noderecord

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/system/events"
)

// Drainer carries out drains. While this node's record has a drain, its workloads are stopped, the last one first,
// then the mounting drivers that the host runs, and no workload can be started. When the drain is cancelled, the
// drivers are started again and workloads may be.
type Drainer struct {
	Name      string
	Ledger    cluster.Ledger
	Workloads interface {
		// Drain stops all workloads, lets none start, and returns when they are released.
		Drain(ctx context.Context, reason string) error
		Undrain()
	}
	Drivers interface {
		// Suspend stops the drivers that can mount; Resume starts them again.
		Suspend(ctx context.Context, why string) error
		Resume(ctx context.Context) error
	}
	Events *events.Bus
	Log    hclog.Logger
}

// pollTimeout is how long a query for the node's record may wait for a change.
const pollTimeout = 5 * time.Minute

// Run follows the node's record until ctx ends. A running drain is then left unfinished: the next process of
// the host continues it.
func (d *Drainer) Run(ctx context.Context) {
	var drain draining
	defer drain.end()
	pause := newPause()
	b := cluster.Blocking{Wait: pollTimeout}
	for ctx.Err() == nil {
		n, index, err := cluster.Ask(ctx, d.Ledger, &command.QueryNode{Name: d.Name}, b)
		if err != nil && !errors.Is(err, claim.ErrNodeNotFound) || index == 0 {
			// The ledger cannot be reached. A running drain continues.
			d.rest(ctx, pause)
			continue
		}
		pause.Reset()
		b.MinIndex = index
		if err := d.want(ctx, &drain, n.Drain); err != nil && ctx.Err() == nil {
			d.Log.Warn("the drain of this node cannot be ended yet: retrying", "error", err)
			b.MinIndex = 0
			d.rest(ctx, pause)
		}
	}
}

// draining is a drain that is running or done.
type draining struct {
	on     bool
	since  time.Time // claim.Drain.StartedAt
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// end stops the goroutine of a drain, and waits for it.
func (g *draining) end() {
	if g.on {
		g.cancel()
		g.work.Wait()
		g.on = false
	}
}

// want begins or ends a drain as the record says.
func (d *Drainer) want(ctx context.Context, g *draining, wanted *claim.Drain) error {
	switch {
	case wanted != nil && (!g.on || !wanted.StartedAt.Equal(g.since)):
		g.end() // a drain that was cancelled and ordered again between two reads
		working, cancel := context.WithCancel(ctx)
		g.on, g.since, g.cancel = true, wanted.StartedAt, cancel
		g.work.Go(func() { d.drain(working, *wanted) })
	case wanted == nil && g.on:
		g.end()
		if err := d.Drivers.Resume(ctx); err != nil {
			g.on, g.cancel = true, func() {} // retried with the next read
			return err
		}
		d.Workloads.Undrain()
		d.tell("drain-ended", "workloads may be started on it again")
	}
	return nil
}

// drain runs until nothing is left and the ledger has recorded that, or ctx ends.
func (d *Drainer) drain(ctx context.Context, wanted claim.Drain) {
	reason := fmt.Sprintf("the node is drained: \"pannier node drain -disable %s\" ends that", d.Name)
	d.tell("drain-started", reason)
	pause := newPause()
	for {
		err := d.drainOnce(ctx, wanted, reason)
		if err == nil {
			d.tell("drained", "nothing is left on it")
			return
		}
		if ctx.Err() != nil {
			return
		}
		d.Log.Warn("the drain of this node is not done yet: retrying", "error", err)
		d.rest(ctx, pause)
	}
}

func (d *Drainer) drainOnce(ctx context.Context, wanted claim.Drain, reason string) error {
	if err := d.Workloads.Drain(ctx, reason); err != nil {
		return err
	}
	if err := d.Drivers.Suspend(ctx, reason); err != nil {
		return err
	}
	if !wanted.DoneAt.IsZero() {
		return nil
	}
	wanted.DoneAt = time.Now().UTC()
	_, err := cluster.Apply(ctx, d.Ledger, &command.SetNodeDuty{Name: d.Name, Drain: &wanted})
	return err
}

func (d *Drainer) tell(kind, message string) {
	d.Log.Info(kind, "message", message)
	d.Events.Publish(events.Event{Topic: events.TopicAgent, Type: kind, Subject: d.Name, Message: message})
}

func (d *Drainer) rest(ctx context.Context, pause backoff.BackOff) {
	select {
	case <-ctx.Done():
	case <-time.After(pause.NextBackOff()):
	}
}

// newPause makes the growing pause between attempts.
func newPause() *backoff.ExponentialBackOff {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 100*time.Millisecond, 10*time.Second
	return pause
}
