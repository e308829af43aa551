package controllers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/sdk/storage"
)

// Validate asks the driver whether the volume supports what its definition says
// (ValidateVolumeCapabilities), and returns the driver's name. warnings are for the operator.
func (c *Controllers) Validate(ctx context.Context, v claim.Volume) (provider string, warnings []string, err error) {
	doing := fmt.Sprintf("validate volume %q (external id %q)", v.VolumeRef, v.ExternalID)
	err = c.call(ctx, doing, v.PluginID, anyController.of(v),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			volume, err := c.callVolume(ctx, d, v, claim.Capability{}, nil)
			if err != nil {
				return err
			}
			warnings, err = s.ValidateVolume(ctx, d.Ref(), storage.ValidateRequest{
				Volume: volume, Capabilities: capabilities(v), Parameters: v.Parameters,
			})
			provider = d.Fingerprint.Provider
			return err
		})
	return provider, warnings, err
}

// Create makes the volume at its driver, or finds the one that an earlier call made, and returns v with the driver's
// external id, capacity, context and topologies. The driver is asked for its room first. One without enough is still
// asked, once, since an earlier call may have made the volume and taken that room; its refusal then has how much there
// is. places are where it may be made (Place).
func (c *Controllers) Create(ctx context.Context, v claim.Volume, places []claim.Topology) (claim.Volume, error) {
	doing := fmt.Sprintf("create volume %q", v.VolumeRef)
	err := c.call(ctx, doing, v.PluginID, provisioning.of(v).in(places),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			topology := topologyRequest(v, d, places)
			volume, err := c.callVolume(ctx, d, v, claim.Capability{}, nil)
			if err != nil {
				return err
			}
			cluster, err := c.cfg.ClusterID(ctx)
			if err != nil {
				return fmt.Errorf("read the cluster's id: %w", err)
			}
			short := c.short(ctx, s, d, v, topology)
			made, err := s.Create(ctx, d.Ref(), storage.CreateRequest{
				Name:        volumeName(cluster, v),
				CapacityMin: v.CapacityMin, CapacityMax: v.CapacityMax,
				Capabilities: capabilities(v),
				Parameters:   v.Parameters, Secrets: volume.Secrets,
				SnapshotID: v.SnapshotID, CloneID: v.CloneID,
				Topology: topology,
				Full:     short != nil,
			})
			if code := status.Code(err); short != nil && (code == codes.ResourceExhausted || code == codes.OutOfRange) {
				return fmt.Errorf("%w: %w", short, err)
			}
			if err != nil {
				return err
			}
			if made.ExternalID == "" {
				return errors.New("the driver answered with success, but without a volume id")
			}
			if err := checkCapacity(v, made); err != nil {
				return err
			}
			v.ExternalID, v.Capacity, v.Context = made.ExternalID, made.Capacity, made.Context
			v.Provider, v.Warnings = d.Fingerprint.Provider, made.Warnings
			v.Topologies = claimTopologies(made.AccessibleTopology)
			return nil
		})
	return v, err
}

// CheckCreate checks what can be known of a creation before the driver is asked for it: that a controller of the driver
// is healthy, can create volumes of the source that v has, and has room. It returns the name that the volume would have
// at the driver. places are where it may be made (Place).
func (c *Controllers) CheckCreate(ctx context.Context, v claim.Volume, places []claim.Topology) (name string,
	err error,
) {
	cluster, err := c.cfg.ClusterID(ctx)
	if err != nil {
		return "", fmt.Errorf("read the cluster's id: %w", err)
	}
	doing := fmt.Sprintf("check the creation of volume %q", v.VolumeRef)
	err = c.call(ctx, doing, v.PluginID, provisioning.of(v).in(places),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			ctl := d.Fingerprint.Controller
			switch {
			case ctl == nil || !ctl.CreateDelete:
				return status.Error(codes.Unimplemented,
					"it creates no volumes: pannier volume register takes one that exists, by its external_id")
			case v.CloneID != "" && !ctl.Clone:
				return status.Error(codes.Unimplemented, "it clones no volumes: leave clone_id out")
			case v.SnapshotID != "" && !ctl.CreateDeleteSnapshot:
				return status.Error(codes.Unimplemented, "it has no snapshots: leave snapshot_id out")
			}
			if d.Endpoint != "" { // of another node's driver the allowed flags are not known here
				if err := d.CheckMountFlags(v.MountOptions.Flags); err != nil {
					return err
				}
			}
			if err := c.short(ctx, s, d, v, topologyRequest(v, d, places)); err != nil {
				return status.Error(codes.ResourceExhausted, err.Error())
			}
			return nil
		})
	return volumeName(cluster, v), err
}

