package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	v1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/test/lib/check"
)

// fake is an agent in memory behind a real socket. The id in a request selects the answer: ids that begin
// with "held" are refused, ids that begin with "away" are unavailable, and ids that begin with "forgotten"
// are gone after their stop breaks off.
type fake struct {
	dir, socket string
	// startWorkload and stopWorkload are the fake's own, or others.
	startWorkload streamHandler[hostv1.StartWorkloadRequest, hostv1.StartWorkloadResponse]
	stopWorkload  streamHandler[hostv1.StopWorkloadRequest, hostv1.StopWorkloadResponse]
	server        *http.Server
	served        sync.WaitGroup
	leaving       chan struct{}
	statuses      atomic.Int64 // asked for
	// slow is closed to let volumes be made; nil: they are made at once. leaderless has the ledger have no leader.
	slow       chan struct{}
	leaderless bool

	mu        sync.Mutex
	volumes   map[string]*hostv1.Volume
	workloads map[string]*hostv1.Workload
	running   map[string]int64
	stops     int
	holders   []*hostv1.Holder
	forgot    bool // a page's token
	// breaks is the number of streams that still have to break off early.
	breaks   int
	tokens   []*hostv1.Token
	snapshot []byte
	// taken are the names of the snapshots that were asked for.
	taken []string
	// consulAway is set while no token can be revoked.
	consulAway bool
}

func newFake(dir string) *fake {
	f := &fake{
		dir: dir, socket: filepath.Join(dir, "agent.sock"),
		tokens: []*hostv1.Token{
			{
				Id: "1", Accessor: "acc-1", Namespace: "default", Workload: "web", Service: "web", Node: "n1", Consul: "default",
				CreatedAt: ago(3 * time.Hour), ExpiresAt: timestamppb.New(time.Now().Add(50*time.Hour + time.Minute)),
			},
			{
				Id: "minted-2", Namespace: "prod", Workload: "db", Service: "db\x1b[2J", Node: "n2", Consul: "east",
				CreatedAt: ago(4 * time.Minute), Orphan: true,
			},
		},
		volumes: map[string]*hostv1.Volume{}, workloads: map[string]*hostv1.Workload{}, running: map[string]int64{},
	}
	f.startWorkload, f.stopWorkload = f.StartWorkload, f.StopWorkload
	return f
}

func (f *fake) start() error {
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		return err
	}
	// The socket file stays behind, as after a crash.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	mux := http.NewServeMux()
	mux.Handle("/", f)
	streams(mux, v1.AgentServiceEventsProcedure, f.Events)
	streams(mux, v1.AgentServiceMonitorProcedure, f.Monitor)
	streams(mux, v1.DeviceServiceDeviceStatsProcedure, f.DeviceStats)
	streams(mux, v1.OperatorServiceSaveSnapshotProcedure, f.SaveSnapshot)
	streams(mux, v1.PluginServicePluginLogProcedure, f.PluginLog)
	streams(mux, v1.WorkloadServiceStartWorkloadProcedure, f.startWorkload)
	streams(mux, v1.WorkloadServiceStopWorkloadProcedure, f.stopWorkload)
	mux.Handle(v1.OperatorServiceRestoreSnapshotProcedure,
		connect.NewClientStreamHandlerSimple(v1.OperatorServiceRestoreSnapshotProcedure, f.RestoreSnapshot))
	f.server = &http.Server{Handler: mux}
	f.served.Go(func() { _ = f.server.Serve(l) })
	return nil
}

// streamHandler answers a call with a stream.
type streamHandler[Q, A any] func(context.Context, *Q, *connect.ServerStream[A]) error

func streams[Q, A any](mux *http.ServeMux, procedure string, answer streamHandler[Q, A]) {
	mux.Handle(procedure, connect.NewServerStreamHandlerSimple(procedure, answer))
}

