package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
)

// act is something slow at a driver that nobody may have the volume during.
type act struct {
	h    *Handler
	v    claim.Volume // as it was read
	mark claim.Mark   // with an index once it is taken
}

// endPatience bounds the end of an act whose caller may have gone.
const endPatience = 10 * time.Second

func (h *Handler) newAct(ctx context.Context, v claim.Volume, mark claim.Mark) *act {
	mark.By, mark.Call = call.CallerOf(ctx).Who(), call.CallerOf(ctx).Key
	return &act{h: h, v: v, mark: mark}
}

// begin marks the volume, and fails while it is claimed. It is called whenever a controller is about to be asked. If
// another one did not answer, the mark is taken again: if this server does not lead any more, the act may have been
// finished by the one that does, and what has the volume's name now be another volume.
func (a *act) begin(ctx context.Context) (err error) {
	mark, err := cluster.Apply(ctx, a.h.Ledger, &command.TakeMark{
		Ref: a.v.VolumeRef, IfModifyIndex: max(a.v.ModifyIndex, a.mark.Index), Mark: a.mark,
	})
	if err == nil {
		a.mark = mark
	}
	return err
}

// refusals are the driver's answers by which it has done nothing, and does nothing any more.
var refusals = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange,
	codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated,
}

// failed ends the act if the driver has refused it. Otherwise it may be under way, or done: the mark stays, and the
// leader repeats the act until the driver succeeds (FinishActs).
func (a *act) failed(ctx context.Context, err error) error {
	switch {
	case a.mark.Index == 0: // no driver was asked
		return err
	case a.mark.Repeated || !slices.Contains(refusals, status.Code(err)):
		return fmt.Errorf("%w; the driver may have done it, or do it still: it is asked again, and nobody can claim the volume "+
			"until it has succeeded", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	_, left := cluster.Apply(ctx, a.h.Ledger, &command.EndMark{Ref: a.v.VolumeRef, Index: a.mark.Index})
	return errors.Join(err, left)
}

// finishEvery is how often the leader repeats the acts whose end is not known.
const finishEvery = time.Minute

// FinishActs repeats the acts that volumes are marked with, while this server leads: their callers have gone, or had no
// answer. Drivers accept the same call again (CSI spec).
func (h *Handler) FinishActs(ctx context.Context) {
	for {
		var marked []claim.Volume
		err := h.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
			marked, err = tx.MarkedVolumes()
			return err
		})
		for _, v := range marked {
			err = errors.Join(err, h.finish(ctx, v.VolumeRef))
		}
		if err != nil && ctx.Err() == nil {
			h.Log.Warn("what was begun with volumes cannot be finished yet: retrying", "error", err, "in", finishEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(finishEvery):
		}
	}
}

// finish repeats the act that a volume is marked with, if it is when other calls about it are done.
func (h *Handler) finish(ctx context.Context, ref claim.VolumeRef) error {
	unlock, err := h.Controllers.Exclusive(ctx, ref)
	if err != nil {
		return err
	}
	defer unlock()
	v, found, err := h.findVolume(ctx, ref)
	switch {
	case err != nil || !found || v.Mark == nil:
		return err
	case v.Mark.Act == claim.Deleting:
		return h.delete(ctx, v, nil)
	default:
		return h.expand(ctx, v, v.Mark.CapacityMin, v.Mark.CapacityMax)
	}
}
