package apiserver

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// brokenLedger fails the next registration as one that may have been taken.
type brokenLedger struct {
	Ledger
	failNext bool
}

func (l *brokenLedger) RegisterVolume(ctx context.Context, v claim.Volume) (command.RegisterVolumeResult, error) {
	if l.failNext {
		l.failNext = false
		return command.RegisterVolumeResult{}, cluster.ErrUncertain
	}
	return l.Ledger.RegisterVolume(ctx, v)
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

	got, err := h.client.Workloads.GetWorkload(h.ctx, request(&hostv1.GetWorkloadRequest{Id: "db"}))
	if must(t, err); got.Msg.Workload.State != "running" || got.Msg.Workload.Spec.Volumes[0].Source != "mysql" {
		t.Errorf("got %v", got.Msg)
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
	list, err := h.client.Workloads.ListWorkloads(h.ctx, request(&hostv1.ListWorkloadsRequest{Namespace: "default"}))
	if must(t, err); len(list.Msg.Workloads) == 0 {
		t.Error("nothing is listed")
	}
	list, err = h.client.Workloads.ListWorkloads(h.ctx, request(&hostv1.ListWorkloadsRequest{Namespace: "prod"}))
	if must(t, err); len(list.Msg.Workloads) != 0 {
		t.Errorf("listed %v", list.Msg)
	}
	_, err = h.client.Workloads.GetWorkload(h.ctx, request(&hostv1.GetWorkloadRequest{Id: "nobody"}))
	wantError(t, err, connect.CodeNotFound, "nobody")
}

func TestReleaseWithCallerTakesThePeersPID(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	w, _, err := h.tryStart("db", "mysql", true)
	if must(t, err); w.OwnerPid != int64(os.Getpid()) {
		t.Errorf("it belongs to %d, this is %d", w.OwnerPid, os.Getpid())
	}
	_, err = h.client.Workloads.RunningWorkload(h.ctx, request(&hostv1.RunningWorkloadRequest{Id: "db", Pid: -1}))
	wantError(t, err, connect.CodeInvalidArgument, "pid")
}

// A stop that waits for its driver can be left, and is done all the same.
func TestAStopThatWaitsCanBeLeft(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	h.start(t, "db", "mysql")
	h.fake.setFailure("unpublish", driverSays(codes.Internal, "the driver is away"))
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	stream, err := h.client.Workloads.StopWorkload(ctx, request(&hostv1.StopWorkloadRequest{Id: "db"}))
	must(t, err)
	for stream.Receive() {
		if s := stream.Msg().GetStep(); s.GetState() == "waiting" && strings.Contains(s.GetError(), "the driver is away") {
			cancel()
		}
	}
	stream.Close()
	eventually(t, "it says what it waits for", func() bool {
		got, err := h.client.Workloads.GetWorkload(h.ctx, request(&hostv1.GetWorkloadRequest{Id: "db"}))
		must(t, err)
		w := got.Msg.Workload
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
	added, err := h.client.Drivers.RegisterDriver(h.ctx, request(&hostv1.RegisterDriverRequest{Id: "extra", Endpoint: socket, HealthTimeoutMs: 60000}))
	if must(t, err); added.Msg.Driver.Source != "registered" || !added.Msg.Driver.Healthy || added.Msg.Driver.Type != "monolith" {
		t.Errorf("registered %v", added.Msg)
	}
	_, err = h.client.Drivers.RegisterDriver(h.ctx, request(&hostv1.RegisterDriverRequest{Id: "extra", Endpoint: "tcp://x"}))
	wantError(t, err, connect.CodeInvalidArgument, "endpoint")
	_, err = h.client.Drivers.RegisterDriver(h.ctx, request(&hostv1.RegisterDriverRequest{Id: "extra", HealthTimeoutMs: -1}))
	wantError(t, err, connect.CodeInvalidArgument, "health_timeout_ms")
	_, err = h.client.Drivers.RegisterDriver(h.ctx, request(&hostv1.RegisterDriverRequest{Id: "fake", Endpoint: socket + "2"}))
	wantError(t, err, connect.CodeFailedPrecondition, "csi_driver")

	list, err := h.client.Drivers.ListDrivers(h.ctx, request(&hostv1.ListDriversRequest{}))
	if must(t, err); len(list.Msg.Drivers) != 2 || list.Msg.Drivers[0].Id != "extra" {
		t.Fatalf("drivers %v", list.Msg)
	}
	d := list.Msg.Drivers[1]
	if d.NodeId != "fake-n1" || d.MaxVolumes != 9 || d.Topology["rack"] != "r1" || d.NodesExpected != 1 || d.ControllersHealthy != 1 ||
		strings.Join(d.NodeCapabilities, ",") != "GET_VOLUME_STATS" ||
		strings.Join(d.ControllerCapabilities, ",") != "CREATE_DELETE_VOLUME,LIST_VOLUMES,CREATE_DELETE_SNAPSHOT,LIST_SNAPSHOTS,EXPAND_VOLUME,VolumeExpansion.ONLINE" {
		t.Errorf("driver %v", d)
	}
	_, err = h.client.Drivers.DeregisterDriver(h.ctx, request(&hostv1.DeregisterDriverRequest{Id: "fake"}))
	wantError(t, err, connect.CodeFailedPrecondition, "csi_driver")
	_, err = h.client.Drivers.DeregisterDriver(h.ctx, request(&hostv1.DeregisterDriverRequest{Id: "extra"}))
	must(t, err)
	_, err = h.client.Drivers.GetDriver(h.ctx, request(&hostv1.GetDriverRequest{Id: "never"}))
	wantError(t, err, connect.CodeNotFound, "never")

	plugins, err := h.client.Plugins.ListPlugins(h.ctx, request(&hostv1.ListPluginsRequest{}))
	if must(t, err); plugins.Msg.Plugins[0].State != "running" || plugins.Msg.Plugins[0].Pid != 7 {
		t.Errorf("plugins %v", plugins.Msg)
	}
	h.create(t, spec("mysql"))
	now, err := h.client.Agent.Status(h.ctx, request(&hostv1.StatusRequest{}))
	must(t, err)
	if s := now.Msg; s.Name != "n1" || !s.Leader || !s.Ready || s.Volumes != 1 || s.Claims != 0 || s.RaftIndex == 0 || s.Pid != int64(os.Getpid()) ||
		s.HttpAddress != h.HTTPAddress() || s.Leftovers[0] != "/left" || len(s.Plugins) != 1 || s.Workloads["running"] != 0 {
		t.Errorf("status %v", s)
	}
}

func TestEvents(t *testing.T) {
	h := openHost(t)
	_, err := receive(h, &hostv1.EventsRequest{Recent: 1001})
	wantError(t, err, connect.CodeInvalidArgument, "recent")
	all, err := receive(h, &hostv1.EventsRequest{Recent: 1000})
	if must(t, err); len(all) == 0 {
		t.Fatal("no event of the driver's start")
	}
	ctx, cancel := context.WithCancel(h.ctx)
	stream, err := h.client.Agent.Events(ctx, request(&hostv1.EventsRequest{Follow: true, Recent: 1}))
	must(t, err)
	if !stream.Receive() || stream.Msg().Event.Seq < all[len(all)-1].Seq {
		t.Fatal(stream.Msg(), stream.Err())
	}
	_, err = h.client.Drivers.RegisterDriver(h.ctx, request(&hostv1.RegisterDriverRequest{Id: "extra", Endpoint: "unix:///nowhere/e.sock"}))
	must(t, err)
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
	stream, err = h.client.Agent.Events(h.ctx, request(&hostv1.EventsRequest{Follow: true, Recent: 1}))
	must(t, err)
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	began := time.Now()
	must(t, h.Close())
	if took := time.Since(began); took > closeGrace {
		t.Errorf("closed after %s", took)
	}
	for stream.Receive() {
	}
	wantError(t, stream.Err(), connect.CodeUnavailable, "stopping")
	must(t, h.Close())
	if _, err := os.Stat(h.cfg.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

func receive(h *host, req *hostv1.EventsRequest) (all []*hostv1.Event, err error) {
	stream, err := h.client.Agent.Events(h.ctx, request(req))
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	for stream.Receive() {
		all = append(all, stream.Msg().Event)
	}
	return all, stream.Err()
}