// ServeHTTP answers a call that is no stream by the fake's method of its name.
func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := f.answer(r, w.Header())
	if err != nil {
		_ = connect.NewErrorWriter().Write(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/proto")
	_, _ = w.Write(answer)
}

func (f *fake) answer(r *http.Request, header http.Header) ([]byte, error) {
	if f.slow != nil && path.Base(r.URL.Path) == "CreateVolume" {
		<-f.slow
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	method := reflect.ValueOf(f).MethodByName(path.Base(r.URL.Path))
	if !method.IsValid() {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New(r.URL.Path))
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	req := reflect.New(method.Type().In(0).Elem())
	if err := proto.Unmarshal(body, req.Interface().(proto.Message)); err != nil {
		return nil, err
	}
	if names, is := req.Interface().(interface{ GetNode() string }); is && !strings.Contains(r.URL.Path, "VolumeService") {
		if err := otherNode(names.GetNode(), header); err != nil {
			return nil, err
		}
	}
	out := method.Call([]reflect.Value{req})
	if err, _ := out[1].Interface().(error); err != nil {
		return nil, err
	}
	return proto.Marshal(out[0].Interface().(proto.Message))
}

func (f *fake) close() {
	if f.server != nil {
		_ = f.server.Close()
	}
	f.served.Wait()
}

// otherNode answers a call that names a node: n1 and n2 as this agent answers, selfish as an agent that answers for
// itself. Others are not there.
func otherNode(node string, header http.Header) error {
	switch node {
	case "", "selfish":
	case "n1", "n2":
		header.Set(api.NodeHeader, node)
	default:
		header.Set(api.NodeHeader, "n1")
		err := connect.NewError(connect.CodeNotFound, fmt.Errorf("ask node %q: no member (pannier server members)", node))
		err.Meta().Set(api.NodeHeader, "n1")
		return err
	}
	return nil
}

// startFake runs a fake until the end of the test.
func startFake(t *testing.T) *fake {
	t.Helper()
	f := newFake(t.TempDir())
	check.NoError(t, f.start())
	t.Cleanup(f.close)
	return f
}

// ago returns a time whose printed age does not change during a test.
func ago(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Add(-d - time.Second))
}

// refuse returns the error that an id stands for.
func refuse(id string) error {
	switch {
	case len(id) > 4 && id[:4] == "held":
		return connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("volume %q has no write claim left: held by workload \"db-1\" on node \"a\" (write, taken, 4m)", id))
	case len(id) > 4 && id[:4] == "lost":
		return connect.NewError(connect.CodeFailedPrecondition,
			fmt.Errorf("volume %q has no write claim left: held by workload \"db-1\" on node \"n3\" (write, taken, 4m)", id))
	case len(id) > 4 && id[:4] == "away":
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("driver of volume %q does not answer", id))
	}
	return nil
}

func (f *fake) volume(id string) (*hostv1.Volume, error) {
	if err := refuse(id); err != nil {
		return nil, err
	}
	v := f.volumes[id]
	if v == nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("volume %q is not registered", id))
	}
	return proto.Clone(v).(*hostv1.Volume), nil
}

func (f *fake) CreateVolume(r *hostv1.CreateVolumeRequest) (*hostv1.CreateVolumeResponse, error) {
	spec := r.GetSpec()
	if err := refuse(spec.GetId()); err != nil {
		return nil, err
	}
	spec.Name, spec.ExternalId = cmp.Or(spec.GetName(), spec.GetId()), "ext-"+spec.GetId()
	v := &hostv1.Volume{
		Spec: spec, Capacity: spec.GetCapacityMin(), Provider: "fake", ProviderVersion: "1.0", DriverHealthy: true,
		CreatedAt: ago(4 * time.Minute),
		Claims: []*hostv1.Claim{{
			Volume: spec.GetId(), Workload: "redis", Node: "n1", Mode: "write", State: "taken", Index: 7,
			TakenAt: ago(3 * time.Hour),
		}},
	}
	if spec.GetId() == "free" {
		v.Claims = nil
	}
	f.volumes[spec.GetId()] = v
	return &hostv1.CreateVolumeResponse{
		Volume:   v,
		Warnings: []string{"the driver did not confirm\x1b[2J"},
	}, nil
}

func (f *fake) CheckVolume(r *hostv1.CheckVolumeRequest) (*hostv1.CheckVolumeResponse, error) {
	id := r.GetSpec().GetId()
	if err := refuse(id); err != nil {
		return nil, err
	}
	if f.volumes[id] != nil {
		return &hostv1.CheckVolumeResponse{Exists: true}, nil
	}
	return &hostv1.CheckVolumeResponse{
		DriverName: "default-" + id + "-1", Warnings: []string{"context is not used"},
	}, nil
}

