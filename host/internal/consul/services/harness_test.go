package services

import (
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var owner = registration.Owner{Cluster: "c1", Node: "n1"}

// plugin is a registration and a bootstrap plugin with a catalog in memory, for one Consul. Faults are injected by
// the call's name.
type plugin struct {
	mu      sync.Mutex
	catalog map[string]registration.Instance
	index   uint64
	changed chan struct{} // closed and replaced when the catalog changes
	fail    map[string]error
	slow    time.Duration // what a registration takes

	consuls []string // the Consul of each call
	syncs   []registration.SyncRequest
	began   []time.Time // of the syncs
	beats   [][]registration.Beat
	beatAt  []time.Time
	onSync  func(a registration.Action, id string) // what a sync does
	others  map[string]bool                        // the ids that another owner has
	closed  map[string]bool                        // the ids whose intentions are somebody else's
	allowed map[string][]string                    // the intentions
	digests map[string]string                      // of proxies, by the instance's id
	files   [3]string                              // of Consul: the token, and the CAs
}

func newPlugin() *plugin {
	return &plugin{
		catalog: map[string]registration.Instance{}, changed: make(chan struct{}), fail: map[string]error{},
		index: 1, allowed: map[string][]string{},
	}
}

// SetIntentions implements registration.Intender.
func (p *plugin) SetIntentions(_ context.Context, c service.Consul, i registration.Instance) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.failure("intentions", c); err != nil {
		return err
	}
	if _, there := p.catalog[i.ID]; there && p.allowed[i.ID] == nil {
		return status.Error(codes.Internal, "it was registered before its intentions were written")
	}
	p.allowed[i.ID] = i.Service.Intentions
	return nil
}

func (p *plugin) failure(call string, c service.Consul) error {
	p.consuls = append(p.consuls, c.Name)
	return p.fail[call]
}

func (p *plugin) setFailure(call string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail[call] = err
}

// seen returns the syncs and the beats so far, with their times.
func (p *plugin) seen() (syncs []registration.SyncRequest, began []time.Time, beats [][]registration.Beat,
	beatAt []time.Time,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.syncs), slices.Clone(p.began), slices.Clone(p.beats), slices.Clone(p.beatAt)
}

// watch calls fn for everything that a sync does from now on.
func (p *plugin) watch(fn func(a registration.Action, id string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onSync = fn
}

// touch is a change of the catalog by somebody else.
func (p *plugin) touch(id string, i *registration.Instance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write(id, i)
}

// write changes the catalog. The caller holds p.mu.
func (p *plugin) write(id string, i *registration.Instance) {
	if i == nil {
		delete(p.catalog, id)
	} else {
		p.catalog[id] = *i
	}
	p.index++
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *plugin) ids() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.catalog))
}