// checkCapacity refuses a volume that is smaller or larger than it may be; a driver need not report a capacity. The
// volume is not deleted: it may be one that was there before, with data.
func checkCapacity(v claim.Volume, made storage.CreateResponse) error {
	var wrong string
	switch {
	case made.Capacity == 0:
		return nil
	case made.Capacity < v.CapacityMin:
		wrong = fmt.Sprintf("less than capacity_min, %d", v.CapacityMin)
	case v.CapacityMax > 0 && made.Capacity > v.CapacityMax:
		wrong = fmt.Sprintf("more than capacity_max, %d", v.CapacityMax)
	default:
		return nil
	}
	return status.Errorf(codes.OutOfRange, "the driver made volume %q of %d bytes, which is %s. It is there, and not "+
		"registered: register it with this external_id to use it or to delete it, or change the capacity",
		made.ExternalID, made.Capacity, wrong)
}

// Delete deletes the volume at its driver. It may be repeated. secrets, if given, replace the
// volume's own. begin is called before each call to a controller: its error ends Delete.
func (c *Controllers) Delete(ctx context.Context, v claim.Volume, secrets map[string]string,
	begin func(ctx context.Context) error,
) error {
	doing := fmt.Sprintf("delete volume %q (external id %q)", v.VolumeRef, v.ExternalID)
	return c.everywhere(ctx, doing, v.PluginID, provisioning.of(v).with(secrets),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			volume, err := c.callVolume(ctx, d, v, claim.Capability{}, secrets)
			if err != nil {
				return err
			}
			if err := begin(ctx); err != nil {
				return &finalError{err}
			}
			return s.Delete(ctx, d.Ref(), volume)
		})
}

// List returns a page of the driver's volumes, registered or not.
func (c *Controllers) List(ctx context.Context, driverID string, page storage.Page) (list storage.ListResponse,
	err error,
) {
	list.Next, err = c.pageOf(ctx, "list the volumes", driverID, listing, page,
		func(ctx context.Context, s storage.Client, d drivers.Driver, page storage.Page) (int, string, error) {
			got, err := s.List(ctx, d.Ref(), page)
			list.Volumes = append(list.Volumes, got.Volumes...)
			return len(got.Volumes), got.Next, err
		})
	return list, err
}

// Expand grows the volume at its driver to at least minBytes and at most maxBytes (0: no limit).
// It may be repeated. offline is called before each call to a controller that expands only while nobody uses the
// volume: its error ends Expand. A driver whose controller lacks
// EXPAND_VOLUME is not called if its node service has it: the node alone expands then (CSI spec,
// NodeExpandVolume).
func (c *Controllers) Expand(ctx context.Context, v claim.Volume, minBytes, maxBytes int64,
	offline func(ctx context.Context) error,
) (grown storage.ExpandResponse, err error) {
	doing := fmt.Sprintf("expand volume %q (external id %q)", v.VolumeRef, v.ExternalID)
	byController := false
	err = c.call(ctx, doing, v.PluginID, expanding.of(v),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			byController = true
			volume, err := c.callVolume(ctx, d, v, v.Modes(), nil)
			if err != nil {
				return err
			}
			if ctl := d.Fingerprint.Controller; ctl != nil && ctl.Expand && !ctl.OnlineExpand {
				if err := offline(ctx); err != nil {
					return &finalError{err}
				}
			}
			grown, err = s.Expand(ctx, d.Ref(),
				storage.ExpandRequest{Volume: volume, CapacityMin: minBytes, CapacityMax: maxBytes})
			return err
		})
	switch {
	case err != nil || byController:
		return grown, err
	case c.expandsOnNodes(v.PluginID):
		return storage.ExpandResponse{Capacity: minBytes, NodeExpansionRequired: true}, nil
	}
	return grown, done(doing, v.PluginID,
		status.Error(codes.Unimplemented, "neither its controllers nor its nodes can expand volumes (EXPAND_VOLUME)"))
}