func (f *fake) RegisterVolume(r *hostv1.RegisterVolumeRequest) (*hostv1.RegisterVolumeResponse, error) {
	return &hostv1.RegisterVolumeResponse{Volume: &hostv1.Volume{Spec: r.GetSpec()}}, nil
}

func (f *fake) GetVolume(r *hostv1.GetVolumeRequest) (*hostv1.GetVolumeResponse, error) {
	v, err := f.volume(r.GetId())
	if err != nil {
		return nil, err
	}
	return &hostv1.GetVolumeResponse{
		Volume: v,
		Usage:  &hostv1.VolumeUsage{BytesTotal: 64 << 20, BytesUsed: 1 << 20},
		Conditions: []*hostv1.VolumeCondition{
			{}, {Node: "n1", Abnormal: true, Message: "read-only\x1b[2J"},
		},
	}, nil
}

func (f *fake) ListVolumes(r *hostv1.ListVolumesRequest) (*hostv1.ListVolumesResponse, error) {
	resp := &hostv1.ListVolumesResponse{}
	for _, id := range slices.Sorted(maps.Keys(f.volumes)) {
		if strings.Contains(id, r.GetSearch()) {
			resp.Volumes = append(resp.Volumes, f.volumes[id])
		}
	}
	resp.Total = int64(len(resp.Volumes))
	if size := int(r.GetPerPage()); size > 0 {
		pages := slices.Collect(slices.Chunk(resp.Volumes, size))
		resp.Volumes = pages[max(r.GetPage(), 1)-1]
	}
	return resp, nil
}

// ListExternal returns three volumes, one per page. It forgets the token c once.
func (f *fake) ListExternal(r *hostv1.ListExternalRequest) (*hostv1.ListExternalResponse, error) {
	if r.GetPageToken() == "c" && !f.forgot {
		f.forgot = true
		return nil, connect.NewError(connect.CodeAborted, errors.New("the token is not valid"))
	}
	next := map[string]string{"": "b", "b": "c", "c": ""}[r.GetPageToken()]
	return &hostv1.ListExternalResponse{
		Volumes: []*hostv1.ExternalVolume{{
			ExternalId: "page-" + r.GetPageToken(), Capacity: 1 << 30,
			Abnormal: next == "", Condition: "fine",
		}}, NextToken: next,
	}, nil
}

func (f *fake) DeleteVolume(r *hostv1.DeleteVolumeRequest) (*hostv1.DeleteVolumeResponse, error) {
	if _, err := f.volume(r.GetId()); err != nil {
		return nil, err
	}
	if r.GetId() == "locked" && r.GetSecrets()["key"] != "geheim" {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("the driver wants a secret"))
	}
	return &hostv1.DeleteVolumeResponse{}, nil
}

func (f *fake) DeregisterVolume(r *hostv1.DeregisterVolumeRequest) (*hostv1.DeregisterVolumeResponse, error) {
	v, err := f.volume(r.GetId())
	if err != nil {
		return nil, err
	}
	if len(v.GetClaims()) > 0 && !r.GetForce() {
		return nil, refuse("held-" + r.GetId())
	}
	return &hostv1.DeregisterVolumeResponse{LeftBehind: v.GetClaims()}, nil
}

func (f *fake) ExpandVolume(r *hostv1.ExpandVolumeRequest) (*hostv1.ExpandVolumeResponse, error) {
	v, err := f.volume(r.GetId())
	if err != nil {
		return nil, err
	}
	v.Capacity = max(r.GetCapacityMin(), r.GetCapacityMax())
	return &hostv1.ExpandVolumeResponse{Volume: v}, nil
}

func (f *fake) ModifyVolume(r *hostv1.ModifyVolumeRequest) (*hostv1.ModifyVolumeResponse, error) {
	v, err := f.volume(r.GetId())
	if err != nil {
		return nil, err
	}
	if r.GetParameters()["colour"] != "" {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("no such parameter"))
	}
	v.MutableParameters = r.GetParameters()
	return &hostv1.ModifyVolumeResponse{Volume: v}, nil
}

