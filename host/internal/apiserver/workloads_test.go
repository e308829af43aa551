package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/apiserver/volumes"
	"github.com/pannier/pannier/host/internal/apiserver/workloads"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// brokenLedger makes the next registration fail with an error that leaves open whether it was applied.
type brokenLedger struct {
	volumes.Ledger
	failNext bool
}

func (l *brokenLedger) Apply(ctx context.Context, c command.Command) (any, error) {
	if _, registers := c.(*command.RegisterVolume); registers && l.failNext {
		l.failNext = false
		return nil, command.ErrUncertain
	}
	return l.Ledger.Apply(ctx, c)
}

func volumeOf(id string) claim.VolumeRef { return claim.VolumeRef{Namespace: "default", ID: id} }

func TestWorkloadStreams(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	w, steps := h.start(t, "db", "mysql")
	if w.State != "running" || w.Node != "n1" || w.OwnerPid != 0 || len(w.Mounts) != 1 {
		t.Fatalf("started %v", w)
	}
	m := w.Mounts[0]
	if m.Volume != "mysql" || m.Request != "data" || m.Destination != "/data" || m.Propagation != "rprivate" {
		t.Errorf("mount %v", m)
	}
	if _, err := os.Stat(m.HostPath); err != nil {
		t.Error(err)
	}
	doneSteps := map[string]bool{}
	for _, s := range steps {
		if s.State == "done" && s.Attempt == 1 && s.StartedAt != nil {
			doneSteps[s.Name] = true
		}
	}
	for _, name := range []string{"claim", "publish"} {
		if !doneSteps[name] {
			t.Errorf("no step %q in %v", name, steps)
		}
	}
	if again, _ := h.start(t, "db", "mysql"); again.StartedAt.AsTime() != w.StartedAt.AsTime() {
		t.Error("started twice")
	}
	h.create(t, spec("other"))
	_, _, err := h.tryStart("db", "other", false)
	wantError(t, err, connect.CodeFailedPrecondition, "another specification")
	_, _, err = h.tryStart("db2", "mysql", false)
	wantError(t, err, connect.CodeFailedPrecondition, "has no write claim left", `workload "db" on node "n1"`)
	_, _, err = h.tryStart("db3", "nothing", false)
	wantError(t, err, connect.CodeNotFound, "nothing")
	_, _, err = h.tryStart("db/4", "mysql", false)
	wantError(t, err, connect.CodeInvalidArgument, "db/4")
	h.fake.setFailure("publish", driverSays(codes.PermissionDenied, "mount: no"))
	_, _, err = h.tryStart("db5", "other", false)
	wantError(t, err, connect.CodePermissionDenied, "mount: no")
	h.fake.setFailure("publish", nil)

	got, err := h.client.Workloads.GetWorkload(h.ctx, &hostv1.GetWorkloadRequest{Id: "db"})
	if check.NoError(t, err); got.Workload.State != "running" || got.Workload.Spec.Volumes[0].Source != "mysql" {
		t.Errorf("got %v", got)
	}
	ended, undone := h.stop(t, "db")
	if ended.State != "stopped" || ended.EndedAt == nil || !strings.Contains(ended.Message, "stopped by root") {
		t.Errorf("stopped %v", ended)
	}
	for _, s := range undone {
		if !s.Undo {
			t.Errorf("a step that is no undo: %v", s)
		}
	}
	if len(undone) == 0 {
		t.Error("no step of the stop was told")
	}
	list, err := h.client.Workloads.ListWorkloads(h.ctx, &hostv1.ListWorkloadsRequest{Namespace: "default"})
	if check.NoError(t, err); len(list.Workloads) == 0 {
		t.Error("nothing is listed")
	}
	list, err = h.client.Workloads.ListWorkloads(h.ctx, &hostv1.ListWorkloadsRequest{Namespace: "prod"})
	if check.NoError(t, err); len(list.Workloads) != 0 {
		t.Errorf("listed %v", list)
	}
	_, err = h.client.Workloads.GetWorkload(h.ctx, &hostv1.GetWorkloadRequest{Id: "nobody"})
	wantError(t, err, connect.CodeNotFound, "nobody")
}