// Modify changes mutable parameters of the volume at its driver (ControllerModifyVolume). It may be repeated. secrets,
// if given, replace the volume's own.
func (c *Controllers) Modify(ctx context.Context, v claim.Volume, parameters, secrets map[string]string) error {
	doing := fmt.Sprintf("modify volume %q (external id %q)", v.VolumeRef, v.ExternalID)
	return c.call(ctx, doing, v.PluginID, anyController.of(v).with(secrets),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			volume, err := c.callVolume(ctx, d, v, v.Modes(), secrets)
			if err != nil {
				return err
			}
			return s.Modify(ctx, d.Ref(), storage.ModifyRequest{Volume: volume, Parameters: parameters})
		})
}

// CreateSnapshot takes a snapshot of the volume, or returns the existing one of that name. Names are
// unique per volume; drivers want them unique among all snapshots, so they get a longer one.
// secrets, if given, replace the volume's own.
func (c *Controllers) CreateSnapshot(ctx context.Context, v claim.Volume, name string, parameters,
	secrets map[string]string,
) (snapshot storage.Snapshot, err error) {
	doing := fmt.Sprintf("take snapshot %q of volume %q (external id %q)", name, v.VolumeRef, v.ExternalID)
	err = c.call(ctx, doing, v.PluginID, snapshotting.of(v).with(secrets),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			volume, err := c.callVolume(ctx, d, v, v.Modes(), secrets)
			if err != nil {
				return err
			}
			cluster, err := c.cfg.ClusterID(ctx)
			if err != nil {
				return fmt.Errorf("read the cluster's id: %w", err)
			}
			snapshot, err = s.CreateSnapshot(ctx, d.Ref(), storage.CreateSnapshotRequest{
				Name:   driverName(cluster, "snapshot", v.Namespace, v.ID, name),
				Volume: volume, Parameters: parameters,
			})
			return err
		})
	return snapshot, err
}

// DeleteSnapshot deletes a snapshot by the driver's id of it. It may be repeated. places are where its volume was; nil:
// it is not known.
func (c *Controllers) DeleteSnapshot(ctx context.Context, driverID, snapshotID string, secrets map[string]string,
	places []claim.Topology,
) error {
	doing := fmt.Sprintf("delete snapshot %q", snapshotID)
	return c.everywhere(ctx, doing, driverID, snapshotting.in(places).with(secrets),
		func(ctx context.Context, s storage.Client, d drivers.Driver) error {
			return s.DeleteSnapshot(ctx, d.Ref(), snapshotID, secrets)
		})
}

// ListSnapshots returns a page of the driver's snapshots.
func (c *Controllers) ListSnapshots(ctx context.Context, driverID string,
	req storage.ListSnapshotsRequest,
) (list storage.ListSnapshotsResponse, err error) {
	list.Next, err = c.pageOf(ctx, "list the snapshots", driverID, listingSnaps.with(req.Secrets), req.Page,
		func(ctx context.Context, s storage.Client, d drivers.Driver, page storage.Page) (int, string, error) {
			req := req
			req.Page = page
			got, err := s.ListSnapshots(ctx, d.Ref(), req)
			list.Snapshots = append(list.Snapshots, got.Snapshots...)
			return len(got.Snapshots), got.Next, err
		})
	return list, err
}

