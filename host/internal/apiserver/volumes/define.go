package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/convert"
	"github.com/pannier/pannier/sdk/storage"
)

// volumeType is the only supported type of volumes.
const volumeType = "csi"

// RegisterVolume registers a volume that exists at its driver, or changes the definition of a registered one.
func (h *Handler) RegisterVolume(ctx context.Context,
	req *hostv1.RegisterVolumeRequest,
) (*hostv1.RegisterVolumeResponse, error) {
	v, err := h.definition(req.GetSpec())
	if err != nil {
		return nil, err
	}
	if err := v.Validate(); err != nil {
		return nil, err
	}
	if err := h.mayUse(ctx, v); err != nil {
		return nil, err
	}
	unlock, err := h.Controllers.Exclusive(ctx, v.VolumeRef)
	if err != nil {
		return nil, err
	}
	defer unlock()
	before, found, err := h.findVolume(ctx, v.VolumeRef)
	if err != nil {
		return nil, err
	}
	if found && before.PluginID == v.PluginID && before.ExternalID == v.ExternalID {
		if v, err = keepPlace(before, v); err != nil {
			return nil, err
		}
	}
	if len(v.Topologies) == 0 { // nobody but the operator knows where it is
		v.Topologies = v.Topology.Required
	}
	provider, warnings, err := h.Controllers.Validate(ctx, v)
	if err != nil {
		return nil, err
	}
	v.Provider = provider
	if v.Capacity > 0 && v.CapacityMin > v.Capacity {
		warnings = append(warnings,
			fmt.Sprintf("capacity_min is above the volume's capacity, %d bytes, and registering it does "+
				"not grow it: pannier volume expand does", v.Capacity))
	}
	if v, err = h.put(ctx, v, 0); err != nil {
		return nil, fmt.Errorf("register volume %q: %w", v.VolumeRef, err)
	}
	h.volumeEvent("registered", v)
	shown, err := h.shownNow(ctx, v.VolumeRef)
	return &hostv1.RegisterVolumeResponse{Volume: shown, Warnings: warnings}, err
}

// keepPlace keeps what the driver returned at a volume's creation, or was told since, when it is registered again.
// Where it is does not change with a definition.
func keepPlace(before, v claim.Volume) (claim.Volume, error) {
	given := len(v.Topology.Required)+len(v.Topology.Preferred) > 0
	if len(before.Topologies) > 0 && given && (!sameTopologies(before.Topology.Required, v.Topology.Required) ||
		!sameTopologies(before.Topology.Preferred, v.Topology.Preferred)) {
		return v, call.Invalid(fmt.Sprintf("volume %q", v.VolumeRef), "topology_request", "cannot change while the volume is "+
			"registered: leave it out to keep what it has, or deregister the volume first")
	}
	if !given {
		v.Topology = before.Topology
	}
	v.Capacity, v.Topologies, v.MutableParameters = before.Capacity, before.Topologies, before.MutableParameters
	return v, nil
}

// CreateVolume makes a volume at its driver and registers it. If it exists with the same definition it is returned;
// an interrupted creation is finished.
func (h *Handler) CreateVolume(ctx context.Context,
	req *hostv1.CreateVolumeRequest,
) (*hostv1.CreateVolumeResponse, error) {
	v, err := h.creation(ctx, req.GetSpec())
	if err != nil {
		return nil, err
	}
	unlock, err := h.Controllers.Exclusive(ctx, v.VolumeRef)
	if err != nil {
		return nil, err
	}
	defer unlock()
	exists, warnings, err := h.created(ctx, v, req.GetNode())
	if err != nil {
		return nil, err
	}
	if !exists {
		places, err := h.place(ctx, v, req.GetNode())
		if err != nil {
			return nil, err
		}
		if err := h.create(ctx, v, places); err != nil {
			return nil, err
		}
	}
	shown, err := h.shownNow(ctx, v.VolumeRef)
	return &hostv1.CreateVolumeResponse{Volume: shown, Warnings: append(warnings, shown.GetWarnings()...)}, err
}

