package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
)

// claim takes all the workload's claims in one ledger command: all or none. The same
// command notes the tokens that Consul will be asked for.
func (r *run) claim(ctx context.Context) error {
	var want []claim.Claim
	for _, v := range r.volumes {
		c, err := r.prepare(ctx, v)
		if err != nil {
			return untouchedError{fmt.Errorf("volume %q: %w", v.Request.Name, err)}
		}
		if want, err = merged(want, c); err != nil {
			return untouchedError{fmt.Errorf("volume %q: %w", v.Request.Name, err)}
		}
	}
	tokens, fresh, err := r.intend()
	if err != nil {
		return err
	}
	term := r.Lease.Term() // before: what is granted now was not let go of later under it
	started, err := r.Ledger.StartWorkload(ctx, r.inLedger(), want, tokens)
	if err != nil {
		err = fmt.Errorf("claim the volumes of %s on node %q: %w", r.instance, r.Node, err)
		if refused(err) {
			return untouchedError{errors.Join(err, r.unintend(fresh))}
		}
		return err
	}
	return r.granted(started, term)
}

// inLedger is the run as the ledger knows it.
func (r *run) inLedger() claim.Run {
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	return claim.Run{Ref: r.ref, Node: r.Node, ID: r.rec.RunID, Index: r.rec.Run}
}

// granted notes what the ledger has given. A start that goes on after the host was away must
// get the claims that it had: with others, what it has mounted is of a time when the volume
// may have been somebody else's meanwhile.
func (r *run) granted(s Started, term uint64) error {
	var absent, lost []claim.VolumeRef
	err := r.update(nil, func(rec *record) {
		for _, v := range r.volumes {
			n := slices.IndexFunc(s.Claims, func(c claim.Claim) bool { return c.Volume == v.Ref })
			if n < 0 || n >= len(s.Volumes) {
				absent = append(absent, v.Ref)
				continue
			}
			if v.Index != 0 && v.Index != s.Claims[n].Index {
				lost = append(lost, v.Ref)
			}
			v.info, v.Index = s.Volumes[n], s.Claims[n].Index
		}
		rec.Run, r.term = s.Run, term
	})
	switch {
	case err != nil:
		return err
	case len(absent) > 0:
		return fmt.Errorf("the ledger answered the claim of %s without volumes %v", r.instance, absent)
	case len(lost) > 0:
		return fmt.Errorf("the start of %s cannot go on: %w: those on %v", r.instance, errClaimsLost, lost)
	}
	return nil
}

// intend marks what notes of tokens the ledger is about to have: whatever comes after,
// they are to be undone. fresh are the services that were not marked before.
func (r *run) intend() (tokens []claim.Token, fresh []*svc, err error) {
	for _, s := range r.services {
		if !s.meshed {
			continue
		}
		tokens = append(tokens, s.Token)
		if s.Steps[identifyStep] == "" {
			fresh = append(fresh, s)
		}
	}
	if len(fresh) == 0 {
		return tokens, nil, nil
	}
	return tokens, fresh, r.update(r.journal, func(*record) {
		for _, s := range fresh {
			s.Steps[identifyStep] = intended
		}
	})
}

// unintend takes the marks back: the ledger has no note.
func (r *run) unintend(fresh []*svc) error {
	if len(fresh) == 0 {
		return nil
	}
	return r.update(r.journal, func(*record) {
		for _, s := range fresh {
			delete(s.Steps, identifyStep)
		}
	})
}

// refused says that the ledger has decided against the claims, so that they do
// not stand; any other error leaves it open.
func refused(err error) bool {
	return errors.As(err, new(*claim.Refusal)) || errors.Is(err, claim.ErrInvalid) ||
		errors.Is(err, claim.ErrVolumeNotFound) || errors.Is(err, claim.ErrConflict) ||
		errors.Is(err, claim.ErrIneligible) || errors.Is(err, claim.ErrCycle)
}

// prepare fills in what a request leaves open, makes sure that the driver is
// there, and notes all that a later undo needs.
func (r *run) prepare(ctx context.Context, v *volume) (claim.Claim, error) {
	info, err := r.Ledger.Volume(ctx, v.Ref)
	if err != nil {
		return claim.Claim{}, err
	}
	modes, err := v.modes(info)
	if err != nil {
		return claim.Claim{}, err
	}
	driver, err := r.Calls.Await(ctx, info.PluginID, r.limits.driver)
	if err != nil {
		return claim.Claim{}, err
	}
	if driver.Fingerprint.Node == nil {
		return claim.Claim{}, fmt.Errorf("driver %q has no node service on this node: it cannot mount volume %q here", driver.ID, v.Ref)
	}
	if err := info.CheckReachable(r.Node, driver.Fingerprint.Node.AccessibleTopology); err != nil {
		return claim.Claim{}, err
	}
	usage := mounts.Usage{
		ReadOnly:       v.Request.ReadOnly || readerOnly(modes.AccessMode),
		AttachmentMode: modes.AttachmentMode, AccessMode: modes.AccessMode,
	}
	err = r.update(nil, func(*record) {
		v.driver = driver
		v.Driver, v.ExternalID, v.Context = info.PluginID, info.ExternalID, info.Context
		v.Usage, v.Options = usage, merge(info.MountOptions, v.Request.MountOptions)
		v.Staging = r.Layout.Staging(v.Driver, v.Ref, usage)
		v.Target = r.Layout.Target(v.Driver, r.ref, v.Ref, usage, v.Request.Name)
	})
	mode := claim.Write
	if usage.ReadOnly {
		mode = claim.Read
	}
	return claim.Claim{
		Volume: v.Ref, Workload: r.ref, Node: r.Node, DriverNodeID: driver.Fingerprint.Node.NodeID,
		Mode: mode, AccessMode: modes.AccessMode, AttachmentMode: modes.AttachmentMode,
	}, err
}