func (p *plugin) Register(_ context.Context, c service.Consul, i registration.Instance) (string, error) {
	time.Sleep(p.slow + time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.failure("register", c); err != nil {
		return "", err
	}
	p.write(i.ID, &i)
	return i.ID + "-sidecar-proxy", nil
}

func (p *plugin) Deregister(_ context.Context, c service.Consul, _ registration.Owner, id string) error {
	time.Sleep(time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.failure("deregister", c); err != nil {
		return err
	}
	if _, ok := p.catalog[id]; ok {
		p.write(id, nil)
	}
	return nil
}

func (p *plugin) Sync(ctx context.Context, c service.Consul, req registration.SyncRequest) (uint64,
	[]registration.Change, error,
) {
	p.mu.Lock()
	p.syncs, p.began = append(p.syncs, req), append(p.began, time.Now())
	err, changed := p.failure("sync", c), p.changed
	wait := req.Index >= p.index
	p.mu.Unlock()
	if err != nil {
		return 0, nil, err
	}
	if wait {
		select {
		case <-changed:
		case <-time.After(req.Wait):
		case <-ctx.Done():
		}
	}
	time.Sleep(time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return 0, nil, status.FromContextError(ctx.Err()).Err()
	}
	var changes []registration.Change
	change := func(id string, i *registration.Instance, a registration.Action) {
		p.write(id, i)
		if p.onSync != nil {
			p.onSync(a, id)
		}
		changes = append(changes, registration.Change{ID: id, Action: a, Reason: "test"})
	}
	want := map[string]bool{}
	for _, i := range req.Instances {
		want[i.ID] = true
		if d := p.digests[i.ID]; d != i.ProxyDigest && i.ProxyDigest != "" {
			changes = append(changes, registration.Change{ID: i.ID, Action: registration.Reconfigured, ProxyDigest: d})
		}
		if p.others[i.ID] {
			changes = append(changes, registration.Change{ID: i.ID, Action: registration.Conflict, Reason: "it is another's"})
			continue
		}
		if p.closed[i.ID] {
			changes = append(changes,
				registration.Change{ID: i.ID, Action: registration.IntentionsConflict, Reason: "others say who calls it"})
		}
		if _, ok := p.catalog[i.ID]; !ok {
			change(i.ID, &i, registration.Registered)
		}
	}
	for id := range p.catalog {
		if !want[id] {
			change(id, nil, registration.Removed)
		}
	}
	return p.index, changes, nil
}

func (p *plugin) Heartbeat(_ context.Context, c service.Consul, beats []registration.Beat) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.failure("heartbeat", c); err != nil {
		return err
	}
	p.beats, p.beatAt = append(p.beats, beats), append(p.beatAt, time.Now())
	return nil
}

func (p *plugin) Generate(_ context.Context, c service.Consul, req bootstrap.Request) (bootstrap.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bootstrap.Result{Bootstrap: []byte(c.Name + " " + req.ProxyID)}, p.failure("bootstrap", c)
}

// world is the workloads of a node.
type world struct {
	mu        sync.Mutex
	instances map[string][]registration.Instance
	beats     map[string][]registration.Beat

	reconfigured []string // as "consul id digest"
}

func (w *world) set(consul string, instances ...registration.Instance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.instances = map[string][]registration.Instance{consul: instances}
}

// list adds an instance to, or removes it from, those that the workloads report for the default Consul.
func (w *world) list(id string, is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := slices.DeleteFunc(slices.Clone(w.instances["default"]),
		func(i registration.Instance) bool { return i.ID == id })
	if is {
		now = append(now, instance(id))
	}
	w.instances = map[string][]registration.Instance{"default": now}
}

// callBound is the deadline of a plugin call.
const callBound = 150 * time.Second

// run runs a registrar with one plugin in a bubble with a fake clock until fn returns. The workloads have these
// instances from the beginning.
func run(t *testing.T, p *plugin, first []registration.Instance, fn func(t *testing.T, r *Registrar, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r, w := build(p, []string{"default"})
		w.set("default", first...)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { r.Run(ctx) })
		fn(t, r, w)
		cancel()
		running.Wait()
	})
}

func build(p *plugin, consuls []string) (*Registrar, *world) {
	w := &world{}
	cfg := Config{
		Node: owner.Node, ClusterID: func(context.Context) (string, error) {
			return owner.Cluster,
				nil
		}, Consuls: map[string]service.Consul{}, Served: func(*service.Service) error { return nil },
		Registration: func(ctx context.Context, _ string,
			fn func(ctx context.Context, c registration.Registration) error,
		) error {
			ctx, cancel := context.WithTimeout(ctx, callBound)
			defer cancel()
			return fn(ctx, p)
		},
		Bootstraps: func(ctx context.Context, _ string, fn func(ctx context.Context, c bootstrap.Bootstrap) error) error {
			return fn(ctx, p)
		},
		Instances: func() map[string][]registration.Instance {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.instances
		},
		Beats: func() map[string][]registration.Beat {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.beats
		},
		Reconfigured: func(consul, id, digest string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reconfigured = append(w.reconfigured, consul+" "+id+" "+digest)
			for n := range w.instances[consul] {
				if w.instances[consul][n].ID == id {
					w.instances[consul][n].ProxyDigest = digest
				}
			}
		},
		Events: events.New(0), Log: hclog.New(&hclog.LoggerOptions{Output: io.Discard}),
	}
	for _, name := range consuls {
		cfg.Consuls[name] = service.Consul{Name: name, TokenFile: p.files[0], CAFile: p.files[1], GRPCCAFile: p.files[2]}
	}
	return New(cfg), w
}

func instance(id string, checks ...service.Check) registration.Instance {
	return registration.Instance{
		ID: id, Namespace: "default", Workload: "w",
		Service: service.Service{Name: id, Checks: checks},
	}
}

// told returns the events so far, as "type subject".
func told(r *Registrar) (all []string) {
	for _, e := range r.cfg.Events.Recent(1000) {
		all = append(all, e.Type+" "+e.Subject)
	}
	return all
}