func TestReleaseWithCallerTakesThePeersPID(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	w, _, err := h.tryStart("db", "mysql", true)
	if check.NoError(t, err); w.OwnerPid != int64(os.Getpid()) {
		t.Errorf("it belongs to %d, this is %d", w.OwnerPid, os.Getpid())
	}
	_, err = h.client.Workloads.RunningWorkload(h.ctx, &hostv1.RunningWorkloadRequest{Id: "db", Pid: -1})
	wantError(t, err, connect.CodeInvalidArgument, "pid")
}

// A stop kills what is named as the workload's process, and all in its mount namespace: only the workload's owner may
// name
// one, and only one of its own.
func TestOnlyTheOwnerNamesItsProcess(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	h.create(t, spec("other"))
	_, _, err := h.tryStart("owned", "mysql", true)
	check.NoError(t, err)
	_, _, err = h.tryStart("free", "other", false)
	check.NoError(t, err)
	// A process of nobody's: the shell that started it has ended.
	out := check.Must(exec.Command("sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!").Output())(t)
	victim, err := strconv.Atoi(strings.TrimSpace(string(out)))
	check.NoError(t, err)
	t.Cleanup(func() { _ = unix.Kill(victim, unix.SIGKILL) })
	child := exec.Command("sleep", "1000")
	check.NoError(t, child.Start())
	t.Cleanup(func() { _, _ = child.Process.Kill(), child.Wait() })
	for id, pid := range map[string]int{"owned": victim, "free": child.Process.Pid} {
		_, err = h.client.Workloads.RunningWorkload(h.ctx, &hostv1.RunningWorkloadRequest{Id: id, Pid: int64(pid)})
		wantError(t, err, connect.CodePermissionDenied, "only the process that started")
	}
	_, err = h.client.Workloads.RunningWorkload(h.ctx, &hostv1.RunningWorkloadRequest{Id: "owned", Pid: int64(child.Process.Pid)})
	check.NoError(t, err)
}

// A caller may stop waiting for a stop that waits for its driver; the stop is completed nevertheless.
func TestAStopThatWaitsCanBeLeft(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	h.start(t, "db", "mysql")
	h.fake.setFailure("unpublish", driverSays(codes.Internal, "the driver is away"))
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	stream := check.Must(h.client.Workloads.StopWorkload(ctx, &hostv1.StopWorkloadRequest{Id: "db"}))(t)
	for stream.Receive() {
		if s := stream.Msg().GetStep(); s.GetState() == "waiting" && strings.Contains(s.GetError(), "the driver is away") {
			cancel()
		}
	}
	stream.Close()
	check.Eventually(t, "it says what it waits for", func() bool {
		got := check.Must(h.client.Workloads.GetWorkload(h.ctx, &hostv1.GetWorkloadRequest{Id: "db"}))(t)
		w := got.Workload
		if w.State != "stopping" {
			t.Fatalf("while it waits: %v", w)
		}
		return strings.Contains(w.Message, "the driver is away")
	})
	h.fake.setFailure("unpublish", nil)
	if w, _ := h.stop(t, "db"); w.State != "stopped" {
		t.Errorf("%v", w)
	}
}