func (f *fake) DetachVolume(r *hostv1.DetachVolumeRequest) (*hostv1.DetachVolumeResponse, error) {
	v, err := f.volume(r.GetId())
	if err != nil {
		return nil, err
	}
	resp := &hostv1.DetachVolumeResponse{}
	for _, c := range v.GetClaims() {
		if c.GetNode() == r.GetNode() {
			resp.Claims = append(resp.Claims,
				&hostv1.DetachedClaim{Claim: c, Released: r.GetForce(), Message: "the node does not answer"})
		}
	}
	return resp, nil
}

// again reports whether a name was asked for before: its snapshot is ready then.
func (f *fake) again(name string) bool {
	f.taken = append(f.taken, name)
	return slices.Contains(f.taken[:len(f.taken)-1], name)
}

func (f *fake) CreateSnapshot(r *hostv1.CreateSnapshotRequest) (*hostv1.CreateSnapshotResponse, error) {
	if _, err := f.volume(r.GetVolumeId()); err != nil {
		return nil, err
	}
	return &hostv1.CreateSnapshotResponse{Snapshot: &hostv1.Snapshot{
		SnapshotId: "snap-" + r.GetName(), Name: r.GetName(), Ready: f.again(r.GetName()),
	}}, nil
}

func (f *fake) CreateGroupSnapshot(r *hostv1.CreateGroupSnapshotRequest) (*hostv1.CreateGroupSnapshotResponse, error) {
	g := &hostv1.GroupSnapshot{GroupId: "group-" + r.GetName(), Ready: f.again(r.GetName())}
	for _, id := range r.GetVolumeIds() {
		if _, err := f.volume(id); err != nil {
			return nil, err
		}
		g.Snapshots = append(g.Snapshots, &hostv1.Snapshot{SnapshotId: "snap-" + id, Volume: id, GroupId: g.GetGroupId()})
	}
	return &hostv1.CreateGroupSnapshotResponse{Group: g}, nil
}

func (f *fake) GetGroupSnapshot(r *hostv1.GetGroupSnapshotRequest) (*hostv1.GetGroupSnapshotResponse, error) {
	if r.GetGroupId() != "group-1" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such group"))
	}
	return &hostv1.GetGroupSnapshotResponse{Group: &hostv1.GroupSnapshot{
		GroupId: "group-1", Ready: true, Snapshots: []*hostv1.Snapshot{{SnapshotId: "snap-1", Volume: "data"}},
	}}, nil
}

func (f *fake) DeleteGroupSnapshot(*hostv1.DeleteGroupSnapshotRequest) (*hostv1.DeleteGroupSnapshotResponse, error) {
	return &hostv1.DeleteGroupSnapshotResponse{}, nil
}

func (f *fake) DeleteSnapshot(*hostv1.DeleteSnapshotRequest) (*hostv1.DeleteSnapshotResponse, error) {
	return &hostv1.DeleteSnapshotResponse{}, nil
}

// ListSnapshots always returns the same page token, as a broken driver may do.
func (f *fake) ListSnapshots(*hostv1.ListSnapshotsRequest) (*hostv1.ListSnapshotsResponse, error) {
	return &hostv1.ListSnapshotsResponse{
		Snapshots: []*hostv1.Snapshot{{
			SnapshotId: "snap-1", Name: "one", Volume: "data", ExternalVolumeId: "ext-data", Size: 1 << 30,
			Ready: true, CreatedAt: ago(49 * time.Hour),
		}}, NextToken: "x",
	}, nil
}

func driver(id string) *hostv1.Driver {
	message := ""
	if id == "silent" {
		message = "the driver cannot be reached at unix:///run/silent.sock: connect: no such file or directory"
	}
	return &hostv1.Driver{
		Id: id, Type: "monolith", Endpoint: "unix:///run/" + id +
			".sock", Source: "config", Healthy: id != "sick" && message == "", Message: message,
		Provider: "csi." + id, ProviderVersion: "1.2", NodeId: "n1", ChangedAt: ago(
			30 * time.Minute), Topology: map[string]string{"rack": "R1", "a": "b"},
		NodeCapabilities: []string{"STAGE_UNSTAGE_VOLUME"}, Pid: 42, Restarts: 1,
	}
}