func readerOnly(m claim.AccessMode) bool {
	return m == claim.SingleNodeReaderOnly || m == claim.MultiNodeReaderOnly
}

// merged adds a request's claim to those of the workload: requests for one
// volume share a claim, which is for writing when one of them writes.
func merged(all []claim.Claim, c claim.Claim) ([]claim.Claim, error) {
	n := slices.IndexFunc(all, func(o claim.Claim) bool { return o.Volume == c.Volume })
	if n < 0 {
		return append(all, c), nil
	}
	if all[n].AccessMode != c.AccessMode || all[n].AttachmentMode != c.AttachmentMode {
		return nil, fmt.Errorf("source %q is asked for as %s %s and as %s %s: one workload uses a volume in one way",
			c.Volume, all[n].AccessMode, all[n].AttachmentMode, c.AccessMode, c.AttachmentMode)
	}
	if c.Mode == claim.Write {
		all[n].Mode = claim.Write
	}
	return all, nil
}

// modes are those that the request was given before a restart of the host, though
// the volume may have got other capabilities since, or those that it asks for.
func (v *volume) modes(info claim.Volume) (claim.Capability, error) {
	if v.Usage.AccessMode != "" {
		return claim.Capability{AccessMode: v.Usage.AccessMode, AttachmentMode: v.Usage.AttachmentMode}, nil
	}
	return pickModes(info, v.Request)
}

// pickModes takes the request's modes, or those of the volume's only capability
// that fits what the request says.
func pickModes(v claim.Volume, req VolumeRequest) (claim.Capability, error) {
	var fit []claim.Capability
	for _, c := range v.Capabilities {
		if (req.AccessMode == "" || req.AccessMode == c.AccessMode) && (req.AttachmentMode == "" || req.AttachmentMode == c.AttachmentMode) {
			fit = append(fit, c)
		}
	}
	switch len(fit) {
	case 1:
		return fit[0], nil
	case 0:
		return claim.Capability{}, fmt.Errorf("volume %q has no capability with access_mode %q and attachment_mode %q; it has %s: %w",
			v.VolumeRef, req.AccessMode, req.AttachmentMode, capabilities(v), claim.ErrUnsupported)
	default:
		return claim.Capability{}, fmt.Errorf("volume %q has several capabilities, so access_mode and attachment_mode must say which: %s: %w",
			v.VolumeRef, capabilities(v), claim.ErrUnsupported)
	}
}

func capabilities(v claim.Volume) string {
	var s string
	for n, c := range v.Capabilities {
		if n > 0 {
			s += ", "
		}
		s += string(c.AccessMode) + " " + string(c.AttachmentMode)
	}
	return s
}

// release lets go of the claims of those volumes of which nothing is left on
// this node, and waits until the leader has freed them. While others are left it
// fails, to be tried again.
func (r *run) release(ctx context.Context) error {
	if r.unsaid != nil {
		return fmt.Errorf("the claims are kept: %w", r.unsaid)
	}
	clean, left := r.releasable()
	if len(clean) > 0 {
		if err := r.Ledger.NodeDetached(ctx, clean); err != nil {
			return fmt.Errorf("release the claims of %s: %w", r.instance, err)
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("the claims of %s on %v are kept until their mounts are gone", r.instance, left)
	}
	if err := r.Ledger.AwaitFreed(ctx, clean); err != nil {
		return fmt.Errorf("wait until the claims of %s are freed: %w", r.instance, err)
	}
	return nil
}

// releasable are the claims of those volumes of which nothing is left on this node; left
// are the other volumes.
func (r *run) releasable() (clean []claim.Claim, left []claim.VolumeRef) {
	r.instance.mu.Lock()
	defer r.instance.mu.Unlock()
	for _, v := range r.volumes {
		if len(v.Steps) > 0 && !slices.Contains(left, v.Ref) {
			left = append(left, v.Ref)
		}
	}
	for _, v := range r.volumes {
		if slices.Contains(left, v.Ref) || slices.ContainsFunc(clean, func(c claim.Claim) bool { return c.Volume == v.Ref }) {
			continue
		}
		clean = append(clean, claim.Claim{Volume: v.Ref, Workload: r.ref, Node: r.Node, Index: v.Index})
	}
	return clean, left
}
