package apiserver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// claimOf claims a volume for a workload of another node.
func (h *host) claimOf(volume string) error {
	_, err := cluster.Apply(h.ctx, h.ledger,
		command.Start(claim.Run{Ref: claim.WorkloadRef{Namespace: "default", ID: "db"}, Node: "n2"}, []claim.Claim{{
			Volume: volumeOf(volume), Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
		}}))
	return err
}

// While a driver deletes a volume, or expands it as it can only while nobody uses it, nobody can claim it.
func TestNoClaimDuringAnAct(t *testing.T) {
	caps := allCaps()
	caps.OnlineExpand = false
	h := openHostWith(t, caps)
	for _, tc := range []struct {
		call, says string
		act        func(id string) error
	}{
		{"delete", "is being deleted at its driver, by root, since", func(id string) error {
			_, err := h.client.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: id})
			return err
		}},
		{"expand", "is being expanded by its driver, by root, since", func(id string) error {
			_, err := h.client.Volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: id, CapacityMin: 2 << 20})
			return err
		}},
	} {
		h.create(t, spec(tc.call))
		var refused error
		h.fake.during = func(string) { refused = h.claimOf(tc.call) }
		err := tc.act(tc.call)
		h.fake.during = nil
		if err != nil || refused == nil || !strings.Contains(refused.Error(), tc.says) {
			t.Errorf("%s: %v; a start meanwhile: %v", tc.call, err, refused)
		}
	}
	// The driver's refusal ends the act, and so does its success.
	check.NoError(t, h.claimOf("expand"))
	_, err := h.client.Volumes.ExpandVolume(h.ctx, &hostv1.ExpandVolumeRequest{Id: "expand", CapacityMin: 3 << 20})
	wantError(t, err, connect.CodeFailedPrecondition, `workload "db" on node "n2"`, "only while nobody uses it")
	h.create(t, spec("refused"))
	h.fake.setFailure("delete", driverSays(codes.FailedPrecondition, "a snapshot needs it"))
	_, err = h.client.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "refused"})
	wantError(t, err, connect.CodeFailedPrecondition, "a snapshot needs it")
	if _, _, err := h.tryStart("db2", "refused", false); err != nil && strings.Contains(err.Error(), "deleted") {
		t.Errorf("after the refusal: %v", err)
	}
}

// finishesDelete has the leader finish what others have begun, until a volume is deleted.
func (h *host) finishesDelete(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithCancel(h.ctx)
	var leads sync.WaitGroup
	leads.Go(func() { h.cfg.Volumes.FinishActs(ctx) })
	defer leads.Wait()
	defer cancel()
	check.Eventually(t, "the volume is deleted", func() bool {
		_, err := h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: id})
		return connect.CodeOf(err) == connect.CodeNotFound
	})
}

// A driver that does not answer may delete the volume yet: nobody can claim it, and the leader asks again.
func TestInterruptedDelete(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("mysql"))
	h.fake.setFailure("delete", driverSays(codes.Internal, "it is slow"))
	_, err := h.client.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeInternal, "it is slow", "nobody can claim the volume")
	// The earlier call may be under way whatever the driver answers to a later one.
	h.fake.setFailure("delete", driverSays(codes.FailedPrecondition, "not now"))
	_, err = h.client.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "mysql"})
	wantError(t, err, connect.CodeFailedPrecondition, "not now", "nobody can claim the volume")
	if err := h.claimOf("mysql"); err == nil || !strings.Contains(err.Error(), "pannier volume delete mysql") {
		t.Errorf("a start: %v", err)
	}
	_, err = h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: spec("mysql")})
	wantError(t, err, connect.CodeFailedPrecondition, "is being deleted")
	h.fake.setFailure("delete", nil)
	h.finishesDelete(t, "mysql")
	if len(h.fake.deleted) != 1 {
		t.Errorf("deleted: %v", h.fake.deleted)
	}
}

// A server that does not lead any more is late with a delete: the next leader has finished it, and another volume has
// the name. It is not deregistered.
func TestDeleteThatAnotherLeaderHasFinished(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("mysql"))
	h.fake.during = func(string) {
		var v claim.Volume
		check.NoError(t, h.ledger.ReadLatest(h.ctx, func(tx *state.ReadTx) (err error) {
			v, err = tx.Volume(volumeOf("mysql"))
			return err
		}))
		check.Must(cluster.Apply(h.ctx, h.ledger, &command.TakeMark{
			Ref: v.VolumeRef, IfModifyIndex: v.ModifyIndex, Mark: claim.Mark{Act: claim.Deleting},
		}))(t)
		check.Must(cluster.Apply(h.ctx, h.ledger, &command.DeregisterVolume{Ref: v.VolumeRef, Deleted: v.CreateIndex}))(t)
		check.Must(cluster.Apply(h.ctx, h.ledger, &command.RegisterVolume{Volume: v}))(t)
	}
	_, err := h.client.Volumes.DeleteVolume(h.ctx, &hostv1.DeleteVolumeRequest{Id: "mysql"})
	check.NoError(t, err)
	check.NoError(t, h.claimOf("mysql"))
}

// An attempt of a call to delete learns that the leader has finished what an earlier attempt began. Another call does
// not find the volume.
func TestDeleteThatTheLeaderFinishesForItsCall(t *testing.T) {
	h := openHost(t)
	h.create(t, spec("mysql"))
	attempt := func(key string) error {
		ctx := call.WithCaller(h.ctx, &call.Caller{Key: key})
		_, err := h.cfg.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{Id: "mysql"})
		return err
	}
	h.fake.setFailure("delete", driverSays(codes.Internal, "it is slow"))
	if err := attempt("one"); err == nil {
		t.Fatal("it succeeded")
	}
	h.fake.setFailure("delete", nil)
	h.finishesDelete(t, "mysql")
	check.NoError(t, attempt("one"))
	if err := attempt("other"); !errors.Is(err, claim.ErrVolumeNotFound) {
		t.Errorf("another call: %v", err)
	}
	if len(h.fake.deleted) != 1 {
		t.Errorf("deleted: %v", h.fake.deleted)
	}
}
