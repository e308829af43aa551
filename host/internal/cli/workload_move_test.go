package cli

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// A workload is stopped only if nothing is known that would keep it from the other node, and an error says where it is
// now.
func TestMoveAWorkload(t *testing.T) {
	spec := func(volumes ...string) *hostv1.WorkloadSpec {
		s := &hostv1.WorkloadSpec{Id: "w", Namespace: "default"}
		for _, v := range volumes {
			s.Volumes = append(s.Volumes, &hostv1.VolumeRequest{Name: "data", Source: v})
		}
		return s
	}
	const there = `pannier workload start SPEC`
	for name, c := range map[string]struct {
		w       *hostv1.Workload
		holders []*hostv1.Holder
		to      string   // empty: n1
		refuse  []string // the nodes that do not start it
		stops   string   // why the node does not stop it
		code    int
		calls   string
		says    []string
	}{
		"moved": {calls: "stop n2, start n1", says: []string{
			`workload "w" is stopped on node "n2"`, "release ... done", `workload "w" is started on node "n1"`, "claim ... done",
			`workload "w" is moved from node "n2" to node "n1"`,
		}},
		"undone": {refuse: []string{"n1"}, code: ExitRefused, calls: "stop n2, start n1, start n2", says: []string{
			`workload "w" is started on node "n2"`, `error: workload "w" runs on node "n2" again: it does not start on node "n1": refused by n1`,
		}},
		"stopped": {refuse: []string{"n1", "n2"}, code: ExitError, calls: "stop n2, start n1, start n2", says: []string{
			`error: workload "w" is stopped: it does not start on node "n1": refused by n1; nor again on node "n2": refused by n2; `,
			there,
		}},
		"not stopped": {stops: "the journal is full", code: ExitRefused, calls: "stop n2", says: []string{
			`stop workload "w" on node "n2": the journal is full; the node may continue, and nothing starts it on node "n1"`,
			"pannier workload status w -node n2", there,
		}},
		"it is there":  {to: "n2", code: ExitRefused, says: []string{`is on node "n2" and does not have to be moved`}},
		"no such node": {to: "n9", code: ExitNotFound, says: []string{`ask node "n9"`}},
		"it is nowhere": {
			w: &hostv1.Workload{Spec: spec(), Node: "n2", State: "stopped"}, code: ExitNotFound, says: []string{`workload "w" is on no node`},
		},
		"it is not up yet": {
			w: &hostv1.Workload{Spec: spec(), Node: "n2", State: "starting"}, code: ExitRefused,
			says: []string{"is starting; only one that runs is moved", "pannier workload status w -node n2 says more"},
		},
		"the other node refuses": {
			w:    &hostv1.Workload{Spec: spec("unknown"), Node: "n2", State: "running"},
			code: ExitRefused, says: []string{`problem: no volume "unknown"`, `would not start on node "n1" now; it runs on, on node "n2"`},
		},
		"another workload has its volume": {
			w:    &hostv1.Workload{Spec: spec("data"), Node: "n2", State: "running"},
			code: ExitRefused, says: []string{`problem: volume "data"`, `held by workload "redis" on node "n2"`},
		},
		"a unit uses it": {
			holders: []*hostv1.Holder{{Pid: 9, Owner: "unit web.service", Stop: "systemctl stop web.service"}},
			code:    ExitRefused, says: []string{"unit web.service", `on "n2": systemctl stop web.service; then on "n1": systemctl start web.service`},
		},
		"a container uses it": {
			holders: []*hostv1.Holder{{Pid: 9, Owner: `container "web"`, Stop: "docker stop web"}},
			code:    ExitRefused, says: []string{`container "web"`, `on "n2": docker stop web; then on "n1"`},
		},
		"a process uses it": {
			holders: []*hostv1.Holder{{Pid: 9, Command: "redis", Stop: "kill 9"}},
			code:    ExitRefused, says: []string{"process 9 (redis)", `on "n2": kill 9; then on "n1": `, "pannier workload run"},
		},
		"it is run": {
			w:    &hostv1.Workload{Spec: spec(), Node: "n2", State: "running", OwnerPid: 8},
			code: ExitRefused, says: []string{"process 8", `on "n2": kill 8; then on "n1": `, "pannier workload run"},
		},
		"it is for a unit": {
			w: &hostv1.Workload{
				Spec: &hostv1.WorkloadSpec{Id: "w", Units: []string{"web.service"}}, Node: "n2", State: "running",
			},
			code: ExitRefused, says: []string{`on "n2": systemctl stop web.service; then on "n1": systemctl start web.service`},
		},
		"its spec has a secret": {
			w: &hostv1.Workload{Spec: &hostv1.WorkloadSpec{Id: "w", Volumes: []*hostv1.VolumeRequest{{
				Name: "data", MountOptions: &hostv1.MountOptions{MountFlags: []string{"ro", "password=[REDACTED]"}},
			}}}, Node: "n2", State: "running"},
			code: ExitRefused, says: []string{`volume "data"`, `on "n2": pannier workload stop w; then on "n1": ` + there},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t.TempDir())
			f.holders, f.workloads["w"] = c.holders, c.w
			if c.w == nil {
				f.workloads["w"] = &hostv1.Workload{Spec: spec("own"), Node: "n2", State: "running"}
			}
			f.volumes["data"] = &hostv1.Volume{
				Spec: &hostv1.VolumeSpec{Id: "data", Namespace: "default", PluginId: "local", Capabilities: []*hostv1.VolumeCapability{{
					AccessMode: "single-node-writer", AttachmentMode: "file-system",
				}}},
				Claims: []*hostv1.Claim{
					{Namespace: "default", Workload: "w", Node: "n2", Mode: "write", State: "taken"},
					{Namespace: "default", Workload: "redis", Node: "n2", Mode: "write", State: "taken"},
				},
			}
			f.volumes["own"] = proto.Clone(f.volumes["data"]).(*hostv1.Volume)
			f.volumes["own"].Claims = f.volumes["own"].GetClaims()[:1]
			var calls []string
			f.startWorkload = func(ctx context.Context, r *hostv1.StartWorkloadRequest,
				s *connect.ServerStream[hostv1.StartWorkloadResponse],
			) error {
				calls = append(calls, "start "+r.GetNode())
				s.ResponseHeader().Set(api.NodeHeader, r.GetNode())
				if slices.Contains(c.refuse, r.GetNode()) {
					return connect.NewError(connect.CodeFailedPrecondition, errors.New("refused by "+r.GetNode()))
				}
				return f.StartWorkload(ctx, r, s)
			}
			f.stopWorkload = func(ctx context.Context, r *hostv1.StopWorkloadRequest,
				s *connect.ServerStream[hostv1.StopWorkloadResponse],
			) error {
				calls = append(calls, "stop "+r.GetNode())
				s.ResponseHeader().Set(api.NodeHeader, r.GetNode())
				if c.stops != "" {
					return connect.NewError(connect.CodeFailedPrecondition, errors.New(c.stops))
				}
				return f.StopWorkload(ctx, r, s)
			}
			check.NoError(t, f.start())
			t.Cleanup(f.close)
			to := c.to
			if to == "" {
				to = "n1"
			}
			out := check.Must(os.CreateTemp(t.TempDir(), "out"))(t)
			defer out.Close()
			code := Main(Options{
				Args:   []string{"-address", "unix://" + f.socket, "workload", "move", "w", "-to", to},
				Stdout: out, Stderr: out,
			})
			said := string(check.Must(os.ReadFile(out.Name()))(t))
			if got := strings.Join(calls, ", "); code != c.code || got != c.calls {
				t.Errorf("exit code %d and the calls %q, not %d and %q", code, got, c.code, c.calls)
			}
			for _, text := range c.says {
				if !strings.Contains(said, text) {
					t.Errorf("%q is not in\n%s", text, said)
				}
			}
		})
	}
}