func (f *fake) RegisterDriver(r *hostv1.RegisterDriverRequest) (*hostv1.RegisterDriverResponse, error) {
	return &hostv1.RegisterDriverResponse{Driver: driver(r.GetId())}, nil
}

func (f *fake) DeregisterDriver(r *hostv1.DeregisterDriverRequest) (*hostv1.DeregisterDriverResponse, error) {
	if err := refuse(r.GetId()); err != nil && !r.GetForce() {
		return nil, err
	}
	return &hostv1.DeregisterDriverResponse{}, nil
}

func (f *fake) ListDrivers(*hostv1.ListDriversRequest) (*hostv1.ListDriversResponse, error) {
	return &hostv1.ListDriversResponse{Drivers: []*hostv1.Driver{
		driver("local"),
		driver("sick"),
	}}, nil
}

func (f *fake) GetDriver(r *hostv1.GetDriverRequest) (*hostv1.GetDriverResponse, error) {
	if r.GetId() != "local" {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no driver %q (see: pannier driver status)", r.GetId()))
	}
	return &hostv1.GetDriverResponse{Driver: driver("local")}, nil
}

func (f *fake) Examine(r *hostv1.ExamineRequest) (*hostv1.ExamineResponse, error) {
	return &hostv1.ExamineResponse{Node: r.GetNode(), Findings: []*hostv1.Finding{
		{Check: "clock", Status: "ok", Why: "the clock of " + r.GetNode()},
		{Check: "fuse", Status: "fail", Why: "no fuse", Command: "modprobe fuse"},
	}}, nil
}

func (f *fake) Status(*hostv1.StatusRequest) (*hostv1.StatusResponse, error) {
	f.statuses.Add(1)
	if f.leaderless {
		return &hostv1.StatusResponse{Name: "n1", Message: "the ledger has no leader (see: pannier server members)"}, nil
	}
	return &hostv1.StatusResponse{
		Name: "n1", Version: "1.2.3", Datacenter: "dc1", Pid: 40, StartedAt: ago(
			2 * time.Hour), Socket: f.socket, HttpAddress: "127.0.0.1:7420",
		Leader: true, Ready: true, Plugins: []*hostv1.Plugin{plugin()}, Drivers: []*hostv1.Driver{driver(
			"local")}, Devices: deviceGroups(), Volumes: 1, Claims: 2, Releasing: 1,
		Workloads: map[string]int64{"running": 2, "failed": 1}, Leftovers: []string{"/data/x"}, RaftIndex: 99,
	}, nil
}

func (f *fake) Events(ctx context.Context, r *hostv1.EventsRequest,
	s *connect.ServerStream[hostv1.EventsResponse],
) error {
	if err := otherNode(r.GetNode(), s.ResponseHeader()); err != nil {
		return err
	}
	for seq := range uint64(min(r.GetRecent(), 2)) {
		e := &hostv1.Event{
			Seq: seq, Time: timestamppb.New(time.Unix(1e9, 0)), Topic: "driver", Type: "healthy",
			Subject: "local", Message: "line\nbreak", Details: map[string]string{"k": "v"},
		}
		if err := s.Send(&hostv1.EventsResponse{Event: e}); err != nil {
			return err
		}
	}
	if r.GetFollow() {
		<-ctx.Done()
	}
	return nil
}

// broken returns whether this stream must break off, and counts it.
func (f *fake) broken() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.breaks == 0 {
		return false
	}
	f.breaks--
	return true
}

func step(name, volume, state string, undo bool) *hostv1.Step {
	return &hostv1.Step{
		Name: name, Volume: volume, State: state, Undo: undo,
		Took: durationpb.New(1200 * time.Microsecond), Attempt: 1,
	}
}

// CheckWorkload finds a problem with each volume of which the fake knows one.
func (f *fake) CheckWorkload(r *hostv1.CheckWorkloadRequest) (*hostv1.CheckWorkloadResponse, error) {
	resp := &hostv1.CheckWorkloadResponse{Node: "n1"}
	for _, v := range r.GetSpec().GetVolumes() {
		if _, err := f.volume(v.GetSource()); err != nil {
			resp.Problems = append(resp.Problems, fmt.Sprintf("no volume %q", v.GetSource()))
			continue
		}
		resp.Volumes = append(resp.Volumes, &hostv1.CheckedVolume{
			Request: v.GetName(), Volume: v.GetSource(), Driver: "local", Mode: "write",
			AccessMode: "single-node-writer", AttachmentMode: "file-system",
		})
	}
	return resp, nil
}

