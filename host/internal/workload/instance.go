package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/onbehalf"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/internal/notify"
)

// instance is one workload on this node. Only its goroutine (run.live) does actions; all others
// read, wait, or ask it to stop. It is the step.Workload of its steps.
type instance struct {
	ref     claim.WorkloadRef
	journal *journal.Journal

	saving    sync.Mutex // held while the record is changed and written, before mu
	forgotten bool       // the journal has no record of it any more; guarded by saving

	mu      sync.Mutex // never held while the disk is written, which may hang: status and checks are read meanwhile
	rec     record
	endedAt time.Time
	retried Release
	failure error  // why the start failed
	steps   []Step // the latest state of each step, in the order of their begin
	seq     uint64
	changed notify.Broadcast
	named   notify.Broadcast // of process
	owner   *process.Process
	process *process.Process
	pin     *os.File // an open mount namespace of the process: its number is not reused
	left    bool     // the goroutine has ended: nothing would release owner, process and pin

	volumes  *volumesteps.Set
	services []*servicesteps.Service
	leftAt   time.Time // when they were last found to be out of Consul's catalog
	secrets  string    // the folder of its services' files
	revision revision

	waitsFor []claim.WorkloadRef // those of which something is left; mu guards it

	reconciled <-chan struct{} // closed when its claims were compared with the ledger; nil: no need

	caller *onbehalf.Caller // for whom it is started
	span   trace.Span       // of the call that it is started or stopped for; mu guards it

	resumed bool // an earlier process of the host began it
	intact  bool // everything was mounted as it should be when it was restored

	endReported func() error // waits until the ledger knows that the workload ended; why it does not yet

	lost   bool            // it is stopped because its claims are lost; mu guards it
	cutOff context.Context // ends when the node may not use its volumes any more
	cut    context.CancelFunc
	forced context.Context // ends when an operator forces the release
	force  context.CancelFunc

	stop     chan struct{} // closed when a stop is asked for
	hurry    chan struct{} // holds a token when a stop is asked for again
	stopOnce sync.Once
	ended    chan struct{} // closed when the goroutine has ended
}

func newInstance(rec record, j *journal.Journal) *instance {
	i := &instance{
		ref: rec.Spec.WorkloadRef, journal: j, rec: rec,
		revision: revision{wake: make(chan struct{}, 1)},
		caller:   onbehalf.New("", rec.Grant),
		span:     noop.Span{},
		stop:     make(chan struct{}), hurry: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	i.cutOff, i.cut = context.WithCancel(context.Background())
	i.forced, i.force = context.WithCancel(context.Background())
	if rec.ForcedBy != "" {
		i.force()
	}
	i.volumes = volumesteps.NewSet(i, rec.Volumes)
	i.services = servicesteps.New(i, rec.UID, rec.Services)
	return i
}

// Ref names the workload.
func (i *instance) Ref() claim.WorkloadRef { return i.ref }

// Resumed reports that an earlier process of the host began the workload.
func (i *instance) Resumed() bool { return i.resumed }

// ForcedBy is the operator who forces the release; empty: nobody.
func (i *instance) ForcedBy() (by string) {
	i.View(func() { by = i.rec.ForcedBy })
	return by
}

// LoadedByUnits reports that systemd gives copies of its services' files to units. i.mu is held.
func (i *instance) LoadedByUnits() bool { return len(i.rec.Spec.Units) > 0 }

// View calls read under the instance's lock.
func (i *instance) View(read func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	read()
}

// Update changes the instance under its lock and notifies those who wait for a change.
func (i *instance) Update(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
	i.changed.Notify()
}

// Save is an Update that has written the record to the journal when it returns.
func (i *instance) Save(change func()) error {
	return i.saveOr(func() error { change(); return nil }, func(error) {})
}

// saveOr is Save for a change that may be refused, and that is settled after the write, with its error.
func (i *instance) saveOr(change func() error, settle func(error)) error {
	i.saving.Lock()
	defer i.saving.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	was := i.rec.State
	if err := change(); err != nil {
		return err
	}
	raw, err := json.Marshal(&i.rec)
	if err != nil {
		return fmt.Errorf("encode the record of %s: %w", i, err)
	}
	starts := i.rec.State == Running && was != Running
	if starts {
		i.rec.State = was // a workload is shown as running only once the journal has it so
	}
	i.changed.Notify()
	i.mu.Unlock()
	if !i.forgotten {
		err = i.journal.Update(func(tx *journal.Tx) error {
			return journal.Bucket[json.RawMessage](records).Put(tx, key(i.ref), (*json.RawMessage)(&raw))
		})
	}
	i.mu.Lock()
	if starts && err == nil {
		i.rec.State = Running
	}
	settle(err)
	i.changed.Notify()
	return err
}

// forget deletes the record.
func (i *instance) forget() error {
	i.saving.Lock()
	defer i.saving.Unlock()
	err := i.journal.Update(func(tx *journal.Tx) error { return records.Delete(tx, key(i.ref)) })
	i.forgotten = err == nil
	return err
}

// askStop asks for a stop; the reason of the first call counts. A later call makes a release that
// waits for its next attempt try at once.
func (i *instance) askStop(reason string) {
	first := false
	i.stopOnce.Do(func() {
		first = true
		i.View(func() {
			if i.rec.Message == "" {
				i.rec.Message = reason
			}
		})
		close(i.stop)
	})
	if first {
		return
	}
	select {
	case i.hurry <- struct{}{}:
	default: // one is pending
	}
}

// stopReason is why a stop was asked for.
func (i *instance) stopReason() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return errors.New(i.rec.Message)
}

// traceIn puts what is done for the workload from now on into the trace of a span.
func (i *instance) traceIn(span trace.Span) { i.View(func() { i.span = span }) }

// traced returns ctx in the trace of the call that the workload is started or stopped for.
func (i *instance) traced(ctx context.Context) context.Context {
	i.mu.Lock()
	defer i.mu.Unlock()
	return trace.ContextWithSpan(ctx, i.span)
}