func TestDriversPluginsAndStatus(t *testing.T) {
	h := openHost(t)
	socket := "unix:///nowhere/at-all.sock"
	added, err := h.client.Drivers.RegisterDriver(h.ctx,
		&hostv1.RegisterDriverRequest{Id: "extra", Endpoint: socket, HealthTimeoutMs: 60000})
	if check.NoError(t, err); added.Driver.Source != "registered" || !added.Driver.Healthy ||
		added.Driver.Type != "monolith" {
		t.Errorf("registered %v", added)
	}
	_, err = h.client.Drivers.RegisterDriver(h.ctx,
		&hostv1.RegisterDriverRequest{Id: "extra", Endpoint: "tcp://x"})
	wantError(t, err, connect.CodeInvalidArgument, "endpoint")
	_, err = h.client.Drivers.RegisterDriver(h.ctx, &hostv1.RegisterDriverRequest{Id: "extra", HealthTimeoutMs: -1})
	wantError(t, err, connect.CodeInvalidArgument, "health_timeout_ms")
	_, err = h.client.Drivers.RegisterDriver(h.ctx, &hostv1.RegisterDriverRequest{Id: "fake", Endpoint: socket + "2"})
	wantError(t, err, connect.CodeFailedPrecondition, "csi_driver")

	list, err := h.client.Drivers.ListDrivers(h.ctx, &hostv1.ListDriversRequest{})
	if check.NoError(t, err); len(list.Drivers) != 2 || list.Drivers[0].Id != "extra" {
		t.Fatalf("drivers %v", list)
	}
	d := list.Drivers[1]
	if d.NodeId != "fake-n1" || d.MaxVolumes != 9 || d.Topology["rack"] != "r1" || d.NodesExpected != 1 ||
		d.ControllersHealthy != 1 ||
		strings.Join(d.NodeCapabilities, ",") != "GET_VOLUME_STATS" ||
		strings.Join(d.ControllerCapabilities,
			",") != "CREATE_DELETE_VOLUME,LIST_VOLUMES,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,EXPAND_VOLUME" {
		t.Errorf("driver %v", d)
	}
	_, err = h.client.Drivers.DeregisterDriver(h.ctx, &hostv1.DeregisterDriverRequest{Id: "fake"})
	wantError(t, err, connect.CodeFailedPrecondition, "csi_driver")
	_, err = h.client.Drivers.DeregisterDriver(h.ctx, &hostv1.DeregisterDriverRequest{Id: "extra"})
	check.NoError(t, err)
	_, err = h.client.Drivers.GetDriver(h.ctx, &hostv1.GetDriverRequest{Id: "never"})
	wantError(t, err, connect.CodeNotFound, "never")

	plugins, err := h.client.Plugins.ListPlugins(h.ctx, &hostv1.ListPluginsRequest{})
	if check.NoError(t, err); plugins.Plugins[0].State != "running" || plugins.Plugins[0].Pid != 7 {
		t.Errorf("plugins %v", plugins)
	}
	h.create(t, spec("mysql"))
	now := check.Must(h.client.Agent.Status(h.ctx, &hostv1.StatusRequest{}))(t)
	if s := now; s.Name != "n1" || !s.Leader || !s.Ready || s.Volumes != 1 || s.Claims != 0 || s.RaftIndex == 0 ||
		s.Pid != int64(os.Getpid()) ||
		s.HttpAddress != h.HTTPAddress() || s.Leftovers[0] != "/left" || len(s.Plugins) != 1 || s.Workloads["running"] != 0 {
		t.Errorf("status %v", s)
	}
}

