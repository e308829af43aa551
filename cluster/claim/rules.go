package claim

import (
	"fmt"
	"slices"
	"time"
)

// rule is a cell of the mode table: which claims of other workloads forbid a new one. Without a rule the claim is never
// allowed.
type rule string

const (
	anybody       rule = "anybody"
	nobodyElse    rule = "nobody else"
	noOtherWriter rule = "no other writer"
	onOneNode     rule = "on one node"
)

// table is the mode table: the rules for read and write claims with each access mode.
var table = map[AccessMode]map[Mode]rule{
	SingleNodeReaderOnly:   {Read: onOneNode},
	SingleNodeWriter:       {Read: nobodyElse, Write: nobodyElse},
	SingleNodeSingleWriter: {Read: nobodyElse, Write: nobodyElse},
	SingleNodeMultiWriter:  {Read: onOneNode, Write: onOneNode},
	MultiNodeReaderOnly:    {Read: anybody},
	MultiNodeSingleWriter:  {Read: anybody, Write: noOtherWriter},
	MultiNodeMultiWriter:   {Read: anybody, Write: anybody},
}

// forbids reports whether a claim that another workload holds forbids the wanted one.
func (r rule) forbids(want, held *Claim) bool {
	switch r {
	case anybody:
		return false
	case noOtherWriter:
		return held.Mode != Read
	case onOneNode: // an unknown (empty) node counts as another one; a wanted claim always has a node
		return held.Node != want.Node
	default:
		return true
	}
}

// AlwaysAllowed reports whether existing claims never forbid one of this mode, so that a caller need not read
// them.
func AlwaysAllowed(access AccessMode, mode Mode) bool { return table[access][mode] == anybody }

// Take decides whether want may be taken on v, given the claims held, at the time that the leader stamped. held
// may leave out claims where AlwaysAllowed holds, but never one of want's own workload. A claim counts until it is
// freed, whatever its state.
//
// It returns the claim to be stored, and whether it is new: a workload that asks again with the same node and
// modes gets its existing claim. The error is a *Refusal or, for a malformed claim, a *FieldError.
func Take(v Volume, held []Claim, want Claim, at time.Time) (granted Claim, created bool, err error) {
	if err := want.Validate(); err != nil {
		return Claim{}, false, err
	}
	refuse := func(reason error, holders []Claim, format string, args ...any) error {
		return &Refusal{
			Reason: reason, Volume: v.VolumeRef, Mode: want.Mode, Detail: fmt.Sprintf(format, args...),
			Holders: holders, At: at,
		}
	}
	for i := range held {
		if held[i].Workload != want.Workload {
			continue
		}
		own := held[i]
		switch {
		case own.State != Taken:
			return Claim{}, false, refuse(ErrHeld, held[i:i+1], "has no %s claim left", want.Mode)
		case !own.sameArguments(&want):
			return Claim{}, false, refuse(ErrConflict, held[i:i+1],
				"is claimed by the same workload with other arguments than %s, %s/%s on node %q",
				want.Mode, want.AccessMode, want.AttachmentMode, want.Node)
		}
		return own, false, nil
	}

	if v.Mark != nil {
		return Claim{}, false, v.Mark.Refuse(v.VolumeRef, want.Mode, at)
	}
	modes := Capability{want.AccessMode, want.AttachmentMode}
	if !v.Supports(want.AccessMode, want.AttachmentMode) {
		return Claim{}, false, refuse(ErrUnsupported, held, "cannot be claimed as %s: it is registered with %v",
			modes, v.Capabilities)
	}
	if current := (Capability{v.AccessMode, v.AttachmentMode}); v.AccessMode != "" && current != modes {
		return Claim{}, false, refuse(ErrModes, held, "cannot be claimed as %s while it is in use as %s", modes, current)
	}
	cell, ok := table[want.AccessMode][want.Mode]
	if !ok {
		return Claim{}, false, refuse(ErrReadOnly, held, "has no %s claim: its access mode is %s", want.Mode, want.AccessMode)
	}
	if slices.ContainsFunc(held, func(h Claim) bool { return cell.forbids(&want, &h) }) {
		return Claim{}, false, refuse(ErrHeld, held, "has no %s claim left", want.Mode)
	}
	want.State = Taken
	want.TakenAt, want.ModifiedAt = at, at
	want.ForcedBy, want.ForcedAt = "", time.Time{}
	return want, true, nil
}

// sameArguments compares what the caller chooses. The driver's id of the node is not part of that: the driver may
// have been asked again since.
func (c *Claim) sameArguments(o *Claim) bool {
	return c.Node == o.Node && c.Mode == o.Mode && c.AccessMode == o.AccessMode && c.AttachmentMode == o.AttachmentMode
}

// CheckUpdate decides whether a registered volume may be changed to next while it has the claims held. The error
// is a *Refusal that names the field.
func CheckUpdate(old, next Volume, held []Claim, at time.Time) error {
	if len(held) == 0 {
		return nil
	}
	refuse := func(format string, args ...any) error {
		return &Refusal{
			Reason: ErrVolumeInUse, Volume: old.VolumeRef, Detail: fmt.Sprintf(format, args...),
			Holders: held, At: at,
		}
	}
	switch {
	case next.PluginID != old.PluginID:
		return refuse("is in use, so plugin_id cannot change from %q to %q", old.PluginID, next.PluginID)
	case next.ExternalID != old.ExternalID:
		return refuse("is in use, so external_id cannot change from %q to %q", old.ExternalID, next.ExternalID)
	case old.AccessMode != "" && !next.Supports(old.AccessMode, old.AttachmentMode):
		return refuse("is in use as %s, so capability cannot drop it", Capability{old.AccessMode, old.AttachmentMode})
	}
	return nil
}
