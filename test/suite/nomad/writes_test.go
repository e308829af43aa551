package nomad

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// definitions are mapped field by field, and shown as they were given, but for what is secret.
func definitions(t *testing.T, r *rig) {
	made := r.create(t, definition("full", func(v *api.CSIVolume) {
		v.Name, v.Namespace = "the full one", "shop"
		v.MountOptions = &api.CSIMountOptions{FSType: "ext4", MountFlags: []string{"noatime"}}
		v.Secrets = api.CSISecrets{"password": "hunter2"}
		v.Parameters = map[string]string{"note": "fast"}
		v.RequestedTopologies = &api.CSITopologyRequest{
			Preferred: []*api.CSITopology{{Segments: map[string]string{"topology.hostpath.csi/node": r.Name + "-at-hostpath"}}},
		}
		v.RequestedCapabilities = append(v.RequestedCapabilities, &api.CSIVolumeCapability{
			AccessMode: api.CSIVolumeAccessModeSingleNodeReader, AttachmentMode: api.CSIVolumeAttachmentModeFilesystem,
		})
	}))
	got, _, err := r.nomad.CSIVolumes().Info("full", &api.QueryOptions{Namespace: "shop"})
	check.NoError(t, err)
	for _, v := range []*api.CSIVolume{made, got} {
		if v.ID != "full" || v.Name != "the full one" || v.Namespace != "shop" || v.PluginID != "hostpath" ||
			v.RequestedCapacityMin != 1<<20 || v.RequestedCapacityMax != 1<<30 || v.Capacity < 1<<20 || v.ExternalID == "" ||
			len(v.RequestedCapabilities) != 2 || v.MountOptions.FSType != "ext4" || v.MountOptions.MountFlags[0] != "[REDACTED]" ||
			v.Secrets["password"] != "[REDACTED]" || v.Parameters["note"] != "fast" ||
			len(v.RequestedTopologies.Preferred) != 1 || v.CreateIndex == 0 {
			t.Errorf("volume %+v", v)
		}
	}
	spec := r.volume(t, "shop", "full").GetSpec()
	if c := spec.GetCapabilities(); spec.GetType() != "csi" || c[1].GetAccessMode() != "single-node-reader-only" {
		t.Errorf("the spec is %v", spec)
	}
	// Sent back as it is shown, it would lose its secrets.
	_, err = r.nomad.CSIVolumes().Register(got, &api.WriteOptions{Namespace: "shop"})
	refused(t, err, 400, "[REDACTED]")
	got.MountOptions.MountFlags = nil
	_, err = r.nomad.CSIVolumes().Register(got, &api.WriteOptions{Namespace: "shop"})
	refused(t, err, 400, `secret "password"`)

	for says, v := range map[string]*api.CSIVolume{
		"plugin_id":                 definition("bad", func(v *api.CSIVolume) { v.PluginID = "" }),
		"RequestedCapabilities":     definition("bad", func(v *api.CSIVolume) { v.AccessMode = "multi-node-multi-writer" }),
		"is for lists only":         definition("bad", func(v *api.CSIVolume) { v.Namespace = "*" }),
		"no-such-mode":              definition("bad", func(v *api.CSIVolume) { v.RequestedCapabilities[0].AccessMode = "no-such-mode" }),
		"clone_id and snapshot_id ": definition("bad", func(v *api.CSIVolume) { v.CloneID, v.SnapshotID = "a", "b" }),
	} {
		_, _, err := r.nomad.CSIVolumes().Create(v, nil)
		refused(t, err, 400, strings.Fields(says)[0])
	}
	old := r.create(t, definition("old", func(v *api.CSIVolume) {
		v.RequestedCapabilities, v.AccessMode, v.AttachmentMode = nil, "single-node-writer", "file-system"
	}))
	if c := old.RequestedCapabilities; len(c) != 1 || c[0].AccessMode != api.CSIVolumeAccessModeSingleNodeWriter {
		t.Errorf("a definition with one mode is %v", c)
	}
}

