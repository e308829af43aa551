package apiserver

import (
	"maps"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// What the driver has changed is recorded, and stays when the volume is defined again.
func TestModifyVolume(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("mysql"))
	modify := func(parameters map[string]string) (*hostv1.Volume, error) {
		resp, err := h.client.Volumes.ModifyVolume(h.ctx, &hostv1.ModifyVolumeRequest{
			Id: "mysql", Parameters: parameters, Secrets: map[string]string{"key": "s"},
		})
		if err != nil {
			return nil, err
		}
		return resp.GetVolume(), nil
	}
	if _, err := modify(map[string]string{"iops": "100", "tier": "a"}); err != nil {
		t.Fatal(err)
	}
	if h.fake.modified["iops"] != "100" || h.fake.secrets["key"] != "s" {
		t.Errorf("the driver got %v, %v", h.fake.modified, h.fake.secrets)
	}
	v := check.Must(modify(map[string]string{"iops": "200"}))(t)
	want := map[string]string{"iops": "200", "tier": "a"}
	if !maps.Equal(v.GetMutableParameters(), want) || len(h.fake.modified) != 1 {
		t.Errorf("recorded %v, the driver got %v", v.GetMutableParameters(), h.fake.modified)
	}
	_, err := modify(nil)
	wantError(t, err, connect.CodeInvalidArgument, "parameters", "mysql")
	h.fake.setFailure("modify", driverSays(codes.InvalidArgument, "no such parameter"))
	_, err = modify(map[string]string{"colour": "red"})
	wantError(t, err, connect.CodeInvalidArgument, "no such parameter", "mysql")
	again := spec("mysql", func(s *hostv1.VolumeSpec) { s.ExternalId, s.Name = v.GetSpec().GetExternalId(), "renamed" })
	resp, err := h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: again})
	if check.NoError(t, err); !maps.Equal(resp.GetVolume().GetMutableParameters(), want) {
		t.Errorf("defined again, it has %v", resp.GetVolume().GetMutableParameters())
	}
	_, err = h.client.Volumes.ModifyVolume(h.ctx,
		&hostv1.ModifyVolumeRequest{Id: "none", Parameters: map[string]string{"k": "v"}})
	wantError(t, err, connect.CodeNotFound, "none")
}

// What tenants write for a driver never says for which workload a call is: no call with it reaches the driver.
func TestReservedKeysReachNoDriver(t *testing.T) {
	h := openHost(t)
	made := h.create(t, spec("mysql")).GetSpec().GetExternalId()
	written := map[string]string{"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.namespace": "other"}
	other := spec("other", func(s *hostv1.VolumeSpec) { s.Parameters = written })
	existing := spec("other", func(s *hostv1.VolumeSpec) { s.Context, s.ExternalId = written, "other" })
	for door, ask := range map[string]func() error{
		"create": func() error {
			_, err := h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: other})
			return err
		},
		"register": func() error {
			_, err := h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{Spec: existing})
			return err
		},
		"modify": func() error {
			_, err := h.client.Volumes.ModifyVolume(h.ctx, &hostv1.ModifyVolumeRequest{Id: "mysql", Parameters: written})
			return err
		},
		"snapshot": func() error {
			_, err := h.client.Volumes.CreateSnapshot(h.ctx,
				&hostv1.CreateSnapshotRequest{VolumeId: "mysql", Name: "s", Parameters: written})
			return err
		},
		"group snapshot": func() error {
			_, err := h.client.Volumes.CreateGroupSnapshot(h.ctx,
				&hostv1.CreateGroupSnapshotRequest{VolumeIds: []string{"mysql"}, Name: "s", Parameters: written})
			return err
		},
	} {
		t.Run(door, func(t *testing.T) {
			wantError(t, ask(), connect.CodeInvalidArgument, `"csi.storage.k8s.io/ephemeral" is set by the agent`)
		})
	}
	if len(h.fake.modified)+len(h.fake.snapshots) != 0 || len(h.fake.volumes) != 1 || h.fake.volumes[made].Name == "" {
		t.Errorf("the driver got %v, %v and %v", h.fake.modified, h.fake.snapshots, h.fake.volumes)
	}
}

// The condition is that of the controller and of each node that has mounted the volume.
func TestConditions(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("mysql"))
	conditions := func() []*hostv1.VolumeCondition {
		t.Helper()
		got := check.Must(h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "mysql"}))(t)
		explained := check.Must(h.client.Volumes.ExplainVolume(h.ctx, &hostv1.ExplainVolumeRequest{Id: "mysql"}))(t)
		if a, b := got.GetConditions(), explained.GetConditions(); len(a) != len(b) {
			t.Errorf("the status has %v, the explanation %v", a, b)
		}
		return got.GetConditions()
	}
	h.fake.setFailure("get", driverSays(codes.Unimplemented, "no"))
	if got := conditions(); len(got) != 0 {
		t.Errorf("a driver that says nothing: %v", got)
	}
	h.fake.setFailure("get", driverSays(codes.NotFound, "no such volume"))
	if got := conditions(); len(got) != 1 || !got[0].GetAbnormal() || got[0].GetNode() != "" {
		t.Errorf("a volume that the driver does not have: %v", got)
	}
	h.fake.setFailure("get", nil)
	h.fake.mu.Lock()
	h.fake.condition = &storage.Condition{Abnormal: true, Message: "worn"}
	h.fake.mu.Unlock()
	h.start(t, "db", "mysql")
	got := conditions()
	if len(got) != 2 || got[0].GetMessage() != "worn" || !got[0].GetAbnormal() || got[1].GetNode() != "n1" ||
		got[1].GetMessage() != "fine" || got[1].GetAbnormal() {
		t.Errorf("got %v", got)
	}
}