func TestEvents(t *testing.T) {
	h := openHost(t)
	_, err := receive(h, &hostv1.EventsRequest{Recent: 1001})
	wantError(t, err, connect.CodeInvalidArgument, "recent")
	all, err := receive(h, &hostv1.EventsRequest{Recent: 1000})
	if check.NoError(t, err); len(all) == 0 {
		t.Fatal("no event of the driver's start")
	}
	ctx, cancel := context.WithCancel(h.ctx)
	stream, err := h.client.Agent.Events(ctx, &hostv1.EventsRequest{Follow: true, Recent: 1})
	check.NoError(t, err)
	if !stream.Receive() || stream.Msg().Event.Seq < all[len(all)-1].Seq {
		t.Fatal(stream.Msg(), stream.Err())
	}
	_, err = h.client.Drivers.RegisterDriver(h.ctx,
		&hostv1.RegisterDriverRequest{Id: "extra", Endpoint: "unix:///nowhere/e.sock"})
	check.NoError(t, err)
	for last := stream.Msg().Event.Seq; ; last++ {
		if !stream.Receive() || stream.Msg().Event.Seq != last+1 || stream.Msg().Event.Time == nil {
			t.Fatalf("followed %v, %v after event %d", stream.Msg(), stream.Err(), last)
		}
		if stream.Msg().Event.Subject == "extra" {
			break
		}
	}
	cancel()
	stream.Close()

	// A follower does not keep the server from closing, and learns why it ended.
	stream, err = h.client.Agent.Events(h.ctx, &hostv1.EventsRequest{Follow: true, Recent: 1})
	check.NoError(t, err)
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	began := time.Now()
	check.NoError(t, h.Close())
	if took := time.Since(began); took > closeGrace {
		t.Errorf("closed after %s", took)
	}
	for stream.Receive() {
	}
	wantError(t, stream.Err(), connect.CodeUnavailable, "stopping")
	check.NoError(t, h.Close())
	if _, err := os.Stat(h.cfg.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func receive(h *host, req *hostv1.EventsRequest) (all []*hostv1.Event, err error) {
	stream, err := h.client.Agent.Events(h.ctx, req)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	for stream.Receive() {
		all = append(all, stream.Msg().Event)
	}
	return all, stream.Err()
}

// meshed returns a spec that uses everything that a service can have.
func meshed(t *testing.T) *hostv1.WorkloadSpec {
	t.Helper()
	config, err := structpb.NewStruct(map[string]any{
		"envoy_prometheus_bind_addr": "0.0.0.0:9102", "n": 3.5,
		"list": []any{"a", true},
	})
	check.NoError(t, err)
	return &hostv1.WorkloadSpec{
		Namespace: "prod", Id: "web", User: "www-data", Canary: true,
		Exec: &hostv1.Exec{Command: "/bin/web", Args: []string{"-v"}, Env: map[string]string{"A": "b"}, User: "nobody"},
		Services: []*servicev1.Service{{
			Name: "web", Port: "http", Tags: []string{"a"}, CanaryTags: []string{"c"}, Meta: map[string]string{"k": "v"},
			EnableTagOverride: true,
			Checks: []*servicev1.Check{{
				Type: "http", Path: "/", Interval: "10s",
				Header: map[string]*servicev1.HeaderValues{"Accept": {Values: []string{"x"}}},
			}},
			Connect: &servicev1.Connect{SidecarService: &servicev1.SidecarService{Proxy: &servicev1.Proxy{
				Upstreams: []*servicev1.Upstream{{DestinationName: "db", LocalBindPort: 5432}}, Config: config,
			}}},
		}, {Name: "plain"}},
		Ports: []*hostv1.Port{{Label: "http"}, {Label: "admin", Static: 8080}},
		Sidecars: []*hostv1.Sidecar{{
			Service: "web", Command: []string{"envoy", "-c", "${bootstrap}"},
			Env: map[string]string{"X": "y"}, User: "envoy",
		}},
		Devices: []*hostv1.DeviceRequest{{Name: "nvidia/gpu", Count: 2}},
		After:   []string{"db-1", "other/db-2"}, Replaces: []string{"web-1"}, Units: []string{"web.service"},
		ShutdownDelay: "5s",
	}
}

// A spec is the same after conversion to a workload.Spec and back. A workload.Spec is the same after storage as JSON.
func TestWorkloadSpecGoesThereAndBack(t *testing.T) {
	asked := meshed(t)
	spec := check.Must(workloads.SpecOf(asked))(t)
	shown := check.Must(workloads.ShownSpec(spec))(t)
	if !proto.Equal(asked, shown) {
		t.Errorf("asked\n%v\nshown\n%v", asked, shown)
	}
	raw := check.Must(json.Marshal(spec))(t)
	var back workload.Spec
	check.NoError(t, json.Unmarshal(raw, &back))
	if !reflect.DeepEqual(spec, back) {
		t.Errorf("asked\n%+v\nfrom the record\n%+v", spec, back)
	}
	// A field that is added to the specification must be carried over.
	full := reflect.ValueOf(spec)
	for n := range full.NumField() {
		if name := full.Type().Field(n).Name; full.Field(n).IsZero() && name != "Volumes" {
			t.Errorf("Spec.%s is not carried over", name)
		}
	}
	asked.Services[0].Connect.SidecarService.Proxy.Config.Fields["n"] = &structpb.Value{}
	if _, err := workloads.SpecOf(asked); connect.CodeOf(call.WithCode(t.Context(), err)) != connect.CodeInvalidArgument ||
		!strings.Contains(err.Error(), `service "web"`) {
		t.Errorf("a value that is none: %v", err)
	}
}

func TestShownServices(t *testing.T) {
	consul := &consulFake{problems: map[string]string{"default": "it is away", "east": ""}}
	s := &workloads.Handler{Name: "n1", Services: consul}
	w := workload.Workload{
		Spec: workload.Spec{WorkloadRef: claim.WorkloadRef{Namespace: "default", ID: "web"}}, State: workload.Running,
		SecretsDir: "/s/default/web", Ports: map[string]int{"http": 20000},
		Services: []servicesteps.Status{
			{
				Name: "web", ID: "web-id", ProxyID: "web-id-sidecar-proxy", Consul: "default", Port: 20000, Accessor: "acc",
				ExpiresAt: time.Unix(5, 0),
				TokenFile: "/s/default/web/web/si_token", BootstrapFile: "/s/default/web/web/envoy_bootstrap.json", AdminPort: 1,
				ReadyPort: 2, Message: "its own", Upstreams: map[string]string{"db": "127.0.0.1:5432"},
			},
			{Name: "plain", ID: "plain-id", Consul: "default"},
			{Name: "far", ID: "far-id", Consul: "east"},
		},
		Steps: []workload.Step{{Name: "register", Service: "web", State: workload.StepDone}},
	}
	got := check.Must(s.Shown(w))(t)
	want := &hostv1.ServiceStatus{
		Name: "web", Id: "web-id", ProxyId: "web-id-sidecar-proxy", Consul: "default", Port: 20000, TokenAccessor: "acc",
		TokenExpiresAt: call.Time(time.Unix(5, 0)),
		TokenFile:      "/s/default/web/web/si_token", BootstrapFile: "/s/default/web/web/envoy_bootstrap.json", AdminPort: 1,
		ReadyPort: 2, Message: "its own", Upstreams: map[string]string{"db": "127.0.0.1:5432"},
	}
	if len(got.Services) != 3 || !proto.Equal(got.Services[0], want) {
		t.Fatalf("shown %v", got.Services)
	}
	if got.Services[1].Message != "it is away" || got.Services[2].Message != "" || got.Services[1].TokenExpiresAt != nil {
		t.Errorf("shown %v", got.Services[1:])
	}
	if got.SecretsDir != "/s/default/web" || got.Ports["http"] != 20000 || got.Steps[0].Service != "web" {
		t.Errorf("shown %v", got)
	}
}

// The spec's services reach the workloads, and errors in them are errors of the caller.
func TestStartWithServices(t *testing.T) {
	var asked []workload.Spec
	h := openHost(t, func(c *parts) { c.Config.Workloads.Workloads = startOnly{c.Workloads, &asked} })
	stream := check.Must(h.client.Workloads.StartWorkload(h.ctx, &hostv1.StartWorkloadRequest{Spec: meshed(t)}))(t)
	defer stream.Close()
	var w *hostv1.Workload
	for stream.Receive() {
		w = stream.Msg().GetWorkload()
	}
	check.NoError(t, stream.Err())
	if !proto.Equal(w.GetSpec(), meshed(t)) || len(asked) != 1 ||
		asked[0].Services[0].Connect.SidecarService.Proxy.Config["n"] != 3.5 {
		t.Errorf("asked for %+v, shown %v", asked, w)
	}
}

// startOnly answers a start at once.
type startOnly struct {
	workloads.Workloads
	asked *[]workload.Spec
}

func (s startOnly) Start(_ context.Context, spec workload.Spec, _ workload.Options) (workload.Workload, error) {
	*s.asked = append(*s.asked, spec)
	return workload.Workload{Spec: spec, State: workload.Running}, nil
}