// A volume that exists is redefined and grown, as Nomad does, and Terraform relies on.
func redefinition(t *testing.T, r *rig) {
	first := r.create(t, definition("grown"))
	same := r.create(t, definition("grown"))
	if same.ExternalID != first.ExternalID || same.Capacity != first.Capacity {
		t.Errorf("created again it is %+v, was %+v", same, first)
	}
	again := r.create(t, definition("grown", func(v *api.CSIVolume) {
		v.Name, v.RequestedCapacityMin = "renamed", 2*first.Capacity
		v.Secrets = api.CSISecrets{"password": "hunter2"}
	}))
	if again.Name != "renamed" || again.ExternalID != first.ExternalID || again.Capacity < 2*first.Capacity ||
		again.Secrets["password"] != "[REDACTED]" || !maps.Equal(again.Context, first.Context) {
		t.Errorf("redefined it is %+v, was %+v", again, first)
	}
	_, _, err := r.nomad.CSIVolumes().Create(definition("grown", func(v *api.CSIVolume) {
		v.Parameters = map[string]string{"note": "fast"}
	}), nil)
	refused(t, err, 500, "parameters")
	_, _, err = r.nomad.CSIVolumes().Create(definition("grown", func(v *api.CSIVolume) { v.PluginID = "other" }), nil)
	refused(t, err, 500, "plugin_id")
}

// A volume is registered by its external id, deregistered and deleted, also by those who do not know that it is gone.
func registration(t *testing.T, r *rig) {
	made := r.create(t, definition("moved"))
	check.NoError(t, r.nomad.CSIVolumes().Deregister("moved", false, nil))
	_, _, err := r.nomad.CSIVolumes().Info("moved", nil)
	refused(t, err, 404, "moved")
	res, _, err := r.nomad.CSIVolumes().RegisterOpts(&api.CSIVolumeRegisterRequest{Volumes: []*api.CSIVolume{
		definition("moved", func(v *api.CSIVolume) { v.ExternalID, v.Context = made.ExternalID, made.Context }),
	}}, nil)
	check.NoError(t, err)
	if len(res.Volumes) != 1 || res.Volumes[0].ExternalID != made.ExternalID {
		t.Errorf("registered %v", res.Volumes)
	}
	_, err = r.nomad.CSIVolumes().Register(definition("other", func(v *api.CSIVolume) { v.ExternalID = made.ExternalID }), nil)
	refused(t, err, 500, "moved")
	check.NoError(t, r.nomad.CSIVolumes().DeleteOpts(&api.CSIVolumeDeleteRequest{
		ExternalVolumeID: "moved", Secrets: api.CSISecrets{"password": "hunter2"},
	}, nil))
	check.NoError(t, remove(r.nomad, "moved", nil))
	page, _, err := r.nomad.CSIVolumes().ListExternal("hostpath", &api.QueryOptions{})
	check.NoError(t, err)
	if slices.ContainsFunc(page.Volumes,
		func(e *api.CSIVolumeExternalStub) bool { return e.ExternalID == made.ExternalID }) {
		t.Error("the deleted volume is at the driver")
	}
	refused(t, r.nomad.CSIVolumes().Deregister("moved", false, nil), 404, "moved")
}

// A volume in use is neither deregistered, with force or without, nor deleted, nor detached.
func inUse(t *testing.T, r *rig) {
	r.create(t, definition("used"))
	r.claim(t, "writer", "used")
	for _, force := range []bool{false, true} {
		refused(t, r.nomad.CSIVolumes().Deregister("used", force, nil), 500, "writer")
	}
	refused(t, remove(r.nomad, "used", nil), 500, "writer")
	v, _, err := r.nomad.CSIVolumes().Info("used", nil)
	check.NoError(t, err)
	id := v.Allocations[0].NodeID
	for _, node := range []string{id, id[:8], r.Name} {
		refused(t, r.nomad.CSIVolumes().Detach("used", node, nil), 500, "volume in use", "writer")
	}
	refused(t, r.nomad.CSIVolumes().Detach("used", "nobody", nil), 404, `"nobody"`)
	refused(t, r.nomad.CSIVolumes().Detach("used", "", nil), 400, "node is missing")
	if c := r.volume(t, "default", "used").GetClaims(); len(c) != 1 || c[0].GetState() != "taken" {
		t.Errorf("the claims are %v", c)
	}
	r.Run("workload", "stop", "writer")
	check.NoError(t, r.nomad.CSIVolumes().Deregister("used", true, nil))
}