// CheckVolume does all that CreateVolume does before it asks the driver for the volume.
func (h *Handler) CheckVolume(ctx context.Context,
	req *hostv1.CheckVolumeRequest,
) (*hostv1.CheckVolumeResponse, error) {
	v, err := h.creation(ctx, req.GetSpec())
	if err != nil {
		return nil, err
	}
	exists, warnings, err := h.created(ctx, v, req.GetNode())
	resp := &hostv1.CheckVolumeResponse{Exists: exists, Warnings: warnings}
	if err != nil || exists {
		return resp, err
	}
	places, err := h.place(ctx, v, req.GetNode())
	if err == nil {
		resp.DriverName, err = h.Controllers.CheckCreate(ctx, v, places)
	}
	return resp, err
}

// place decides where a volume is made: where its definition says, where its source is, on the named node, or on the
// caller's.
func (h *Handler) place(ctx context.Context, v claim.Volume, named string) (places []claim.Topology, err error) {
	if named == "" && len(v.Topology.Required)+len(v.Topology.Preferred) == 0 {
		if places, err = h.sourcePlaces(ctx, v); err != nil || len(places) > 0 {
			return places, err
		}
	}
	node := h.Name
	if cert := call.CallerOf(ctx).Cert; cert != nil && cert.Role != pki.CLI {
		node = cert.Name
	}
	return h.Controllers.Place(v, cmp.Or(named, node), named != "")
}

// sourcePlaces returns where the volume to clone is accessible from, or the one that the snapshot was taken of; nil:
// the ledger has none.
func (h *Handler) sourcePlaces(ctx context.Context, v claim.Volume) (places []claim.Topology, err error) {
	switch {
	case v.CloneID != "":
		source, _, err := h.findVolume(ctx, claim.VolumeRef{Namespace: v.Namespace, ID: v.CloneID})
		return source.Topologies, err
	case v.SnapshotID != "":
		id, _, err := h.snapshotID(ctx, v.Namespace, v.PluginID, v.SnapshotID)
		if err != nil {
			return nil, err
		}
		return h.snapshotPlaces(ctx, v.PluginID, id)
	}
	return nil, nil
}

// creation converts and checks the spec of a volume to create.
func (h *Handler) creation(ctx context.Context, spec *hostv1.VolumeSpec) (claim.Volume, error) {
	v, err := h.definition(spec)
	if err != nil {
		return v, err
	}
	if wrong := v.Problems(); len(wrong) > 0 {
		return v, wrong[0]
	}
	return v, h.mayUse(ctx, v)
}

// created reports whether the volume to create is registered with the same definition. It is an error if it is
// registered with another one, or names a volume at the driver.
func (h *Handler) created(ctx context.Context, v claim.Volume, node string) (exists bool, warnings []string,
	err error,
) {
	before, found, err := h.findVolume(ctx, v.VolumeRef)
	switch {
	case err != nil:
		return false, nil, err
	case found && before.Mark != nil:
		return false, nil, before.Mark.Refuse(before.VolumeRef, "", time.Now())
	case found && node != "" && !h.Controllers.Reaches(before, node):
		return true, nil, fmt.Errorf("volume %q %w: it is not accessible from node %q (see: pannier volume status %s)",
			before.VolumeRef, ErrDefined, node, before.ID)
	case found:
		return true, nil, h.sameDefinition(before, v)
	case v.ExternalID != "":
		return false, nil, call.Invalid(fmt.Sprintf("volume %q", v.VolumeRef), "external_id",
			"is the driver's to give when a volume is created: leave it out, or register the volume that exists")
	case len(v.Context) > 0:
		warnings = append(warnings, "context is not used: the driver gives one when a volume is created")
	}
	return false, warnings, nil
}

