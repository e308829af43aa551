package devices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/plugintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// plugin is a device plugin in this process that reports what a test sets.
type plugin struct {
	mu      sync.Mutex
	groups  []device.Group
	silent  bool
	answer  device.Reservation
	changed chan struct{}
	asked   []string // of the last Reserve
}

func (p *plugin) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	for {
		p.mu.Lock()
		groups, silent, changed := p.groups, p.silent, p.changed
		p.mu.Unlock()
		if !silent {
			if err := report(groups); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *plugin) Reserve(_ context.Context, ids []string) (device.Reservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = ids
	return p.answer, nil
}

// measured is a plugin with statistics.
type measured struct{ *plugin }

func (measured) Stats(ctx context.Context, _ time.Duration, report func([]device.Stats) error) error {
	if err := report([]device.Stats{{ID: "a", Summary: "half"}}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (p *plugin) say(change func(p *plugin)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
	close(p.changed)
	p.changed = make(chan struct{})
}

func group(name string, devices ...device.Instance) device.Group {
	return device.Group{Vendor: "acme", Type: "gpu", Name: name, Devices: devices}
}

func well(id string) device.Instance { return device.Instance{ID: id, Healthy: true} }

func tells(groups ...device.Group) *plugin {
	return &plugin{groups: groups, changed: make(chan struct{})}
}

// host has the plugins, and can remove or replace one.
type host struct {
	*Registry
	bus *events.Bus

	pluginsMu sync.Mutex
	clients   map[string]device.Client
	retired   map[string]chan struct{}
	pending   []string
	news      chan struct{}
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{
		bus: events.New(0), clients: map[string]device.Client{}, retired: map[string]chan struct{}{},
		news: make(chan struct{}),
	}
	h.Registry = New(h, h.bus, hclog.NewNullLogger())
	h.timing = timing{stand: patience, retryMin: time.Millisecond, retryMax: 5 * time.Millisecond, sample: patience}
	return h
}

// run lets the registry follow the plugins until the test ends.
func (h *host) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { h.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// put serves a plugin under a name; nil removes the name.
func (h *host) put(t *testing.T, name string, impl device.Device) {
	t.Helper()
	h.pluginsMu.Lock()
	defer h.pluginsMu.Unlock()
	if retired := h.retired[name]; retired != nil {
		close(retired)
	}
	delete(h.clients, name)
	delete(h.retired, name)
	if impl != nil {
		h.clients[name] = device.NewClient(plugintest.Serve(t, device.Plugin(impl)).Conn)
		h.retired[name] = make(chan struct{})
	}
	h.wake()
}

func (h *host) wake() {
	close(h.news)
	h.news = make(chan struct{})
}

func (h *host) AwaitDevicePlugins(ctx context.Context, seen, unknown []string) (names, pending []string, err error) {
	for {
		h.pluginsMu.Lock()
		names, pending, news := slices.Sorted(maps.Keys(h.clients)), h.pending, h.news
		h.pluginsMu.Unlock()
		if !slices.Equal(names, seen) || !slices.Equal(pending, unknown) {
			return names, pending, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

func (h *host) Device(_ context.Context, name string) (device.Client, func(), error) {
	h.pluginsMu.Lock()
	defer h.pluginsMu.Unlock()
	if c := h.clients[name]; c != nil {
		return swapped{c, h.retired[name]}, func() {}, nil
	}
	return nil, nil, status.Errorf(codes.Unavailable, "plugin %q is not up", name)
}

func (h *host) DoDevice(ctx context.Context, name string, fn func(ctx context.Context, c device.Client) error) error {
	c, release, err := h.Device(ctx, name)
	if err != nil {
		return err
	}
	defer release()
	return fn(ctx, c)
}

// swapped ends its streams when another process takes over, like the catalog.
type swapped struct {
	device.Client
	retired chan struct{}
}

func (s swapped) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-s.retired:
			cancel()
		case <-stop:
		}
	})
	defer watch.Wait()
	defer close(stop)
	return s.Client.Fingerprint(ctx, report)
}

// eventually waits until the devices meet a condition.
func (h *host) eventually(t *testing.T, what string, is func(all []Group) bool) {
	t.Helper()
	late := time.After(patience)
	for {
		changed := h.Changed()
		if is(h.List()) {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("not %s: %+v", what, h.List())
		}
	}
}

func (h *host) has(t *testing.T, id string) {
	t.Helper()
	h.eventually(t, "there: "+id, func(all []Group) bool {
		return slices.ContainsFunc(all, func(g Group) bool {
			return slices.ContainsFunc(g.Devices, func(d Device) bool { return d.ID == id })
		})
	})
}

// happened waits for an event and returns it.
func (h *host) happened(t *testing.T, kind, subject string) events.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for e := range h.bus.Subscribe(ctx, 100) {
		if e.Type == kind && e.Subject == subject && e.Topic == events.TopicDevice {
			return e
		}
	}
	t.Fatalf("no event %s of %s: %+v", kind, subject, h.bus.Recent(100))
	return events.Event{}
}

func workload(id string) claim.WorkloadRef {
	return claim.WorkloadRef{Namespace: claim.DefaultNamespace, ID: id}
}

func ids(given []Given) (out []string) {
	for _, g := range given {
		out = append(out, g.Request+"="+g.ID)
	}
	slices.Sort(out)
	return out
}

func TestDevicesAreGivenOnce(t *testing.T) {
	h := newHost(t)
	h.put(t, "p", tells(group("T4", well("a"), well("b"), device.Instance{ID: "c", Message: "too hot"})))
	h.put(t, "q", tells(group("A100", well("a"))))
	h.run(t)
	first, err := h.Pick(t.Context(), workload("one"), []Request{{"acme/gpu/T4", 1}, {"gpu", 1}})
	if err != nil || len(first) != 2 || first[0].Group != "acme/gpu/T4" {
		t.Fatalf("%+v, %v", first, err)
	}
	_, err = h.Pick(t.Context(), workload("two"), []Request{{"acme/gpu", 2}})
	for _, say := range []string{
		`device "acme/gpu"`, "2 asked for, 1 free", `held by workload "one"`,
		`"c" is not healthy: too hot`,
	} {
		if !errors.Is(err, ErrTooFew) || !strings.Contains(err.Error(), say) {
			t.Errorf("%v; want %q", err, say)
		}
	}
	second, err := h.Pick(t.Context(), workload("two"), []Request{{"gpu", 1}})
	if err != nil || slices.ContainsFunc(first, func(g Given) bool { return g.Ref == second[0].Ref }) {
		t.Errorf("%+v beside %+v, %v", second, first, err)
	}
	h.Free(workload("one"))
	if again, err := h.Pick(t.Context(), workload("three"), []Request{{"acme/gpu", 2}}); err != nil || len(again) != 2 {
		t.Errorf("after they were freed: %+v, %v", again, err)
	}
	_, err = h.Pick(t.Context(), workload("four"), []Request{{"fpga", 1}})
	if !errors.Is(err, ErrTooFew) || !strings.Contains(err.Error(), "it has: acme/gpu/A100, acme/gpu/T4") {
		t.Errorf("none such: %v", err)
	}
}

// The more specific request is served first, in whatever order they are written.
// A refusal names no workload of another namespace.
func TestRefusalHidesOtherNamespaces(t *testing.T) {
	h := newHost(t)
	h.put(t, "p", tells(group("T4", well("a"))))
	h.run(t)
	h.has(t, "a")
	if _, err := h.Pick(t.Context(), claim.WorkloadRef{Namespace: "till", ID: "vault"}, []Request{{"gpu", 1}}); err != nil {
		t.Fatal(err)
	}
	_, picked := h.Pick(t.Context(), workload("w"), []Request{{"gpu", 1}})
	for _, err := range []error{picked, h.Check(claim.DefaultNamespace, []Request{{"gpu", 1}})} {
		if !errors.Is(err, ErrTooFew) || !strings.Contains(err.Error(), `"a" is held by a workload of another namespace`) ||
			strings.Contains(err.Error(), "till") || strings.Contains(err.Error(), "vault") {
			t.Errorf("it is told: %v", err)
		}
	}
	if err := h.Check("till", []Request{{"gpu", 1}}); err == nil || !strings.Contains(err.Error(), "till/vault") {
		t.Errorf("its own namespace is told: %v", err)
	}
}

func TestTheMoreSpecificRequestIsServedFirst(t *testing.T) {
	h := newHost(t)
	h.put(t, "p", tells(group("A", well("a")), group("B", well("b"))))
	h.run(t)
	got, err := h.Pick(t.Context(), workload("w"), []Request{{"gpu", 1}, {"acme/gpu/A", 1}})
	if err != nil || !slices.Equal(ids(got), []string{"acme/gpu/A=a", "gpu=b"}) {
		t.Errorf("%q, %v", ids(got), err)
	}
	if _, err := h.Pick(t.Context(), workload("v"), []Request{{"acme/gpu/A", 1}, {"gpu", 1}}); !errors.Is(err, ErrTooFew) {
		t.Errorf("there are no more: %v", err)
	}
}

func TestPickWaitsForPluginsThatHaveNotReported(t *testing.T) {
	h := newHost(t)
	p := tells(group("T4", well("a")))
	p.silent = true
	h.put(t, "p", p)
	h.run(t)
	h.eventually(t, "listed", func([]Group) bool { h.mu.Lock(); defer h.mu.Unlock(); return h.listed })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := h.Pick(ctx, workload("w"), []Request{{"gpu", 1}}); !errors.Is(err, ErrTooFew) ||
		!strings.Contains(err.Error(), `plugin "p"`) {
		t.Errorf("while it is silent: %v", err)
	}
	picked := make(chan error, 1)
	go func() {
		_, err := h.Pick(t.Context(), workload("w"), []Request{{"gpu", 1}})
		picked <- err
	}()
	p.say(func(p *plugin) { p.silent = false })
	if err := <-picked; err != nil {
		t.Error(err)
	}
}

func TestAWorkloadKeepsAFailedDevice(t *testing.T) {
	h := newHost(t)
	p := tells(group("T4", well("a")))
	h.put(t, "p", p)
	h.run(t)
	h.has(t, "a")
	given, err := h.Pick(t.Context(), workload("w"), []Request{{"gpu", 1}})
	if err != nil {
		t.Fatal(err)
	}
	p.say(func(p *plugin) {
		p.groups = []device.Group{group("T4", device.Instance{ID: "a", Message: "fell off the bus"})}
	})
	e := h.happened(t, "unhealthy", "p/a")
	if e.Details["workload"] != "w" || !strings.Contains(e.Message, "fell off the bus") ||
		!strings.Contains(e.Message, "continues") {
		t.Errorf("the event: %+v", e)
	}
	if d := h.List()[0].Devices[0]; d.Holder != workload("w") || d.Healthy {
		t.Errorf("%+v of %+v", d, given)
	}
	p.say(func(p *plugin) { p.groups = []device.Group{group("T4", well("a"))} })
	h.happened(t, "healthy", "p/a")
	p.say(func(p *plugin) { p.groups = nil })
	if e := h.happened(t, "gone", "p/a"); e.Details["workload"] != "w" {
		t.Errorf("the event: %+v", e)
	}
}

func TestDevicesStayKnownDuringASwap(t *testing.T) {
	h := newHost(t)
	h.put(t, "p", tells(group("T4", well("a"))))
	h.run(t)
	h.has(t, "a")
	if _, err := h.Pick(t.Context(), workload("w"), []Request{{"gpu", 1}}); err != nil {
		t.Fatal(err)
	}
	next := tells(group("T4", well("a"), well("b")))
	next.silent = true
	h.put(t, "p", next)
	if _, err := h.Pick(t.Context(), workload("v"), []Request{{"gpu", 1}}); !errors.Is(err, ErrTooFew) ||
		strings.Contains(err.Error(), "not known") {
		t.Errorf("while the new process is silent: %v", err)
	}
	next.say(func(p *plugin) { p.silent = false })
	h.has(t, "b")
	if d := h.List()[0].Devices[0]; !d.Healthy || d.Holder != workload("w") {
		t.Errorf("afterwards: %+v", d)
	}
	for _, e := range h.bus.Recent(100) {
		t.Errorf("it is reported: %+v", e)
	}
}

// A new process of a plugin may not lose what workloads hold, unless the old one has lost it too.
func TestAProcessThatLosesAHeldDeviceIsRefused(t *testing.T) {
	h := newHost(t)
	h.run(t)
	old := tells(group("t4", well("0"), well("1")))
	h.put(t, "gpus", old)
	given, err := h.Pick(t.Context(), workload("w"), []Request{{"gpu", 1}})
	if err != nil {
		t.Fatal(err)
	}
	held, free := given[0].ID, "0"
	if held == free {
		free = "1"
	}
	check := func(groups ...device.Group) error {
		return h.CheckCompatible(t.Context(), "gpus", plugintest.Device(t, tells(groups...)))
	}
	if err := check(group("t4", well(held))); err != nil {
		t.Errorf("it has what is held: %v", err)
	}
	want := "it has no device acme/gpu/t4/" + held + ", which workload " + workload("w").String() + " holds: stop that first"
	if err := check(group("t4", well(free))); err == nil || err.Error() != want {
		t.Errorf("it has lost a device: %v, want %s", err, want)
	}
	old.say(func(p *plugin) { p.groups = []device.Group{group("t4", well(free))} })
	for changed := h.Changed(); len(h.List()[0].Devices) != 1; changed = h.Changed() {
		<-changed
	}
	if err := check(group("t4", well(free))); err != nil {
		t.Errorf("the old one has lost it too: %v", err)
	}
}

func TestARepeatedReportChangesNothing(t *testing.T) {
	h := newHost(t)
	p := tells(group("T4", well("a")))
	h.put(t, "p", p)
	h.run(t)
	h.has(t, "a")
	changed := h.Changed()
	r, ctx := h.Registry, t.Context()
	r.report(ctx, "p", []device.Group{group("T4", well("a"))})
	select {
	case <-changed:
		t.Error("an unchanged report notified the waiters")
	default:
	}
	r.report(ctx, "p", []device.Group{group("T4")})
	select {
	case <-changed:
	default:
		t.Error("a changed report did not notify the waiters")
	}
}

func TestDevicesOfAnUnreachablePluginAreNotAllocated(t *testing.T) {
	h := newHost(t)
	h.timing.stand = 20 * time.Millisecond
	h.put(t, "p", tells(group("T4", well("a"))))
	h.run(t)
	h.has(t, "a")
	silent := tells()
	silent.silent = true
	h.put(t, "p", silent)
	if e := h.happened(t, "unhealthy", "p/a"); !strings.Contains(e.Message, "has not reported its devices") {
		t.Errorf("the event: %+v", e)
	}
	if _, err := h.Pick(t.Context(), workload("w"), []Request{{"gpu", 1}}); !errors.Is(err, ErrTooFew) ||
		!strings.Contains(err.Error(), `plugin "p" cannot be reached`) {
		t.Errorf("%v", err)
	}
	h.put(t, "p", tells(group("T4", well("a"))))
	h.happened(t, "healthy", "p/a")
}

func TestAnInvalidReportIsRefused(t *testing.T) {
	h := newHost(t)
	h.timing.stand = time.Hour
	h.put(t, "p", tells(group("")))
	h.run(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := h.Pick(ctx, workload("w"), []Request{{"gpu", 1}})
	if !errors.Is(err, ErrTooFew) ||
		!strings.Contains(err.Error(), `plugin "p" cannot be reached: its report of its devices is invalid`) ||
		len(h.List()) != 0 {
		t.Errorf("%v, %+v", err, h.List())
	}
}

func TestDevicesDisappearWithTheirPlugin(t *testing.T) {
	h := newHost(t)
	h.put(t, "p", tells(group("T4", well("a"))))
	h.run(t)
	h.has(t, "a")
	h.put(t, "p", nil)
	h.happened(t, "gone", "p/a")
	if all := h.List(); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

func TestReservationsOfSeveralPluginsAreOne(t *testing.T) {
	h := newHost(t)
	node := func(path string) device.Node {
		return device.Node{HostPath: "/dev/zero", TaskPath: path, Permissions: "rw"}
	}
	p, q := tells(group("A", well("a"), well("b"))), tells(group("B", well("c")))
	p.answer = device.Reservation{Devices: []device.Node{node("/dev/p")}, Env: map[string]string{"P": "1", "BOTH": "x"}}
	q.answer = device.Reservation{Devices: []device.Node{node("/dev/q")}, Env: map[string]string{"BOTH": "x"}}
	h.put(t, "p", p)
	h.put(t, "q", q)
	h.run(t)
	h.has(t, "c")
	given, err := h.Pick(t.Context(), workload("w"), []Request{{"gpu", 3}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := h.Reserve(t.Context(), given)
	if err != nil || len(got.Devices) != 2 || fmt.Sprint(got.Env) != "map[BOTH:x P:1]" ||
		!slices.Equal(p.asked, []string{"a", "b"}) {
		t.Errorf("%+v, %v; asked for %q", got, err, p.asked)
	}
	q.say(func(q *plugin) { q.answer.Env["BOTH"] = "y" })
	if _, err := h.Reserve(t.Context(), given); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), `"BOTH"`) {
		t.Errorf("two values of one variable: %v", err)
	}
	q.say(func(q *plugin) { q.answer = device.Reservation{Devices: []device.Node{node("/dev/p")}} })
	if _, err := h.Reserve(t.Context(), given); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "/dev/p") {
		t.Errorf("two devices at one place: %v", err)
	}
}

func TestStatisticsOfThosePluginsThatHaveThem(t *testing.T) {
	h := newHost(t)
	h.put(t, "p", measured{tells(group("A", well("a")))})
	h.put(t, "q", tells(group("B", well("b"))))
	h.run(t)
	h.has(t, "a")
	h.has(t, "b")
	got := h.Sample(t.Context())
	if len(got) != 2 || got[0].Err != nil || len(got[0].Devices) != 1 || got[0].Devices[0].Summary != "half" ||
		got[1].Err != nil || got[1].Devices != nil {
		t.Errorf("%+v", got)
	}
}

func TestNamesOfDevices(t *testing.T) {
	for name, fits := range map[string][]bool{
		"gpu": {true, true, false}, "acme/gpu": {true, false, false}, "acme/gpu/T4/x": {true, false, false},
		"acme/gpu/T4": {false, false, false}, "acme/fpga": {false, false, true},
	} {
		for n, g := range []Group{
			{Vendor: "acme", Type: "gpu", Name: "T4/x"},
			{Vendor: "other", Type: "gpu", Name: "T4"},
			{Vendor: "acme", Type: "fpga", Name: "f"},
		} {
			if matches(name, g) != fits[n] {
				t.Errorf("%q and %s: want %v", name, g, fits[n])
			}
		}
	}
}

// Two plugins report one device, since a plugin's file is there under two names, or one plugin was replaced by another.
// The device is given once, whoever reports it, also after a restart of the host.
func TestADeviceThatTwoPluginsReportIsGivenOnce(t *testing.T) {
	h := newHost(t)
	h.put(t, "p", tells(group("T4", well("a"))))
	h.run(t)
	h.has(t, "a")
	h.put(t, "q", tells(group("T4", well("a"))))
	if e := h.happened(t, "duplicate", "q/a"); !strings.Contains(e.Message, `plugin "p"`) {
		t.Errorf("the event: %+v", e)
	}
	if both, err := h.Pick(t.Context(), workload("both"), []Request{{"gpu", 2}}); !errors.Is(err, ErrTooFew) {
		t.Errorf("one workload has it twice: %+v, %v", both, err)
	}
	first, err := h.Pick(t.Context(), workload("one"), []Request{{"gpu", 1}})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(h *host, what string) {
		t.Helper()
		if second, err := h.Pick(t.Context(), workload("two"), []Request{{"gpu", 1}}); !errors.Is(err, ErrTooFew) ||
			!strings.Contains(err.Error(), `held by workload "one"`) {
			t.Errorf("%s: one has %+v, and two has %+v too: %v", what, first, second, err)
		}
	}
	refused(h, "two plugins")
	h.put(t, "p", nil)
	h.happened(t, "gone", "p/a")
	refused(h, "the other plugin")

	next := newHost(t)
	next.Hold(workload("one"), first)
	next.put(t, "r", tells(group("T4", well("a"))))
	next.run(t)
	refused(next, "another plugin after a restart")
	next.put(t, "p", tells(group("T4 rev B", well("a"))))
	next.eventually(t, "there with another name", func(all []Group) bool { return len(all) == 2 })
	refused(next, "another name of the group")
	next.Free(workload("one"))
	if again, err := next.Pick(t.Context(), workload("two"), []Request{{"acme/gpu/T4", 1}}); err != nil || len(again) != 1 {
		t.Errorf("after it was freed: %+v, %v", again, err)
	}
}
