package workload

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
)

// Errors of a Manager; each comes with what an operator can do.
var (
	ErrNotFound = errors.New("no such workload")
	// ErrConflict: the workload is there with another specification.
	ErrConflict = errors.New("the workload is there with another specification")
	// ErrFailed: the start could not be done and was undone.
	ErrFailed = errors.New("the start failed")
	// ErrUnmet: the host has not reached the ledger since it was started.
	ErrUnmet = errors.New("the ledger has not been reached since the host was started: no workload can be started yet")
	// ErrClosed: the host is stopping.
	ErrClosed = errors.New("the host is stopping")
)

// maxEnded bounds how many ended workloads are remembered for a status query.
const maxEnded = 500

// Manager owns this node's workloads. Fields are set before Open.
type Manager struct {
	Deps
	Node   string // this node's name
	Layout mounts.Layout

	log     hclog.Logger
	journal *journal.Journal
	locks   volumeLocks
	leaving volumeLocks // see withdraw; taken after locks
	bootID  string
	limits  limits

	ctx    context.Context
	cancel context.CancelCauseFunc
	live   sync.WaitGroup

	met chan struct{} // closed when the ledger was compared with the journal

	mu        sync.Mutex
	closed    bool
	draining  string // why no workload may be started; empty: they may
	workloads map[claim.WorkloadRef]*instance
}

// limits are how long a manager waits for what may never come.
type limits struct {
	driver    time.Duration // for a driver that is not healthy yet, as after the host's own start
	ledger    time.Duration // for the ledger, before unmounting goes on without it
	stopGrace time.Duration // between SIGTERM and SIGKILL
	killGrace time.Duration // for what is killed to be gone
	cutGrace  time.Duration // in stopGrace's place, when the node may not use its volumes any more
	// The pause between two attempts to undo grows from undoMin to undoMax; a change
	// of a driver ends it at once.
	undoMin, undoMax time.Duration

	// Each with all that is tried again: a registration, a token's derivation, its
	// reading back, and the making of a bootstrap, whose plugin waits for the proxy's
	// registration (60 s).
	register, identity, readBack, bootstrap time.Duration
	devices, reserve                        time.Duration // for plugins to tell of theirs; for a reservation
	release                                 time.Duration // for one attempt to take a service out of Consul
	retryMin, retryMax                      time.Duration // the pause between two calls to Consul
	look                                    time.Duration // from one look at a service that runs to the next
}

var defaultLimits = limits{
	driver:    30 * time.Second,
	ledger:    10 * time.Second,
	stopGrace: 10 * time.Second,
	killGrace: 5 * time.Second,
	cutGrace:  2 * time.Second,
	undoMin:   500 * time.Millisecond,
	undoMax:   30 * time.Second,
	register:  2 * time.Minute,
	identity:  5 * time.Minute,
	readBack:  10 * time.Second,
	bootstrap: 2 * time.Minute,
	devices:   30 * time.Second,
	reserve:   2 * time.Minute,
	release:   10 * time.Second,
	retryMin:  100 * time.Millisecond,
	retryMax:  30 * time.Second,
	look:      5 * time.Minute,
}

// New makes a manager; Open brings back the workloads of an earlier process.
func New(node string, layout mounts.Layout, j *journal.Journal, log hclog.Logger, deps Deps) *Manager {
	if deps.Lease == nil {
		deps.Lease = (*lease.Lease)(nil) // always valid
	}
	m := &Manager{
		Deps: deps, Node: node, Layout: layout, journal: j, log: log,
		bootID: process.BootID(), limits: defaultLimits,
		met:       make(chan struct{}),
		workloads: map[claim.WorkloadRef]*instance{},
	}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	return m
}

// Close lets every workload be as it is; the next process of the host goes on
// from the journal. Calls to drivers that are under way are cancelled.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel(ErrClosed)
	m.live.Wait()
	return nil
}

// Options of a start.
type Options struct {
	// Owner is the process whose end releases the workload; 0: none.
	Owner int
	// Progress is told of every step as it goes; it may be nil.
	Progress func(Step)
}