func (h *Handler) create(ctx context.Context, v claim.Volume, places []claim.Topology) error {
	source, err := h.cloneSource(ctx, v)
	if err != nil {
		return err
	}
	asked := v
	asked.CloneID = source
	if v.SnapshotID != "" {
		// A driver that does not answer this answers the creation: its error has the reason.
		if from, err := h.sourceSnapshot(ctx, v); err == nil && from != nil && !from.Ready {
			return fmt.Errorf("volume %q: snapshot %q %w at driver %q: repeat when the driver lists it as ready (pannier volume "+
				"snapshot list -driver %s)", v.VolumeRef, v.SnapshotID, errNotReady, v.PluginID, v.PluginID)
		}
	}
	if asked.SnapshotID, _, err = h.snapshotID(ctx, v.Namespace, v.PluginID, v.SnapshotID); err != nil {
		return err
	}
	made, err := h.Controllers.Create(ctx, asked, places)
	if err != nil {
		return err
	}
	made.CloneID, made.SnapshotID = v.CloneID, v.SnapshotID
	switch _, err := h.put(ctx, made, 0); {
	case errors.Is(err, claim.ErrDuplicate): // whose it is may be hidden from the caller
		return fmt.Errorf("volume %q: driver %q answered its creation with the external id %q, which %w: the driver gives one id "+
			"to several volumes; nothing was registered", v.VolumeRef, v.PluginID, made.ExternalID, claim.ErrDuplicate)
	case err != nil:
		return fmt.Errorf(
			"volume %q exists at driver %q as %q, but it could not be registered: %w; create it again to finish: it is not made twice",
			v.VolumeRef, v.PluginID, made.ExternalID, err)
	}
	h.volumeEvent("created", v)
	return nil
}

// cloneSource returns the external id of the volume to clone: clone_id may name a registered volume of the same
// namespace and driver, or be the driver's own id.
func (h *Handler) cloneSource(ctx context.Context, v claim.Volume) (string, error) {
	if v.CloneID == "" {
		return "", nil
	}
	source, found, err := h.findVolume(ctx, claim.VolumeRef{Namespace: v.Namespace, ID: v.CloneID})
	if err != nil || !found || source.PluginID != v.PluginID {
		return v.CloneID, err
	}
	return source.ExternalID, nil
}

// put writes a volume to the ledger, and ends the act with the mark; 0: there is none. If the key that encrypts secrets
// was rotated meanwhile they are re-encrypted, once this server has the new key.
func (h *Handler) put(ctx context.Context, v claim.Volume, mark uint64) (claim.Volume, error) {
	failpoint.Here("volume", "put")
	defer failpoint.Here("volume", "written")
	for deadline := time.Now().Add(newKeyPatience); ; {
		result, err := cluster.Apply(ctx, h.Ledger, &command.RegisterVolume{Volume: v, Mark: mark})
		if err == nil {
			return result.Volume, nil
		}
		if !errors.Is(err, claim.ErrOldKey) || ctx.Err() != nil || time.Now().After(deadline) {
			return v, err
		}
		if h.Sealer.Named() == v.SecretsKey {
			select {
			case <-time.After(newKeyPause):
			case <-ctx.Done():
			}
			continue
		}
		if v.SealedSecrets, v.SecretsKey, err = h.Sealer.Reseal(v.SealedSecrets,
			secrets.ForVolume(v.Namespace, v.ID)); err != nil {
			return v, err
		}
	}
}

// How long this server may take to receive a new key, and the pause between two checks.
const (
	newKeyPatience = 10 * time.Second
	newKeyPause    = 10 * time.Millisecond
)

// shownNow reads a volume that was just written.
func (h *Handler) shownNow(ctx context.Context, ref claim.VolumeRef) (*hostv1.Volume, error) {
	v, claims, err := h.readVolume(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("read volume %q after it was written: %w", ref, err)
	}
	return h.shownVolume(v, claims), nil
}

