package apiserver

import (
	"slices"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// A list of volumes can be had in pages, by a part of the id and by state; the pages of a caller have what it may see.
func TestPagesOfVolumes(t *testing.T) {
	h := openACLHost(t)
	for _, id := range []string{"b-1", "a-3", "a-2", "a-1"} {
		h.create(t, spec(id, inNamespace("shop")))
	}
	h.create(t, spec("a-4", inNamespace("till")))
	shop := h.as(t, "shop", `namespace "shop" { policy = "read" }`)
	for _, tc := range []struct {
		query *hostv1.ListVolumesRequest
		want  []string
		total int64
	}{
		{&hostv1.ListVolumesRequest{}, []string{"a-1", "a-2", "a-3", "b-1"}, 4},
		{&hostv1.ListVolumesRequest{PerPage: 3}, []string{"a-1", "a-2", "a-3"}, 4},
		{&hostv1.ListVolumesRequest{PerPage: 3, Page: 2}, []string{"b-1"}, 4},
		{&hostv1.ListVolumesRequest{PerPage: 3, Page: 9}, nil, 4},
		{&hostv1.ListVolumesRequest{Search: "A-"}, []string{"a-1", "a-2", "a-3"}, 3},
		{&hostv1.ListVolumesRequest{Search: "-1", PerPage: 1, Page: 2}, []string{"b-1"}, 2},
	} {
		got := check.Must(shop.Volumes.ListVolumes(h.ctx, tc.query))(t)
		var ids []string
		for _, v := range got.GetVolumes() {
			ids = append(ids, v.GetSpec().GetId())
		}
		if !slices.Equal(ids, tc.want) || got.GetTotal() != tc.total {
			t.Errorf("%v: %q of %d, want %q of %d", tc.query, ids, got.GetTotal(), tc.want, tc.total)
		}
	}
	for _, query := range []*hostv1.ListVolumesRequest{{State: "mine"}, {PerPage: -1}, {PerPage: 1001}, {Page: -1}} {
		if _, err := shop.Volumes.ListVolumes(h.ctx, query); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v", query, err)
		}
	}
}

func TestVolumesByState(t *testing.T) {
	h := openHost(t)
	for _, id := range []string{"free", "taken", "leaving"} {
		h.create(t, spec(id))
	}
	h.start(t, "web", "taken")
	h.start(t, "db", "leaving")
	_, err := cluster.Apply(h.ctx, h.ledger, &command.AdvanceClaims{Items: []command.Advance{{
		Volume: volumeOf("leaving"), Workload: claim.WorkloadRef{Namespace: "default", ID: "db"}, To: claim.Unpublishing,
	}}})
	check.NoError(t, err)
	for state, want := range map[string][]string{
		"": {"free", "leaving", "taken"}, "free": {"free"}, "taken": {"leaving", "taken"}, "releasing": {"leaving"},
	} {
		query := &hostv1.ListVolumesRequest{State: state}
		if state == "taken" || state == "releasing" {
			query.Node = "n1"
		}
		got := check.Must(h.client.Volumes.ListVolumes(h.ctx, query))(t)
		var ids []string
		for _, v := range got.GetVolumes() {
			ids = append(ids, v.GetSpec().GetId())
		}
		if !slices.Equal(ids, want) {
			t.Errorf("%q: %q, want %q", state, ids, want)
		}
	}
}
