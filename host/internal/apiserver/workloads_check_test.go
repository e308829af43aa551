package apiserver

import (
	"net/netip"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/state"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A check names every problem that a start would have on this node, and leaves nothing behind.
func TestCheckWorkload(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("data"))
	spec := func(change ...func(s *hostv1.WorkloadSpec)) *hostv1.WorkloadSpec {
		s := &hostv1.WorkloadSpec{
			Id: "w", Volumes: []*hostv1.VolumeRequest{{Name: "d", Source: "data", Destination: "/d"}},
			Ports: []*hostv1.Port{{Label: "http"}},
		}
		for _, c := range change {
			c(s)
		}
		return s
	}
	find := func(s *hostv1.WorkloadSpec) *hostv1.CheckWorkloadResponse {
		t.Helper()
		resp := check.Must(h.client.Workloads.CheckWorkload(h.ctx, &hostv1.CheckWorkloadRequest{Spec: s}))(t)
		return resp
	}
	for range 2 { // the first one leaves nothing
		got := find(spec())
		if len(got.GetProblems()) > 0 || got.GetState() != "" || got.GetNode() != "n1" || len(got.GetVolumes()) != 1 {
			t.Fatalf("found %v", got)
		}
		if v := got.GetVolumes()[0]; v.GetVolume() != "data" || v.GetDriver() != "fake" || v.GetMode() != "write" ||
			v.GetAccessMode() == "" {
			t.Errorf("found %v", v)
		}
	}
	port := int32(netip.MustParseAddrPort(testhost.FreeAddress(t, "127.0.0.1")).Port())
	for _, id := range []string{"w", "other"} { // the first one leaves it free
		got := find(spec(func(s *hostv1.WorkloadSpec) { s.Id, s.Ports[0].Static = id, port }))
		if len(got.GetProblems()) > 0 {
			t.Errorf("%s with port %d: %q", id, port, got.GetProblems())
		}
	}
	for says, change := range map[string]func(*hostv1.WorkloadSpec){
		`"nope"`: func(s *hostv1.WorkloadSpec) { s.Volumes[0].Source = "nope" },
		"no capability with access_mode": func(s *hostv1.WorkloadSpec) {
			s.Volumes[0].AccessMode = "multi-node-multi-writer"
		},
		"nosuch": func(s *hostv1.WorkloadSpec) { s.Volumes[0].Source, s.Volumes[0].Driver = "", "nosuch" },
	} {
		s := spec(change)
		s.Volumes = append(s.Volumes, &hostv1.VolumeRequest{Name: "too", Source: "none", Destination: "/too"})
		got := find(s)
		if len(got.GetProblems()) != 2 || !strings.Contains(got.GetProblems()[0], says) ||
			!strings.Contains(got.GetProblems()[1], `"none"`) {
			t.Errorf("%s: %q", says, got.GetProblems())
		}
	}
	_, err := h.client.Workloads.CheckWorkload(h.ctx, &hostv1.CheckWorkloadRequest{
		Spec: spec(func(s *hostv1.WorkloadSpec) { s.Id = "../w" }),
	})
	wantError(t, err, connect.CodeInvalidArgument, "id")
	check.NoError(t, h.ledger.Read(h.ctx, func(tx *state.ReadTx) error {
		claims, err := tx.AllClaims()
		workloads, _, workloadsErr := tx.Workloads("", state.Page{})
		if len(claims)+len(workloads) > 0 || workloadsErr != nil {
			t.Errorf("left in the ledger: %v, %v, %v", claims, workloads, workloadsErr)
		}
		return err
	}))
	list, err := h.client.Workloads.ListWorkloads(h.ctx, &hostv1.ListWorkloadsRequest{})
	if check.NoError(t, err); len(list.GetWorkloads()) > 0 {
		t.Errorf("left on the node: %v", list)
	}

	h.start(t, "w", "data")
	if got := find(spec()); got.GetState() != "running" || len(got.GetProblems()) != 1 ||
		!strings.Contains(got.GetProblems()[0], "ports") { // it runs without a port
		t.Errorf("of a running workload with another spec: %v", got)
	}
}