// Monitor sends a line, and one after which lines were lost.
func (f *fake) Monitor(ctx context.Context, r *hostv1.MonitorRequest,
	s *connect.ServerStream[hostv1.MonitorResponse],
) error {
	for _, m := range []*hostv1.MonitorResponse{
		{},
		{Line: "at level " + r.GetLogLevel()},
		{Line: "token=eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJqb2huIn0.c2lnbmF0dXJl"},
		{Line: "after a gap", Lost: 3},
	} {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return nil
}

func (f *fake) StartWorkload(_ context.Context, r *hostv1.StartWorkloadRequest,
	s *connect.ServerStream[hostv1.StartWorkloadResponse],
) error {
	spec := r.GetSpec()
	send := func(m *hostv1.Step) {
		_ = s.Send(&hostv1.StartWorkloadResponse{Event: &hostv1.StartWorkloadResponse_Step{Step: m}})
	}
	send(step("claim", "", "running", false))
	for _, v := range spec.GetVolumes() {
		if err := refuse(v.GetSource()); err != nil {
			failed := step("claim", "", "failed", false)
			failed.Error = connect.CodeOf(err).String()
			send(failed)
			return err
		}
	}
	send(step("claim", "", "done", false))
	if f.broken() {
		panic(http.ErrAbortHandler)
	}
	w := &hostv1.Workload{Spec: spec, Node: "n1", State: "running", StartedAt: ago(time.Minute)}
	if r.GetReleaseWithCaller() {
		w.OwnerPid = 1
	}
	for _, v := range spec.GetVolumes() {
		path := filepath.Join(f.dir, v.GetSource())
		if err := os.MkdirAll(path, 0o777); err != nil {
			return err
		}
		send(step("publish", v.GetName(), "done", false))
		w.Mounts = append(w.Mounts, &hostv1.Mount{
			Volume: v.GetSource(), Request: v.GetName(), HostPath: path,
			Destination: v.GetDestination(), ReadOnly: v.GetReadOnly(), Propagation: "rprivate",
		})
	}
	if len(spec.GetDevices()) > 0 {
		f.reserve(w)
	}
	w.Steps = []*hostv1.Step{step("claim", "", "done", false)}
	for _, p := range spec.GetPorts() {
		if w.Ports == nil {
			w.Ports = map[string]int32{}
		}
		w.Ports[p.GetLabel()] = cmp.Or(p.GetStatic(), 20000)
	}
	for _, s := range spec.GetServices() {
		registered := step("register", "", "done", false)
		registered.Service = s.GetName()
		send(registered)
		status := &hostv1.ServiceStatus{
			Name: s.GetName(), Id: "pannier:n1:default:w:" + s.GetName(), Consul: "default",
			Port: w.GetPorts()[s.GetPort()],
		}
		if s.GetConnect() != nil {
			w.SecretsDir = filepath.Join(f.dir, "secrets")
			status.ProxyId, status.TokenAccessor = status.GetId()+"-sidecar-proxy", "acc-1"
			status.TokenFile = filepath.Join(w.GetSecretsDir(), s.GetName(), "si_token")
			status.BootstrapFile = filepath.Join(w.GetSecretsDir(), s.GetName(), "envoy_bootstrap.json")
			status.AdminPort, status.ReadyPort = 20001, 20002
			status.TokenExpiresAt = timestamppb.New(time.Now().Add(30*time.Minute + 30*time.Second))
			status.Message = "the sync fails"
		}
		w.Services = append(w.Services, status)
	}
	f.mu.Lock()
	f.workloads[spec.GetId()] = w
	f.mu.Unlock()
	return s.Send(&hostv1.StartWorkloadResponse{Event: &hostv1.StartWorkloadResponse_Workload{Workload: w}})
}

func (f *fake) RunningWorkload(r *hostv1.RunningWorkloadRequest) (*hostv1.RunningWorkloadResponse, error) {
	f.running[r.GetId()] = r.GetPid()
	if r.GetId() == "unknown" {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("no such workload"))
	}
	return &hostv1.RunningWorkloadResponse{}, nil
}