// Start brings a workload up and returns when it runs, or when a start that
// failed has been undone (ErrFailed) or could not be undone at once. It goes on
// when ctx ends. Starting what runs or starts with the same specification joins it.
// Where the specification of one that runs differs in no more than its services' tags,
// meta, checks, weights and enable_tag_override, or in canary, they are registered again
// in place; an error of that is tried again too, and the workload runs on.
func (m *Manager) Start(ctx context.Context, spec Spec, opts Options) (Workload, error) {
	if err := spec.Validate(); err != nil {
		return Workload{}, err
	}
	for {
		i, asked, err := m.begin(spec, opts.Owner) //nolint:contextcheck // observing a process waits for nothing
		if errors.Is(err, errReleasing) {
			if err := m.await(ctx, i); err != nil {
				return i.snapshot(), fmt.Errorf("wait until the earlier %s is released: %w", i, err)
			}
			continue
		}
		if err != nil {
			return Workload{}, err
		}
		var unregistered error
		w, err := m.follow(ctx, i, opts.Progress, func(s State, waits bool) bool {
			answered, err := i.revised(asked)
			unregistered = err
			return startedOrNot(s, waits) && (s != Running || answered)
		})
		if err == nil {
			err = i.startError(w)
		}
		if err == nil && unregistered != nil {
			err = fmt.Errorf("%s runs on, but not with the changed spec yet: %w", i, unregistered)
		}
		return w, err
	}
}

// startedOrNot: a start is over when it runs, or when it was undone, or when
// that has to wait.
func startedOrNot(s State, waits bool) bool {
	return s == Running || s.Ended() || s == Stopping && waits
}

// errReleasing: an earlier run of the workload is still on its way out.
var errReleasing = errors.New("the workload is being released")

// begin finds the workload or makes it, with its record in the journal. Where a changed
// spec has to be registered first, asked tells which answer to wait for.
func (m *Manager) begin(spec Spec, owner int) (i *instance, asked uint64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, 0, ErrClosed
	}
	if i := m.workloads[spec.WorkloadRef]; i != nil {
		switch s := i.snapshot(); {
		case s.State == Stopping:
			return i, 0, errReleasing
		case !s.State.Ended():
			asked, err := m.join(i, s, spec, owner)
			return i, asked, err
		}
	}
	if !isClosed(m.met) {
		return nil, 0, fmt.Errorf("workload %q: %w", spec.WorkloadRef, ErrUnmet)
	}
	if m.draining != "" {
		return nil, 0, fmt.Errorf("workload %q: node %q: %w: %s", spec.WorkloadRef, m.Node, claim.ErrIneligible, m.draining)
	}
	if i, err = m.make(spec, owner); err != nil {
		m.Ports.Release(holder(spec.WorkloadRef))
		return nil, 0, err
	}
	failpoint.Here("workload", "begun")
	m.launch(i)
	return i, 0, nil
}