// definition converts a volume's spec, and encrypts its secrets. What claim.Definition.Problems finds is not looked
// for here.
func (h *Handler) definition(spec *hostv1.VolumeSpec) (claim.Volume, error) {
	v := claim.Volume{Definition: convert.From[claim.Definition](spec)}
	v.Namespace, v.Name = call.NamespaceOr(v.Namespace), cmp.Or(v.Name, v.ID)
	if err := v.VolumeRef.Validate(); err != nil {
		return v, err // secrets are encrypted for a valid reference only
	}
	object := fmt.Sprintf("volume %q", v.VolumeRef)
	if spec.GetType() != volumeType {
		return v, call.Invalid(object, "type", fmt.Sprintf("%q is not supported: write %q", spec.GetType(), volumeType))
	}
	const shown = "is " + call.Redacted + ", as it reads back: give the value itself"
	for key, value := range spec.GetSecrets() {
		if value == call.Redacted {
			return v, call.Invalid(object, "secrets."+key, shown)
		}
	}
	if slices.ContainsFunc(v.MountOptions.Flags, func(f string) bool { return strings.HasSuffix(f, call.Redacted) }) {
		return v, call.Invalid(object, "mount_options.mount_flags", shown)
	}
	var err error
	if v.SealedSecrets, v.SecretsKey, err = h.Sealer.Seal(spec.GetSecrets(),
		secrets.ForVolume(v.Namespace, v.ID)); err != nil {
		return v, err
	}
	// Checked before a driver makes a volume that the ledger cannot store.
	if _, err := command.Encode(&command.RegisterVolume{Volume: v}); err != nil {
		return v, fmt.Errorf("%s: its definition: %w", object, err)
	}
	return v, nil
}

// ErrDefined is returned for a volume that exists with another definition.
var ErrDefined = errcode.AlreadyExists.New("exists with another definition")

// sameDefinition returns an error if a registered volume differs from what is requested. What the driver added is not
// compared.
func (h *Handler) sameDefinition(is, want claim.Volume) error {
	var differs []string
	compare := func(field string, same bool) {
		if !same {
			differs = append(differs, field)
		}
	}
	compare("name", is.Name == want.Name)
	compare("plugin_id", is.PluginID == want.PluginID)
	compare("external_id", want.ExternalID == "" || is.ExternalID == want.ExternalID)
	compare("capacity_min, capacity_max", fits(is, want))
	compare("clone_id", is.CloneID == want.CloneID)
	compare("snapshot_id", is.SnapshotID == want.SnapshotID)
	compare("capability", sameSet(is.Capabilities, want.Capabilities))
	compare("mount_options", is.MountOptions.FSType == want.MountOptions.FSType &&
		is.MountOptions.Group == want.MountOptions.Group &&
		slices.Equal(is.MountOptions.Flags, want.MountOptions.Flags))
	compare("topology_request", sameTopologies(is.Topology.Required, want.Topology.Required) &&
		sameTopologies(is.Topology.Preferred, want.Topology.Preferred))
	compare("parameters", maps.Equal(is.Parameters, want.Parameters))
	additional := secrets.ForVolume(is.Namespace, is.ID)
	was, err := h.Sealer.Unseal(is.SealedSecrets, additional)
	if err != nil {
		return err
	}
	now, err := h.Sealer.Unseal(want.SealedSecrets, additional)
	if err != nil {
		return err
	}
	compare("secrets", maps.Equal(was, now))
	if len(differs) > 0 {
		return fmt.Errorf(
			"volume %q %w: what differs is %s; give it another id, or register the new definition (capacity: pannier volume expand)",
			is.VolumeRef, ErrDefined, strings.Join(differs, "; "))
	}
	return nil
}

// fits reports whether a volume has the requested size. It may have been expanded since its creation.
func fits(is, want claim.Volume) bool {
	if is.Capacity == 0 {
		return is.CapacityMin == want.CapacityMin && is.CapacityMax == want.CapacityMax
	}
	return is.Capacity >= want.CapacityMin && (want.CapacityMax == 0 || is.Capacity <= want.CapacityMax)
}

func sameSet(a, b []claim.Capability) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(c claim.Capability) bool { return !slices.Contains(b, c) })
}

