package volumes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/watcher"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// held is a claim with what its explanation needs.
type held struct {
	claim    claim.Claim
	driver   string
	node     *claim.Node // nil: not in the ledger
	workload claim.WorkloadStatus
	letGo    time.Time // zero: not known
	attempt  watcher.Attempt
	release  workload.Release // on the claim's node
}

// ExplainVolume returns who holds a volume and what its claims wait for.
func (h *Handler) ExplainVolume(ctx context.Context,
	req *hostv1.ExplainVolumeRequest,
) (*hostv1.ExplainVolumeResponse, error) {
	ref, err := volumeRef(req.GetNamespace(), req.GetId())
	if err != nil {
		return nil, err
	}
	var volume claim.Volume
	var claims []held
	err = h.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		if volume, err = tx.Volume(ref); err != nil {
			return err
		}
		claims, err = heldBy(tx, volume)
		return err
	})
	if err != nil {
		return nil, err
	}
	plain := call.Each(claims, func(of held) claim.Claim { return of.claim })
	resp := &hostv1.ExplainVolumeResponse{
		Volume: h.shownVolume(volume, plain), Conditions: h.look(ctx, volume, plain).conditions(),
	}
	attempt, _ := h.Watcher.Attempt(ref)
	for _, of := range claims {
		shown := &hostv1.ExplainedClaim{
			Claim: call.ShownClaim(of.claim), NodeStatus: "unknown",
			Since: call.Time(of.claim.ModifiedAt),
		}
		if of.claim.ModifiedAt.IsZero() {
			shown.Since = call.Time(of.claim.TakenAt)
		}
		if of.node != nil {
			shown.NodeStatus = string(call.NodeStatus(*of.node))
		}
		if h.Heard != nil {
			at, keepsTo := h.Heard(of.claim.Node)
			of.letGo = keepsTo
			shown.LastHeard, shown.LetGoAt = call.Time(at), call.Time(keepsTo)
		}
		of.attempt, of.release = attempt, h.releaseOf(ctx, of.claim)
		of.explain(shown)
		resp.Claims = append(resp.Claims, shown)
	}
	resp.Summary = summary(resp.GetVolume(), claims)
	return resp, nil
}

// heldBy returns a volume's claims with their nodes and workloads.
func heldBy(tx *state.ReadTx, v claim.Volume) (all []held, err error) {
	claims, err := tx.Claims(v.VolumeRef)
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		h := held{claim: c, driver: v.PluginID}
		n, err := tx.Node(c.Node)
		if known, err := call.Found(err, claim.ErrNodeNotFound); err != nil {
			return nil, err
		} else if known {
			h.node = &n
		}
		w, err := tx.Workload(c.Workload)
		if _, err := call.Found(err, claim.ErrWorkloadNotFound); err != nil {
			return nil, err
		}
		h.workload = w.Status // empty: the ledger does not know it
		all = append(all, h)
	}
	return all, nil
}

