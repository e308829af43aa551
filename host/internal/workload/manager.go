package workload

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/internal/errcode"
)

// Errors of a Manager; each comes with what an operator can do.
var (
	ErrNotFound = errcode.NotFound.New("no such workload")
	// ErrConflict: the workload exists with another specification.
	ErrConflict = errcode.FailedPrecondition.New("the workload is there with another specification")
	// ErrFailed: the start failed and was undone.
	ErrFailed = errors.New("the start failed")
	// ErrNotReconciled: the host has not reached the ledger since it was started.
	ErrNotReconciled = errcode.Unavailable.New(
		"the ledger has not been reached since the host was started: no workload can be started yet")
	// ErrNotOwner means that the caller may not name this process as the workload's.
	ErrNotOwner = errcode.PermissionDenied.New(
		"only the process that started a workload with its own life may name its process, and only one that it has started")
	// ErrClosed: the host is stopping.
	ErrClosed = errcode.Unavailable.New("the host is stopping")
)

// Manager owns this node's workloads.
type Manager struct {
	Deps
	Node   string // this node's name
	Layout mounts.Layout

	// Metrics are how long the steps take, Registered what Consul is to have of the workloads' services.
	Metrics    *prometheus.HistogramVec
	Registered *Registered
	Reconciler *Reconciler
	Repairs    *Repairs

	known    *table
	volumes  *volumesteps.Steps
	services *servicesteps.Steps

	log     hclog.Logger
	journal *journal.Journal
	bootID  string
	limits  limits

	ctx    context.Context
	cancel context.CancelCauseFunc
	live   sync.WaitGroup

	reconciled chan struct{} // closed when the ledger was compared with the journal

	failedTries atomic.Int64
	mountTable  *mountTable

	mu       sync.Mutex // held while a workload is added
	closed   bool
	restored bool   // known has the workloads of the journal
	draining string // why no workload may be started; empty: they may
}

// limits are how long a manager waits; the step packages have their own.
type limits struct {
	ledger    time.Duration // for the ledger, before unmounting goes on without it
	stopGrace time.Duration // between SIGTERM and SIGKILL
	killGrace time.Duration // for what is killed to be gone
	cutGrace  time.Duration // in stopGrace's place, when the node may not use its volumes any more
	// undo is the pause between two attempts to undo; a change of a driver ends it at once.
	undo    step.Backoff
	retry   step.Backoff  // the pause between two calls to the ledger, the fence or a device plugin
	devices time.Duration // for device plugins to report their devices
	reserve time.Duration // for a reservation, with all retries
	repair  time.Duration // between two repairs
}

var defaultLimits = limits{
	ledger:    10 * time.Second,
	stopGrace: 10 * time.Second,
	killGrace: 5 * time.Second,
	cutGrace:  2 * time.Second,
	undo:      step.Backoff{Min: 500 * time.Millisecond, Max: 30 * time.Second},
	retry:     step.Backoff{Min: 100 * time.Millisecond, Max: 30 * time.Second},
	devices:   30 * time.Second,
	reserve:   2 * time.Minute,
	repair:    time.Minute,
}

// New makes a manager; Open brings back the workloads of an earlier process.
func New(node string, layout mounts.Layout, j *journal.Journal, log hclog.Logger, deps Deps) *Manager {
	if deps.Lease == nil {
		deps.Lease = (*lease.Lease)(nil) // always valid
	}
	m := &Manager{
		Deps: deps, Node: node, Layout: layout, journal: j, log: log,
		bootID: process.BootID(), limits: defaultLimits,
		reconciled: make(chan struct{}),
		known:      &table{node: node, workloads: map[claim.WorkloadRef]*instance{}},
		Metrics: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "pannier_workload_step_duration_seconds",
			Help:    "Duration of the steps of workloads' starts (do) and stops (undo) on this node; result is ok or error.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120},
		}, []string{"step", "direction", "result"}),
		services: &servicesteps.Steps{
			Node: node, Datacenter: deps.Datacenter, Tokens: deps.Tokens, Services: deps.Services, SecretsDir: deps.SecretsDir,
			Ports:           deps.Ports,
			IdentityTimeout: deps.IdentityTimeout, CheckAddresses: deps.CheckAddresses,
			Events: deps.Events, Log: log, Limits: servicesteps.DefaultLimits,
		},
	}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	m.volumes = volumesteps.New(volumesteps.Config{
		Node: node, Layout: layout, Journal: j, Ledger: deps.Ledger, Lease: deps.Lease, Controller: deps.Controller,
		Drivers: deps.Calls, Secrets: deps.Secrets, ReadSecret: deps.ReadSecret, Events: deps.Events, Log: log,
		Closing: m.ctx, Explained: m.known.explained, Records: m.known.liveRecords, Expanded: m.noteExpanded,
	})
	m.mountTable = &mountTable{ctx: m.ctx, live: &m.live, log: log}
	m.Registered = &Registered{known: m.known, services: m.services, log: log}
	m.Reconciler = &Reconciler{node: node, ledger: deps.Ledger, known: m.known, fenced: deps.Fenced, log: log}
	m.Repairs = &Repairs{
		node: node, dir: layout.Dir, ledger: deps.Ledger, drivers: deps.Drivers, known: m.known, volumes: m.volumes,
		limits: &m.limits, log: log,
	}
	return m
}

// Close leaves every workload as it is; the next process of the host continues from the journal.
// Running calls to drivers are cancelled.
func (m *Manager) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.cancel(ErrClosed)
	m.live.Wait()
	m.volumes.Calls.Wait()
	return nil
}

// instance makes an instance of a record.
func (m *Manager) instance(rec record) *instance {
	i := newInstance(rec, m.journal)
	i.secrets = m.SecretsDir.Workload(secretsdir.Place{Namespace: i.ref.Namespace, Workload: i.ref.ID})
	return i
}

// Get reads one workload. Its message names a file system of it that does not answer or fails.
func (m *Manager) Get(ref claim.WorkloadRef) (Workload, error) {
	i, err := m.known.find(ref)
	if err != nil {
		return Workload{}, err
	}
	w := i.snapshot()
	if fails := i.fileSystem(); fails != nil && w.State == Running && w.Message == "" {
		w.Message = fails.Error()
	}
	return w, nil
}

// List reads all workloads of this node, and workloads that ended lately.
func (m *Manager) List() []Workload {
	var out []Workload
	for _, i := range m.known.all() {
		out = append(out, i.snapshot())
	}
	slices.SortFunc(out, func(a, b Workload) int { return cmp.Compare(key(a.Spec.WorkloadRef), key(b.Spec.WorkloadRef)) })
	return out
}

// follow passes the steps of a workload to progress until the condition is true, and returns the
// workload as it is then.
func (m *Manager) follow(ctx context.Context, i *instance, progress func(Step),
	until func(s State, waits bool) bool,
) (Workload, error) {
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