func sameTopologies(a, b []claim.Topology) bool {
	return slices.EqualFunc(a, b, func(a, b claim.Topology) bool { return maps.Equal(a.Segments, b.Segments) })
}

// DeregisterVolume removes a volume from the ledger and leaves it at its driver.
func (h *Handler) DeregisterVolume(ctx context.Context,
	req *hostv1.DeregisterVolumeRequest,
) (*hostv1.DeregisterVolumeResponse, error) {
	ref, unlock, err := h.lockRef(ctx, req)
	if err != nil {
		return nil, err
	}
	defer unlock()
	result, err := cluster.DeregisterVolume(ctx, h.Ledger, ref, req.GetForce())
	if err != nil {
		return nil, err
	}
	h.volumeEvent("deregistered", result.Volume)
	return &hostv1.DeregisterVolumeResponse{LeftBehind: call.Each(result.LeftBehind, call.ShownClaim)}, nil
}

// DeleteVolume deletes a volume at its driver, then from the ledger. If it is interrupted the leader repeats it:
// drivers accept a second delete.
func (h *Handler) DeleteVolume(ctx context.Context,
	req *hostv1.DeleteVolumeRequest,
) (*hostv1.DeleteVolumeResponse, error) {
	ref, unlock, err := h.lockRef(ctx, req)
	if err != nil {
		return nil, err
	}
	defer unlock()
	v, _, err := h.readVolume(ctx, ref)
	switch {
	case errors.Is(err, claim.ErrVolumeNotFound) && call.CallerOf(ctx).Key != "":
		// An earlier attempt of this call may have deleted it. Then its key belongs to that attempt's command.
		err = h.forgetDeleted(ctx, ref, 0, call.CallerOf(ctx).Key)
	case err == nil:
		err = h.delete(ctx, v, req.GetSecrets())
	}
	return &hostv1.DeleteVolumeResponse{}, err
}

// delete deletes a volume, whose lock is held, and that nobody can claim until the driver has answered.
func (h *Handler) delete(ctx context.Context, v claim.Volume, secrets map[string]string) error {
	a := h.newAct(ctx, v, claim.Mark{Act: claim.Deleting})
	if err := h.Controllers.Delete(ctx, v, secrets, a.begin); err != nil {
		return a.failed(ctx, err)
	}
	failpoint.Here("volume", "deleted")
	if err := h.forgetDeleted(ctx, v.VolumeRef, v.CreateIndex, a.mark.Call); err != nil {
		return fmt.Errorf("volume %q is deleted at driver %q, but it is still registered: %w; delete it again to finish",
			v.VolumeRef, v.PluginID, err)
	}
	h.volumeEvent("deleted", v)
	return nil
}

// forgetDeleted deregisters the volume that was created at an index, if nobody has, by the key of the call that
// deletes it.
func (h *Handler) forgetDeleted(ctx context.Context, ref claim.VolumeRef, created uint64, key string) error {
	c := &command.DeregisterVolume{Ref: ref, Deleted: created}
	command.SetKey(c, key)
	_, err := cluster.Apply(ctx, h.Ledger, c)
	if errors.Is(err, claim.ErrConflict) || created != 0 && errors.Is(err, claim.ErrVolumeNotFound) {
		return nil
	}
	return err
}

