package apiserver

import (
	"cmp"
	"testing"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// A snapshot has one name in its namespace, by which it is listed, used for a new volume and deleted.
func TestSnapshotsByName(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("a"))
	h.create(t, spec("b"))
	take := func(namespace, volume string) (*hostv1.Snapshot, error) {
		resp, err := h.client.Volumes.CreateSnapshot(h.ctx, &hostv1.CreateSnapshotRequest{
			Namespace: namespace, VolumeId: volume, Name: "before",
		})
		if err != nil {
			return nil, err
		}
		return resp.GetSnapshot(), nil
	}
	first, err := take("", "a")
	if check.NoError(t, err); first.GetName() != "before" {
		t.Errorf("taken %v", first)
	}
	again, err := take("", "a")
	if check.NoError(t, err); again.GetSnapshotId() != first.GetSnapshotId() {
		t.Errorf("taken again %v, first %v", again, first)
	}
	_, err = take("", "b")
	wantError(t, err, connect.CodeAlreadyExists, `snapshot "before" exists`, `volume "a"`,
		"pannier volume snapshot delete fake before")
	if len(h.fake.snapshots) != 1 {
		t.Errorf("the driver was asked for a refused snapshot: %v", h.fake.snapshots)
	}
	list, err := h.client.Volumes.ListSnapshots(h.ctx, &hostv1.ListSnapshotsRequest{PluginId: "fake"})
	if check.NoError(t, err); len(list.GetSnapshots()) != 1 || list.GetSnapshots()[0].GetName() != "before" {
		t.Errorf("listed %v", list)
	}

	restored := spec("c")
	restored.SnapshotId = "before"
	for range 2 { // it exists with the same definition
		made := check.Must(h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: restored}))(t)
		if got := made.GetVolume().GetSpec(); got.GetSnapshotId() != "before" ||
			h.fake.volumes[got.GetExternalId()].SnapshotID != first.GetSnapshotId() {
			t.Errorf("restored %v from %q", got, h.fake.volumes[got.GetExternalId()].SnapshotID)
		}
	}

	remove := func(snapshot string) error {
		_, err := h.client.Volumes.DeleteSnapshot(h.ctx,
			&hostv1.DeleteSnapshotRequest{PluginId: "fake", SnapshotId: snapshot})
		return err
	}
	wantError(t, remove("after"), connect.CodeNotFound, `"after"`, `"fake"`)
	check.NoError(t, remove("before"))
	if len(h.fake.snapshots) != 0 {
		t.Errorf("left at the driver: %v", h.fake.snapshots)
	}
	wantError(t, remove("before"), connect.CodeNotFound, `"before"`)
	taken, err := take("", "b") // the name is free
	check.NoError(t, err)
	check.NoError(t, remove(taken.GetSnapshotId()))
	_, err = take("", "a")
	check.NoError(t, err)
}

// A driver is asked about snapshots with the secrets that are stored with their volume, unless the caller gives some.
func TestSecretsOfSnapshots(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("a"))
	asked := func(want string) {
		t.Helper()
		h.fake.mu.Lock()
		defer h.fake.mu.Unlock()
		if got := h.fake.secrets["password"]; got != want {
			t.Errorf("the driver was asked with %q, want %q", got, want)
		}
		h.fake.secrets = nil
	}
	list := func() {
		t.Helper()
		check.Must(h.client.Volumes.ListSnapshots(h.ctx, &hostv1.ListSnapshotsRequest{PluginId: "fake"}))(t)
	}
	list()
	asked(secretValue)
	h.create(t, spec("b", func(s *hostv1.VolumeSpec) { s.Secrets["password"] = "of b" }))
	list() // whose secrets it is to use is not known
	asked("")
	for _, given := range []map[string]string{nil, {"password": "given"}} {
		check.Must(h.client.Volumes.CreateSnapshot(h.ctx, &hostv1.CreateSnapshotRequest{VolumeId: "b", Name: "s"}))(t)
		check.Must(h.client.Volumes.DeleteSnapshot(h.ctx,
			&hostv1.DeleteSnapshotRequest{PluginId: "fake", SnapshotId: "s", Secrets: given}))(t)
		asked(cmp.Or(given["password"], "of b"))
	}
}

func TestListVolumesOfAnUnknownDriver(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	_, err := h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{PluginId: "nosuch"})
	wantError(t, err, connect.CodeNotFound, `"nosuch"`, `there is "fake"`)
	list, err := h.client.Volumes.ListVolumes(h.ctx, &hostv1.ListVolumesRequest{PluginId: "fake"})
	if check.NoError(t, err); len(list.GetVolumes()) != 0 {
		t.Errorf("listed %v", list)
	}
}