// explain fills in what a claim waits for, what happens by itself, and what to run.
func (h held) explain(to *hostv1.ExplainedClaim) {
	c := h.claim
	var status claim.NodeStatus
	if h.node != nil {
		status = call.NodeStatus(*h.node)
	}
	inNamespace := ""
	if c.Volume.Namespace != claim.DefaultNamespace {
		inNamespace = " -namespace " + c.Volume.Namespace
	}
	force := fmt.Sprintf("pannier volume detach%s -force %s %s", inNamespace, printable.Argument(c.Volume.ID), c.Node)
	if c.State.Releasing() {
		to.Tries, to.LastError, to.NextTryAt = int32(h.attempt.Tries), h.attempt.Error, call.Time(h.attempt.NextAt)
	}
	if r := h.release; r.Tries > 0 { // the leader tries once, and then waits for the node
		to.Tries, to.LastError, to.NextTryAt = int32(r.Tries), r.Error, call.Time(r.NextAt)
	}
	switch {
	case c.State == claim.Taken && h.workload == "":
		to.WaitsFor = "the collection: the ledger does not know its workload"
		to.Next, to.Command = "the collection releases it when it is old enough", "pannier system gc"
	case c.State == claim.Taken && h.workload == claim.Ended:
		to.WaitsFor = "the collection: its workload has ended"
		to.Next, to.Command = "the collection releases it when it is old enough", "pannier system gc"
	case c.State.Before(claim.NodeDetached) && h.node == nil:
		to.WaitsFor = fmt.Sprintf("node %q, which the ledger does not know", c.Node)
		to.Next, to.Command = "nothing until a node of that name is back", force
	case c.State.Before(claim.NodeDetached) && status == claim.NodeDisconnected:
		to.WaitsFor = fmt.Sprintf("node %q, which is not heard from", c.Node)
		to.Next = "the release goes on when the node has stopped by its own clock, or when it is heard from"
		if !h.letGo.IsZero() {
			to.Next = fmt.Sprintf("the release goes on without the node at %s, unless it is heard from before",
				h.letGo.UTC().Format(time.DateTime)+" UTC")
		}
		to.Command = force
	case c.State.Before(claim.NodeDetached) && status == claim.NodeDown:
		to.WaitsFor = fmt.Sprintf("the leader to release what node %q held", c.Node)
		to.Next = "that begins in a moment"
	case h.release.Command != "":
		to.WaitsFor = fmt.Sprintf("node %q to unmount it, which is in use there", c.Node)
		to.Next, to.Command = "the node goes on trying; stop what holds the volume, on that node", h.release.Command
	case c.State == claim.Taken && h.release.Tries > 0:
		to.WaitsFor = fmt.Sprintf("node %q to stop its workload", c.Node)
		to.Next = "the node goes on trying"
	case c.State == claim.Taken:
		to.Next = "workload " + c.Workload.String() + " uses it until it is stopped"
	case c.State == claim.Unpublishing:
		to.WaitsFor = fmt.Sprintf("node %q to unmount it", c.Node)
		to.Next = "the node goes on trying"
		if to.LastError != "" {
			to.Command = fmt.Sprintf("pannier volume detach%s %s %s", inNamespace, printable.Argument(c.Volume.ID), c.Node)
		}
	default: // node-detached
		to.WaitsFor = fmt.Sprintf("a controller of driver %q to detach it from node %q", h.driver, c.Node)
		to.Next = "the leader goes on trying, at once when a node or a driver changes"
		if to.LastError != "" {
			to.Command = "pannier driver status " + h.driver
		}
	}
}

// summary describes a volume in a sentence.
func summary(v *hostv1.Volume, claims []held) string {
	uses, leaves := 0, 0
	for _, h := range claims {
		if h.claim.State.Releasing() {
			leaves++
		} else {
			uses++
		}
	}
	var parts []string
	if uses > 0 {
		parts = append(parts, "in use by "+printable.Count(uses, "workload"))
	}
	if leaves > 0 {
		parts = append(parts, "being released by "+printable.Count(leaves, "workload"))
	}
	text := "nobody holds it"
	if len(parts) > 0 {
		text = strings.Join(parts, ", ") + " as " + v.GetAccessMode()
	}
	if !v.GetDriverHealthy() {
		text += fmt.Sprintf("; its driver %q cannot be used here: %s", v.GetSpec().GetPluginId(), v.GetDriverMessage())
	}
	return text
}

// releaseTimeout bounds asking a node how a release goes.
const releaseTimeout = 2 * time.Second

// releaseOf returns how the release of a claim goes while its node has to act; zero: it does not wait, or it is not
// known.
func (h *Handler) releaseOf(ctx context.Context, c claim.Claim) workload.Release {
	if c.Node == h.Name {
		return h.ownRelease(c)
	}
	if h.Nodes == nil || c.State == claim.Taken || !c.State.Before(claim.NodeDetached) {
		return workload.Release{}
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	r, err := h.Nodes.Release(ctx, c)
	if err != nil {
		h.Log.Debug("a node does not say how a release goes", "node", c.Node, "workload", c.Workload, "error", err)
	}
	return r
}

// ownRelease is how the release of a claim goes on this node; zero for a claim of another node.
func (h *Handler) ownRelease(c claim.Claim) workload.Release {
	if c.Node != h.Name || !c.State.Before(claim.NodeDetached) {
		return workload.Release{}
	}
	w, _ := h.Workloads.Get(c.Workload) // zero for one that is not here
	return w.Release
}