// mayUse checks that a definition uses no other namespace's data: volumes, clone sources and snapshots are named by
// the driver's ids, which have no namespaces. If another namespace has registered such an id, the caller needs there
// the permission that it would need for that volume itself. The error names that namespace only to a caller that may
// list its volumes. A source that the ledger does not know may be anybody's, such as a snapshot of a volume of another
// cluster: it needs a permission of its own.
func (h *Handler) mayUse(ctx context.Context, v claim.Volume) error {
	c := call.CallerOf(ctx)
	if c.IsManagement() {
		return nil
	}
	if err := h.mayUseVolume(ctx, v, v.ExternalID, acl.CSIWriteVolume, false); err != nil {
		return err
	}
	if v.CloneID != "" {
		source, err := h.cloneSource(ctx, v)
		if err != nil {
			return err
		}
		return h.mayUseVolume(ctx, v, source, acl.CSIReadVolume, true)
	}
	if v.SnapshotID == "" {
		return nil
	}
	id, _, err := h.snapshotID(ctx, v.Namespace, v.PluginID, v.SnapshotID)
	if err != nil {
		return err
	}
	known, err := h.knownSnapshots(ctx, v.PluginID, id)
	if err != nil {
		return err
	}
	if len(known) > 0 { // whatever has become of its volume
		return mayUseOf(c, v, known, func(s claim.Snapshot) string { return s.Namespace }, acl.CSIReadVolume)
	}
	if !c.AllowNamespace(v.Namespace, acl.CSIForeignSnapshots) {
		return lacks(c, v, acl.CSIReadVolume)
	}
	from, err := h.sourceSnapshot(ctx, v)
	if err != nil || from == nil {
		return err
	}
	return h.mayUseVolume(ctx, v, from.VolumeExternalID, acl.CSIReadVolume, false)
}

// mayUseVolume checks that the caller may use, for the volume v, the one that its driver knows by an id. known requires
// that the ledger has it, or that the caller may use others.
func (h *Handler) mayUseVolume(ctx context.Context, v claim.Volume, id string, needs acl.Capability, known bool) error {
	c := call.CallerOf(ctx)
	return h.Ledger.Read(ctx, func(tx *state.ReadTx) error {
		registered, err := tx.VolumesByExternalID(v.PluginID, id)
		if err != nil {
			return err
		}
		if len(registered) == 0 && known && !c.AllowNamespace(v.Namespace, acl.CSIForeignSnapshots) {
			return lacks(c, v, needs)
		}
		return mayUseOf(c, v, registered, func(r claim.VolumeRef) string { return r.Namespace }, needs)
	})
}

// mayUseOf checks that the caller has a capability in the namespaces of all that has an id, but for the volume's own.
func mayUseOf[T any](c *call.Caller, v claim.Volume, all []T, namespace func(T) string, needs acl.Capability) error {
	for _, one := range all {
		other := namespace(one)
		if other == v.Namespace {
			continue
		}
		err := c.MayIn(other, needs)
		if err != nil && !c.AllowNamespace(other, acl.CSIListVolume) {
			err = lacks(c, v, needs)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// lacks is the refusal of another namespace's data, and of what nobody has: it does not tell which.
func lacks(c *call.Caller, v claim.Volume, needs acl.Capability) error {
	missing := fmt.Sprintf("the capability %q on the namespace that has registered what external_id, clone_id or snapshot_id "+
		"names at driver %q", needs, v.PluginID)
	if needs == acl.CSIReadVolume {
		missing += fmt.Sprintf(" or, if none has, %q on namespace %q", acl.CSIForeignSnapshots, v.Namespace)
	}
	return c.Lacks(missing)
}

// errNotReady: the driver still prepares a snapshot (ready_to_use; CSI spec, CreateSnapshot).
var errNotReady = errcode.FailedPrecondition.New("is not ready to use yet")

// sourceSnapshot returns the snapshot that a volume is made of, as the driver lists it; nil: it does not.
func (h *Handler) sourceSnapshot(ctx context.Context, v claim.Volume) (*storage.Snapshot, error) {
	open, err := h.Sealer.Unseal(v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID))
	if err != nil {
		return nil, err
	}
	id, _, err := h.snapshotID(ctx, v.Namespace, v.PluginID, v.SnapshotID)
	if err != nil {
		return nil, err
	}
	list, err := h.Controllers.ListSnapshots(ctx, v.PluginID, storage.ListSnapshotsRequest{
		Page: storage.Page{Max: 1}, SnapshotID: id, Secrets: open,
	})
	if status.Code(err) == codes.Unimplemented {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the volume of snapshot %q: %w", v.SnapshotID, err)
	}
	for _, snapshot := range list.Snapshots {
		if snapshot.ID == id {
			return &snapshot, nil
		}
	}
	return nil, nil
}
