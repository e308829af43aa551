package apiserver

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/host/internal/system/events"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// What is done with volumes and snapshots is an event, once; what changes nothing is none.
func TestEventsOfVolumes(t *testing.T) {
	h := openHost(t)
	began := timestamppb.Now()
	made := h.create(t, spec("mysql"))
	h.create(t, spec("mysql")) // it exists
	_, err := h.client.Volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: "mysql", CapacityMin: 2 << 20})
	check.NoError(t, err)
	_, err = h.client.Volumes.ModifyVolume(h.ctx, &hostv1.ModifyVolumeRequest{
		Id: "mysql", Parameters: map[string]string{"iops": "5"},
	})
	check.NoError(t, err)
	taken, err := h.client.Volumes.CreateSnapshot(h.ctx, &hostv1.CreateSnapshotRequest{VolumeId: "mysql", Name: "before"})
	check.NoError(t, err)
	_, err = h.client.Volumes.DeleteSnapshot(h.ctx, &hostv1.DeleteSnapshotRequest{
		PluginId: "fake", SnapshotId: taken.Snapshot.SnapshotId,
	})
	check.NoError(t, err)
	_, err = h.client.Volumes.DeregisterVolume(h.ctx, &hostv1.DeregisterVolumeRequest{Id: "mysql"})
	check.NoError(t, err)
	_, err = h.client.Volumes.RegisterVolume(h.ctx, &hostv1.RegisterVolumeRequest{
		Spec: spec("mysql", func(s *hostv1.VolumeSpec) { s.ExternalId = made.Spec.ExternalId }),
	})
	check.NoError(t, err)
	_, err = h.client.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "mysql"})
	check.NoError(t, err)
	_, err = h.client.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeNotFound)

	of := func(req *hostv1.EventsRequest) (all []string) {
		req.Recent = events.DefaultSize
		got := check.Must(receive(h, req))(t)
		for _, e := range got {
			all = append(all, fmt.Sprintf("%s %s %s %s", e.Topic, e.Type, e.Subject, e.Details["driver"]))
		}
		return all
	}
	snapshot := taken.Snapshot.SnapshotId
	volumes := []string{
		"volume created mysql fake", "volume expanded mysql fake", "volume modified mysql fake",
		"volume deregistered mysql fake", "volume registered mysql fake", "volume deleted mysql fake",
	}
	if got := of(&hostv1.EventsRequest{Topics: []string{"volume"}}); !slices.Equal(got, volumes) {
		t.Errorf("%q", got)
	}
	want := slices.Insert(slices.Clone(volumes), 3, "snapshot created "+snapshot+" fake", "snapshot deleted "+snapshot+" fake")
	if got := of(&hostv1.EventsRequest{Topics: []string{"volume", "snapshot"}, Since: began}); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := of(&hostv1.EventsRequest{Since: timestamppb.New(time.Now().Add(time.Hour))}); len(got) > 0 {
		t.Errorf("of the future: %q", got)
	}
	_, err = receive(h, &hostv1.EventsRequest{Topics: []string{"volumes"}})
	wantError(t, err, connect.CodeInvalidArgument, "topics", `"volumes" is not one of agent, claim,`)
}
