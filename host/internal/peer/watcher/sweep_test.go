package watcher

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// withToken starts a workload with one token.
func (w *world) withToken(id string) {
	w.t.Helper()
	w.tokens++
	token := claim.Token{ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", w.tokens), Service: "web", Consul: "default"}
	if _, err := cluster.Apply(w.t.Context(), w.ledger,
		command.Start(claim.Run{Ref: workloadRef(id), Node: "a"}, nil, token)); err != nil {
		w.t.Fatal(err)
	}
}

func TestTokensLeft(t *testing.T) {
	w := newWorld(t)
	left := func(since time.Time) bool {
		t.Helper()
		found, err := w.tokensLeft(t.Context(), since)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	begin := time.Now()
	w.withToken("runs")
	w.start("bare", "a")
	w.stop("bare")
	if left(begin) {
		t.Error("left by a workload that runs, or had none")
	}
	w.withToken("ends")
	w.stop("ends")
	if !left(begin) {
		t.Error("not left by a workload that has ended")
	}
	tried := time.Now()
	if left(tried) {
		t.Error("left by a workload that ended before the last sweep")
	}
	w.withToken("ends") // again
	if !left(tried) {
		t.Error("not left by a run before")
	}
	if _, err := cluster.Apply(t.Context(), w.ledger,
		&command.DeleteTokens{IDs: []string{"00000000-0000-4000-8000-000000000002"}}); err != nil {
		t.Fatal(err)
	}
	if left(begin) {
		t.Error("left although it was revoked")
	}
	w.stop("ends")
	if _, err := cluster.Apply(t.Context(), w.ledger,
		&command.DeleteWorkloads{EndedBefore: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if left(begin) {
		t.Error("left by a workload that was forgotten: its end is long ago")
	}
}

// sweeping runs the watcher with a counter of sweeps.
func (w *world) sweeping(err error) (count func() int32) {
	var sweeps atomic.Int32
	w.sweepDelay = time.Millisecond
	w.SweepTokens = func(context.Context) error {
		sweeps.Add(1)
		return err
	}
	return sweeps.Load
}

func TestSweepAtOnceAndAfterAnEnd(t *testing.T) {
	w := newWorld(t)
	sweeps := w.sweeping(errors.New("Consul cannot be reached"))
	w.withToken("w")
	stop := w.lead()
	w.eventually("a sweep at once", func() bool { return sweeps() == 1 })
	for n := int32(2); n < 5; n++ { // once for each, whatever the sweep came to
		w.stop("w")
		w.eventually("a sweep after the end", func() bool { return sweeps() == n })
		w.withToken("w")
		n++
		w.eventually("a sweep after the next start", func() bool { return sweeps() == n })
	}
	stop()
	n := sweeps()
	w.lead()
	w.eventually("a sweep by the next leader", func() bool { return sweeps() == n+1 })
}

func TestSweepEveryInterval(t *testing.T) {
	w := newWorld(t)
	sweeps := w.sweeping(nil)
	w.GC.Interval = 5 * time.Millisecond
	w.lead()
	w.eventually("sweeps", func() bool { return sweeps() > 3 })
}