// snapshots are taken, listed and deleted, and a volume is made of one, and as a clone.
func snapshots(t *testing.T, r *rig) {
	source := r.create(t, definition("source"))
	taken, _, err := r.nomad.CSIVolumes().CreateSnapshot(&api.CSISnapshot{
		SourceVolumeID: "source", PluginID: "hostpath", Name: "monday", Secrets: api.CSISecrets{"password": "hunter2"},
	}, nil)
	check.NoError(t, err)
	if len(taken.Snapshots) != 1 {
		t.Fatalf("snapshots %v", taken.Snapshots)
	}
	snap := taken.Snapshots[0]
	if snap.ID == "" || snap.ExternalSourceVolumeID != source.ExternalID || snap.SourceVolumeID != "source" ||
		!snap.IsReady || snap.SizeBytes == 0 || snap.CreateTime == 0 || len(snap.Secrets) > 0 {
		t.Errorf("snapshot %+v", snap)
	}
	for name, plugin := range map[string]string{"of the plugin": "hostpath", "of all": ""} {
		list, _, err := r.nomad.CSIVolumes().ListSnapshotsOpts(&api.CSISnapshotListRequest{
			PluginID: plugin, QueryOptions: api.QueryOptions{PerPage: 30},
		})
		check.NoError(t, err)
		if len(list.Snapshots) != 1 || list.Snapshots[0].ID != snap.ID {
			t.Errorf("the snapshots %s are %v", name, list.Snapshots)
		}
	}
	// Secrets go to the driver that is named, and to no others.
	secrets := api.CSISecrets{"password": "hunter2"}
	_, _, err = r.nomad.CSIVolumes().ListSnapshotsOpts(&api.CSISnapshotListRequest{PluginID: "hostpath", Secrets: secrets})
	check.NoError(t, err)
	_, _, err = r.nomad.CSIVolumes().ListSnapshotsOpts(&api.CSISnapshotListRequest{Secrets: secrets})
	refused(t, err, 400, "secrets are for one driver")
	restored := r.create(t, definition("restored", func(v *api.CSIVolume) {
		v.SnapshotID, v.RequestedCapacityMin = snap.ID, source.Capacity
	}))
	cloned := r.create(t, definition("cloned", func(v *api.CSIVolume) {
		v.CloneID, v.RequestedCapacityMin = "source", source.Capacity
	}))
	if restored.SnapshotID != snap.ID || cloned.CloneID != "source" || restored.ExternalID == cloned.ExternalID {
		t.Errorf("restored %+v, cloned %+v", restored, cloned)
	}
	check.NoError(t, r.nomad.CSIVolumes().DeleteSnapshot(&api.CSISnapshot{ID: snap.ID, PluginID: "hostpath"}, nil))
	err = r.nomad.CSIVolumes().DeleteSnapshot(&api.CSISnapshot{ID: snap.ID, PluginID: "hostpath"}, nil)
	refused(t, err, 404, snap.ID)
	_, _, err = r.nomad.CSIVolumes().CreateSnapshot(&api.CSISnapshot{SourceVolumeID: "none"}, nil)
	refused(t, err, 404, "none")
	_, _, err = r.nomad.CSIVolumes().CreateSnapshot(&api.CSISnapshot{}, nil)
	refused(t, err, 400, "SourceVolumeID")
}

// volume reads a volume from the agent.
func (r *rig) volume(t *testing.T, namespace, id string) *hostv1.Volume {
	t.Helper()
	res, err := r.Client().Volumes.GetVolume(testhost.Soon(t), &hostv1.GetVolumeRequest{Namespace: namespace, Id: id})
	if err != nil {
		t.Fatal(fmt.Errorf("read volume %s/%s: %w", namespace, id, err))
	}
	return res.GetVolume()
}
