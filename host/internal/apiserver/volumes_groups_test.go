package apiserver

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

func TestGroupSnapshots(t *testing.T) {
	h := openHost(t)
	a, b := h.create(t, spec("a")), h.create(t, spec("b"))
	taken, err := h.client.Volumes.CreateGroupSnapshot(h.ctx, &hostv1.CreateGroupSnapshotRequest{
		VolumeIds: []string{"b", "a", "b"}, Name: "now", Secrets: map[string]string{"key": "s"},
	})
	check.NoError(t, err)
	g := taken.GetGroup()
	if len(g.GetSnapshots()) != 2 || g.GetSnapshots()[0].GetVolume() != "a" || g.GetSnapshots()[1].GetVolume() != "b" ||
		g.GetSnapshots()[0].GetExternalVolumeId() != a.GetSpec().GetExternalId() || h.fake.secrets["key"] != "s" {
		t.Errorf("got %v, secrets %v", g, h.fake.secrets)
	}
	members := []string{"snap-" + a.GetSpec().GetExternalId(), "snap-" + b.GetSpec().GetExternalId()}
	got, err := h.client.Volumes.GetGroupSnapshot(h.ctx,
		&hostv1.GetGroupSnapshotRequest{PluginId: "fake", GroupId: g.GetGroupId()})
	check.NoError(t, err)
	if len(got.GetGroup().GetSnapshots()) != 2 || !slices.Equal(h.fake.members, members) {
		t.Errorf("got %v; the driver was given the snapshots %v", got.GetGroup(), h.fake.members)
	}
	_, err = h.client.Volumes.DeleteGroupSnapshot(h.ctx, &hostv1.DeleteGroupSnapshotRequest{
		PluginId: "fake", GroupId: g.GetGroupId(), SnapshotIds: []string{"these"},
	})
	if check.NoError(t, err); !slices.Equal(h.fake.members, []string{"these"}) {
		t.Errorf("the driver was given the snapshots %v", h.fake.members)
	}
	_, err = h.client.Volumes.GetGroupSnapshot(h.ctx,
		&hostv1.GetGroupSnapshotRequest{PluginId: "fake", GroupId: g.GetGroupId()})
	wantError(t, err, connect.CodeNotFound, "no such group", g.GetGroupId())
	for says, req := range map[string]*hostv1.CreateGroupSnapshotRequest{
		"volume_ids": {Name: "x"},
		"name":       {Name: "x/y", VolumeIds: []string{"a"}},
	} {
		_, err = h.client.Volumes.CreateGroupSnapshot(h.ctx, req)
		wantError(t, err, connect.CodeInvalidArgument, says)
	}
	_, err = h.client.Volumes.CreateGroupSnapshot(h.ctx,
		&hostv1.CreateGroupSnapshotRequest{Name: "x", VolumeIds: []string{"a", "none"}})
	wantError(t, err, connect.CodeNotFound, "none")
	_, err = h.client.Volumes.DeleteGroupSnapshot(h.ctx, &hostv1.DeleteGroupSnapshotRequest{PluginId: "fake"})
	wantError(t, err, connect.CodeInvalidArgument, "group_id")
}