// callVolume is a registered volume in the form that a call to its driver needs, with its secrets opened for this
// call. secrets, if given, replace the volume's own.
func (c *Controllers) callVolume(ctx context.Context, d drivers.Driver, v claim.Volume, modes claim.Capability,
	secrets map[string]string,
) (storage.Volume, error) {
	if err := v.CheckProvider(d.Fingerprint.Provider); err != nil {
		return storage.Volume{}, err
	}
	if len(secrets) == 0 {
		var err error
		if secrets, err = c.cfg.Secrets(ctx, v); err != nil {
			return storage.Volume{}, fmt.Errorf("open the secrets of volume %q: %w", v.VolumeRef, err)
		}
	}
	out := drivers.StorageVolume(v.Definition, modes)
	out.Secrets = secrets
	return out, nil
}

// capabilities are all that the volume may be claimed with, with its mount options.
func capabilities(v claim.Volume) []storage.Capability {
	var out []storage.Capability
	for _, have := range v.Capabilities {
		out = append(out, drivers.StorageCapability(v.MountOptions, have))
	}
	return out
}

// maxName is the longest name that every driver accepts, in bytes (CSI spec, "Size Limits").
const maxName = 128

// volumeName is the name under which a driver makes a volume: its name, or its namespace and id if it has no name of
// its own, and a hash of cluster, namespace and id.
//
// A driver answers a name that it knows with the volume that has it (CSI spec, CreateVolume), so the name alone would
// give one namespace, or one cluster, the volume of another. Characters that mean something in a path or to a shell are
// replaced, because drivers name directories, buckets and devices by it.
func volumeName(clusterID string, v claim.Volume) string {
	label := ""
	if v.Name != v.ID {
		label = strings.Trim(plain(v.Name), "-.")
	}
	return hashed(cmp.Or(label, v.Namespace+"-"+v.ID), clusterID, "volume", v.Namespace, v.ID)
}

// plain replaces what an id (claim.CheckID) does not have.
func plain(name string) string {
	return strings.Map(func(r rune) rune {
		if !claim.InID(r) {
			return '-'
		}
		return r
	}, name)
}

// driverName is the name under which a driver makes something. The same parts always give the same
// name, so that a create can be repeated; other parts give another name.
func driverName(clusterID, kind string, parts ...string) string {
	return hashed(strings.Join(parts, "-"), clusterID, kind, parts...)
}

// hashed adds a hash of the parts to a name, and shortens it to what every driver accepts. The hash is needed because
// joined parts are ambiguous: "a-b","c" and "a","b-c".
func hashed(name, clusterID, kind string, parts ...string) string {
	h := sha256.New()
	for _, s := range append([]string{clusterID, kind}, parts...) {
		fmt.Fprintf(h, "%d:%s", len(s), s)
	}
	suffix := "-" + hex.EncodeToString(h.Sum(nil)[:8])
	name = plain(name)
	return name[:min(len(name), maxName-len(suffix))] + suffix
}

// topologyRequest is what a driver is asked for. A driver with topology gets the places where the volume may be made;
// one without refuses what the definition has.
func topologyRequest(v claim.Volume, d drivers.Driver, places []claim.Topology) storage.TopologyRequirement {
	req := storage.TopologyRequirement{
		Requisite: topologies(v.Topology.Required), Preferred: topologies(v.Topology.Preferred),
	}
	if ctl := d.Fingerprint.Controller; ctl != nil && ctl.Topology && len(req.Requisite)+len(req.Preferred) == 0 {
		req.Requisite, req.Preferred = topologies(places), topologies(places)
	}
	return req
}

func topologies(all []claim.Topology) []storage.Topology {
	var out []storage.Topology
	for _, t := range all {
		out = append(out, t.Segments)
	}
	return out
}

func claimTopologies(all []storage.Topology) []claim.Topology {
	var out []claim.Topology
	for _, t := range all {
		out = append(out, claim.Topology{Segments: t})
	}
	return out
}