// join is a start of what is there already, as s says.
func (m *Manager) join(i *instance, s Workload, spec Spec, owner int) (asked uint64, err error) {
	same := s.Spec.equal(spec)
	if differs := differences(s.Spec, spec); differs != "" {
		return 0, fmt.Errorf("workload %q: %w: other %s; stop it first: pannier workload stop %s", spec.WorkloadRef, ErrConflict, differs, spec.ID)
	}
	if s.OwnerPID != owner {
		return 0, fmt.Errorf("workload %q: %w: it belongs to %s, this call to %s; stop it first: pannier workload stop %s",
			spec.WorkloadRef, ErrConflict, whose(s.OwnerPID), whose(owner), spec.ID)
	}
	if !same && s.State != Running {
		return 0, fmt.Errorf("workload %q: %w and is not up yet: what is said of its services can be changed once it runs", spec.WorkloadRef, ErrConflict)
	}
	if !same {
		return m.revise(i, spec)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if s.State == Running && i.pending() {
		return i.askRevision(), nil
	}
	return 0, nil
}

// make makes a workload that nobody has a record of, and writes the first one. After an
// error its ports are to be released.
func (m *Manager) make(spec Spec, owner int) (*instance, error) {
	rec := record{Spec: spec, State: Starting, BootID: m.bootID, RunID: rand.Text(), StartedAt: time.Now().UTC(), Steps: map[string]progress{}}
	for _, v := range spec.Volumes {
		rec.Volumes = append(rec.Volumes, &volumeRecord{
			Request: v, Ref: claim.VolumeRef{Namespace: spec.Namespace, ID: v.Source}, Steps: map[string]progress{},
		})
	}
	if err := m.resolve(&rec); err != nil {
		return nil, err
	}
	i := m.instance(rec)
	if owner != 0 {
		p, err := process.Observe(owner)
		if err != nil {
			return nil, fmt.Errorf("observe the owner of %s: %w", i, err)
		}
		ref := p.Ref()
		i.owner, i.rec.Owner = p, &ref
	}
	if err := i.update(m.journal, func(*record) {}); err != nil {
		i.letGo()
		return nil, fmt.Errorf("begin %s: %w", i, err)
	}
	return i, nil
}

// instance makes an instance of a record.
func (m *Manager) instance(rec record) *instance {
	i := newInstance(rec)
	i.secrets = m.SecretsDir.Workload(secretsdir.Place{Namespace: i.ref.Namespace, Workload: i.ref.ID})
	return i
}

func whose(owner int) string {
	if owner == 0 {
		return "no process (pannier workload start)"
	}
	return fmt.Sprintf("process %d", owner)
}

// launch gives the instance its goroutine. m.mu is held.
func (m *Manager) launch(i *instance) {
	m.workloads[i.ref] = i
	m.forgetOldest()
	m.live.Go(func() { (&run{m, i}).live(m.ctx) })
}

// forgetOldest drops the longest ended workloads beyond maxEnded. m.mu is held.
func (m *Manager) forgetOldest() {
	var over []Workload
	for _, i := range m.workloads {
		if s := i.snapshot(); s.State.Ended() {
			over = append(over, s)
		}
	}
	slices.SortFunc(over, func(a, b Workload) int { return b.EndedAt.Compare(a.EndedAt) })
	for _, w := range over[min(maxEnded, len(over)):] {
		delete(m.workloads, w.Spec.WorkloadRef)
	}
}

// Stop takes a workload down and returns when nothing is left of it. It goes on
// when ctx ends, and calling it again makes the next attempt at once. Stopping what
// has ended is success.
func (m *Manager) Stop(ctx context.Context, ref claim.WorkloadRef, reason string, progress func(Step)) (Workload, error) {
	i, err := m.find(ref)
	if err != nil {
		return Workload{}, err
	}
	i.askStop(reason)
	undone := func(s Step) {
		if s.Undo && progress != nil {
			progress(s)
		}
	}
	return m.follow(ctx, i, undone, func(s State, _ bool) bool { return s.Ended() })
}

// Running notes which process is the workload; it is released when that ends.
// After an error the process must not begin: its volumes are not there, or not
// for it.
func (m *Manager) Running(ref claim.WorkloadRef, pid int) error {
	i, err := m.find(ref)
	if err != nil {
		return err
	}
	p, err := process.Observe(pid)
	if err != nil {
		return fmt.Errorf("observe the process of %s: %w", i, err)
	}
	if err := m.protectProcess(m.ctx, i, p); err != nil {
		p.Release()
		return fmt.Errorf("%s: its process may not begin: %w", i, err)
	}
	if err := i.ran(m.journal, p); err != nil {
		return errors.Join(err, m.releaseProcess(m.ctx, i, p.Ref()))
	}
	if i.checksProcess() {
		m.Services.Changed() // a check learns of it at once
	}
	return nil
}

// Get reads one workload.
func (m *Manager) Get(ref claim.WorkloadRef) (Workload, error) {
	i, err := m.find(ref)
	if err != nil {
		return Workload{}, err
	}
	return i.snapshot(), nil
}

// List reads all workloads of this node, those that ended lately too.
func (m *Manager) List() []Workload {
	var out []Workload
	for _, i := range m.all() {
		out = append(out, i.snapshot())
	}
	slices.SortFunc(out, func(a, b Workload) int { return cmp.Compare(key(a.Spec.WorkloadRef), key(b.Spec.WorkloadRef)) })
	return out
}

func (m *Manager) all() []*instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*instance, 0, len(m.workloads))
	for _, i := range m.workloads {
		out = append(out, i)
	}
	return out
}

func (m *Manager) find(ref claim.WorkloadRef) (*instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := m.workloads[ref]; i != nil {
		return i, nil
	}
	return nil, fmt.Errorf("workload %q on node %q: %w (see: pannier workload status)", ref, m.Node, ErrNotFound)
}

// follow tells progress of the steps until the workload is in a state that is
// asked for, and returns how it is then.
func (m *Manager) follow(ctx context.Context, i *instance, progress func(Step), until func(s State, waits bool) bool) (Workload, error) {
	var seq uint64
	for {
		steps, last, state, waits, changed := i.since(seq)
		seq = last
		for _, s := range steps {
			if progress != nil {
				progress(s)
			}
		}
		if until(state, waits) {
			return i.snapshot(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return i.snapshot(), context.Cause(ctx)
		case <-m.ctx.Done():
			return i.snapshot(), ErrClosed
		}
	}
}

// await waits until the instance has ended.
func (m *Manager) await(ctx context.Context, i *instance) error {
	select {
	case <-i.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.ctx.Done():
		return ErrClosed
	}
}