// LeaveWorkload answers when the test lets it, if that wants to.
func (f *fake) LeaveWorkload(*hostv1.LeaveWorkloadRequest) (*hostv1.LeaveWorkloadResponse, error) {
	if f.leaving != nil {
		f.leaving <- struct{}{}
		<-f.leaving
	}
	return &hostv1.LeaveWorkloadResponse{}, nil
}

func (f *fake) StopWorkload(_ context.Context, r *hostv1.StopWorkloadRequest,
	s *connect.ServerStream[hostv1.StopWorkloadResponse],
) error {
	f.mu.Lock()
	w := f.workloads[r.GetId()]
	f.mu.Unlock()
	if w == nil {
		return connect.NewError(connect.CodeNotFound, fmt.Errorf("no workload %q", r.GetId()))
	}
	for _, name := range []string{"publish", "claim"} {
		_ = s.Send(&hostv1.StopWorkloadResponse{Event: &hostv1.StopWorkloadResponse_Step{Step: step(name, "", "done", true)}})
	}
	if f.broken() {
		if strings.HasPrefix(r.GetId(), "forgotten") {
			f.mu.Lock()
			delete(f.workloads, r.GetId())
			f.mu.Unlock()
		}
		panic(http.ErrAbortHandler)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stops++
	w = proto.Clone(w).(*hostv1.Workload)
	w.State = "stopped"
	f.workloads[r.GetId()] = w
	return s.Send(&hostv1.StopWorkloadResponse{Event: &hostv1.StopWorkloadResponse_Workload{Workload: w}})
}

func (f *fake) GetWorkload(r *hostv1.GetWorkloadRequest) (*hostv1.GetWorkloadResponse, error) {
	w := f.workloads[r.GetId()]
	if w == nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("no workload %q", r.GetId()))
	}
	resp := &hostv1.GetWorkloadResponse{Workload: w, Holders: f.holders}
	for _, s := range w.GetServices() {
		if s.GetTokenAccessor() == "" || !r.GetTokens() {
			continue
		}
		token := &hostv1.InspectedToken{
			Token: &hostv1.Token{Service: s.GetName(), Consul: s.GetConsul(), Accessor: s.GetTokenAccessor()}, State: "valid",
		}
		if f.consulAway {
			token.State, token.Error = "unknown", "Consul does not answer"
		}
		resp.Tokens = append(resp.Tokens, token)
	}
	return resp, nil
}

func (f *fake) ListWorkloads(*hostv1.ListWorkloadsRequest) (*hostv1.ListWorkloadsResponse, error) {
	resp := &hostv1.ListWorkloadsResponse{}
	for _, w := range f.workloads {
		resp.Workloads = append(resp.Workloads, w)
	}
	return resp, nil
}

func (f *fake) ListTokens(r *hostv1.ListTokensRequest) (*hostv1.ListTokensResponse, error) {
	resp := &hostv1.ListTokensResponse{}
	for _, t := range f.tokens {
		all := r.GetNamespace() == "*" || r.GetNamespace() == t.GetNamespace()
		if all && (r.GetWorkload() == "" || r.GetWorkload() == t.GetWorkload()) {
			resp.Tokens = append(resp.Tokens, t)
		}
	}
	return resp, nil
}

func (f *fake) SweepTokens(r *hostv1.SweepTokensRequest) (*hostv1.SweepTokensResponse, error) {
	resp := &hostv1.SweepTokensResponse{}
	var left []*hostv1.Token
	for _, t := range f.tokens {
		if t.GetOrphan() {
			swept := &hostv1.SweptToken{Token: t, Reason: "its workload has ended", Revoked: !r.GetDryRun() && !f.consulAway}
			if f.consulAway && !r.GetDryRun() {
				swept.Error = "Consul does not answer"
			}
			resp.Tokens = append(resp.Tokens, swept)
		}
		if !t.GetOrphan() || f.consulAway || r.GetDryRun() {
			left = append(left, t)
		}
	}
	f.tokens = left
	if f.consulAway {
		resp.Problems = []string{"list the tokens of Consul \"east\": connection refused"}
	}
	return resp, nil
}
