package volumes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/peer/watcher"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/workload"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/convert"
	"github.com/pannier/pannier/sdk/storage"
)

// Handler serves pannier.host.v1.VolumeService.
type Handler struct {
	Name        string // of this node
	Log         hclog.Logger
	Ledger      Ledger
	Controllers *controllers.Controllers
	Drivers     *drivers.Registry
	Workloads   *workload.Manager
	// Watcher releases claims.
	Watcher *watcher.Watcher
	Events  *events.Bus
	// Sealer encrypts volumes' secrets before they enter the ledger.
	Sealer *secrets.Sealer
	// Nodes calls other nodes; nil: this host is in no cluster.
	Nodes Nodes
	// Heard is until when a node's claims are kept without another heartbeat, and when its last one was answered; nil:
	// there are none.
	Heard func(node string) (at, keepsTo time.Time)
}

// Ledger has the volumes and snapshots (cluster.Node).
type Ledger interface {
	cluster.Ledger
	call.Ledger
}

// Nodes asks other nodes about their mounts, while this server leads (peer.Nodes).
type Nodes interface {
	// ExpandVolume grows the mounts of a volume on a node. It may be repeated.
	ExpandVolume(ctx context.Context, node string, v claim.Volume, minBytes, maxBytes int64) (places int, err error)
	VolumeStats(ctx context.Context, node string, v claim.Volume) (storage.Stats, error)
	// Release reads how the release of a claim's workload goes on its node.
	Release(ctx context.Context, c claim.Claim) (workload.Release, error)
}

// GetVolume reads one volume with its claims, its usage where it is mounted, and its condition.
func (h *Handler) GetVolume(ctx context.Context, req *hostv1.GetVolumeRequest) (*hostv1.GetVolumeResponse, error) {
	ref, err := volumeRef(req.GetNamespace(), req.GetId())
	if err != nil {
		return nil, err
	}
	var v claim.Volume
	var claims []claim.Claim
	var driver claim.Driver
	meta, err := call.Read(ctx, h.Ledger, req, []state.Topic{
		state.TopicVolume(ref), state.TopicClaims(ref), state.TopicDrivers,
	}, func(tx *state.ReadTx) (err error) {
		if v, claims, err = volumeAndClaims(tx, ref); err == nil {
			driver, err = driverOf(tx, v)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	seen := h.look(ctx, v, claims)
	return &hostv1.GetVolumeResponse{
		Volume: showDriver(h.shownVolume(v, claims), v, driver), Usage: seen.usage(), Conditions: seen.conditions(),
		Meta: meta,
	}, nil
}

// driverOf reads the driver of a volume; empty: no node has it.
func driverOf(tx *state.ReadTx, v claim.Volume) (claim.Driver, error) {
	d, err := tx.Driver(v.PluginID)
	_, err = call.Found(err, claim.ErrDriverNotFound)
	return d, err
}

// showDriver adds to a volume what the ledger has of its driver.
func showDriver(shown *hostv1.Volume, v claim.Volume, d claim.Driver) *hostv1.Volume {
	if shown.GetProvider() == "" {
		shown.Provider, shown.ProviderVersion = d.Provider, d.Version
	}
	shown.ControllersHealthy, shown.ControllersExpected = int64(d.ControllersHealthy), int64(d.ControllersExpected)
	shown.NodesHealthy, shown.NodesExpected = int64(d.NodesHealthy), int64(d.NodesExpected)
	for _, node := range slices.Sorted(maps.Keys(d.Nodes)) {
		if len(v.Topologies) > 0 && v.CheckReachable(node, d.Nodes[node].Topology) == nil {
			shown.AccessibleNodes = append(shown.AccessibleNodes, node)
		}
	}
	return shown
}

// checkDriver returns an error that names the known drivers if no node has the driver, and the caller may list them.
func (h *Handler) checkDriver(ctx context.Context, tx *state.ReadTx, id string) error {
	if !call.CallerOf(ctx).Allow(acl.Plugin, acl.List) {
		return nil
	}
	all, err := tx.Drivers()
	if err != nil {
		return err
	}
	var known []string
	for _, d := range all {
		known = append(known, strconv.Quote(d.ID))
	}
	for _, d := range h.Drivers.List() {
		known = append(known, strconv.Quote(d.ID))
	}
	slices.Sort(known)
	known = slices.Compact(known)
	switch {
	case slices.Contains(known, strconv.Quote(id)):
		return nil
	case len(known) == 0:
		return fmt.Errorf("driver %q %w, nor is any other", id, claim.ErrDriverNotFound)
	default:
		return fmt.Errorf("driver %q %w; there is %s", id, claim.ErrDriverNotFound, strings.Join(known, ", "))
	}
}

// ListExternal lists a page of the volumes at a driver, registered or not.
func (h *Handler) ListExternal(ctx context.Context,
	req *hostv1.ListExternalRequest,
) (*hostv1.ListExternalResponse, error) {
	page, err := driverPage("list external volumes", req)
	if err != nil {
		return nil, err
	}
	list, err := h.Controllers.List(ctx, req.GetPluginId(), page)
	if err != nil {
		return nil, err
	}
	resp := &hostv1.ListExternalResponse{NextToken: list.Next}
	for _, v := range list.Volumes {
		shown := &hostv1.ExternalVolume{
			ExternalId: v.ExternalID, Capacity: v.Capacity, SnapshotId: v.SnapshotID, CloneId: v.CloneID,
			PublishedNodeIds: v.PublishedNodeIDs,
		}
		if v.Condition != nil {
			shown.Abnormal, shown.Condition = v.Condition.Abnormal, v.Condition.Message
		}
		resp.Volumes = append(resp.Volumes, shown)
	}
	return resp, nil
}

// readVolume reads a volume and its claims.
func (h *Handler) readVolume(ctx context.Context, ref claim.VolumeRef) (v claim.Volume, claims []claim.Claim,
	err error,
) {
	err = h.Ledger.ReadLatest(ctx, func(tx *state.ReadTx) (err error) {
		v, claims, err = volumeAndClaims(tx, ref)
		return err
	})
	return v, claims, err
}

func volumeAndClaims(tx *state.ReadTx, ref claim.VolumeRef) (v claim.Volume, claims []claim.Claim, err error) {
	if v, err = tx.Volume(ref); err != nil {
		return v, nil, err
	}
	claims, err = tx.Claims(ref)
	return v, claims, err
}

// lockRef locks the volume that a request names, which may not exist, against other changes.
func (h *Handler) lockRef(ctx context.Context, req call.Namespaced) (ref claim.VolumeRef, unlock func(), err error) {
	if ref, err = volumeRef(req.GetNamespace(), req.GetId()); err != nil {
		return ref, nil, err
	}
	unlock, err = h.Controllers.Exclusive(ctx, ref)
	return ref, unlock, err
}

// findVolume is readVolume for a volume that may not exist.
func (h *Handler) findVolume(ctx context.Context, ref claim.VolumeRef) (v claim.Volume, found bool, err error) {
	v, _, err = h.readVolume(ctx, ref)
	found, err = call.Found(err, claim.ErrVolumeNotFound)
	return v, found, err
}

// shownVolume returns a volume as the API shows it: with its claims, the state of their release, and its driver.
func (h *Handler) shownVolume(v claim.Volume, claims []claim.Claim) *hostv1.Volume {
	// If secrets cannot be decrypted their names are not shown: the next call to the driver reports why.
	open, _ := h.Sealer.Unseal(v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID))
	shown := convert.To[hostv1.Volume](v)
	shown.Claims = call.Each(claims, call.ShownClaim)
	shown.Spec.Type = volumeType
	call.Redact(shown.GetSpec().GetMountOptions())
	for key := range open {
		if shown.Spec.Secrets == nil {
			shown.Spec.Secrets = map[string]string{}
		}
		shown.Spec.Secrets[key] = call.Redacted
	}
	attempt, _ := h.Watcher.Attempt(v.VolumeRef)
	for n, c := range claims {
		if !c.State.Releasing() {
			continue
		}
		shown.Claims[n].LastError, shown.Claims[n].NextTryAt = attempt.Error, call.Time(attempt.NextAt)
		if r := h.ownRelease(c); r.Tries > 0 {
			shown.Claims[n].LastError, shown.Claims[n].NextTryAt = r.Error, call.Time(r.NextAt)
		}
	}
	d, err := h.Drivers.Get(v.PluginID)
	if err != nil {
		shown.DriverMessage = err.Error()
		return shown
	}
	shown.Provider, shown.ProviderVersion = d.Fingerprint.Provider, d.Fingerprint.Version
	shown.DriverHealthy, shown.DriverMessage = d.Healthy, d.Message
	return shown
}

// volumeRef returns the volume that a request names.
func volumeRef(namespace, id string) (claim.VolumeRef, error) {
	ref := claim.VolumeRef{Namespace: call.NamespaceOr(namespace), ID: id}
	return ref, ref.Validate()
}

// driverPage checks a request for a page of a driver's list.
func driverPage(object string, req interface {
	GetPluginId() string
	GetPerPage() int32
	GetPageToken() string
},
) (storage.Page, error) {
	if err := claim.CheckID(req.GetPluginId()); err != nil {
		return storage.Page{}, call.Invalid(object, "plugin_id", err.Error())
	}
	if req.GetPerPage() < 0 {
		return storage.Page{}, call.Invalid(object, "per_page", "must not be negative")
	}
	return storage.Page{Max: int(req.GetPerPage()), Token: req.GetPageToken()}, nil
}

// volumeEvent publishes what was done with a volume.
func (h *Handler) volumeEvent(kind string, v claim.Volume) {
	h.Events.Publish(events.Event{
		Topic: events.TopicVolume, Type: kind, Subject: v.String(), Details: map[string]string{"driver": v.PluginID},
	})
}

// snapshotEvent publishes what was done with a driver's snapshot, or group of snapshots, by its id; of is the volume,
// or the volumes, if they are known.
func (h *Handler) snapshotEvent(kind, driver, id, of string) {
	details := map[string]string{"driver": driver}
	if of != "" {
		details["volume"] = of
	}
	h.Events.Publish(events.Event{Topic: events.TopicSnapshot, Type: kind, Subject: id, Details: details})
}

// maxPerPage bounds a page of ListVolumes.
const maxPerPage = 1000

// volumeStates are the states that ListVolumes can be asked for.
var volumeStates = []string{"free", "taken", "releasing"}

// ListVolumes lists volumes by namespace, driver, node or state, with their claims. Only those that are in the answer
// are read: a page of a long list costs little more than the names of all.
func (h *Handler) ListVolumes(ctx context.Context, m *hostv1.ListVolumesRequest) (*hostv1.ListVolumesResponse, error) {
	namespace := call.AllOr(m.GetNamespace())
	ids := map[string]string{"namespace": namespace, "plugin_id": m.GetPluginId(), "node": m.GetNode()}
	if err := call.CheckIDs("list volumes", ids); err != nil {
		return nil, err
	}
	switch {
	case m.GetState() != "" && !slices.Contains(volumeStates, m.GetState()):
		return nil, call.Invalid("list volumes", "state", fmt.Sprintf("%q is not one of %s", call.Shortened(m.GetState()),
			strings.Join(volumeStates, ", ")))
	case m.GetPerPage() < 0 || m.GetPerPage() > maxPerPage:
		return nil, call.Invalid("list volumes", "per_page", fmt.Sprintf("must be 0 to %d", maxPerPage))
	case m.GetPage() < 0:
		return nil, call.Invalid("list volumes", "page", "counts from 1")
	}
	resp := &hostv1.ListVolumesResponse{}
	var err error
	topics := append([]state.Topic{state.TopicVolumes, state.TopicDrivers}, call.AllClaims...)
	resp.Meta, err = call.Read(ctx, h.Ledger, m, topics, func(tx *state.ReadTx) error {
		refs, err := tx.VolumeRefs(namespace, m.GetPluginId())
		if err == nil && len(refs) == 0 && m.GetPluginId() != "" {
			err = h.checkDriver(ctx, tx, m.GetPluginId())
		}
		if err == nil {
			refs, err = selected(tx, m, refs)
		}
		if err != nil {
			return err
		}
		c := call.CallerOf(ctx)
		refs = slices.DeleteFunc(refs, func(r claim.VolumeRef) bool {
			return !c.AllowNamespace(r.Namespace, acl.CSIListVolume)
		})
		resp.Volumes, resp.Total = nil, int64(len(refs))
		drivers := map[string]claim.Driver{}
		for _, ref := range pageOf(refs, int(m.GetPerPage()), int(m.GetPage())) {
			v, claims, err := volumeAndClaims(tx, ref)
			if err != nil {
				return err
			}
			d, known := drivers[v.PluginID]
			if !known {
				if d, err = driverOf(tx, v); err != nil {
					return err
				}
				drivers[v.PluginID] = d
			}
			resp.Volumes = append(resp.Volumes, showDriver(h.shownVolume(v, claims), v, d))
		}
		return nil
	})
	return resp, err
}

// selected keeps the volumes that a list is asked for.
func selected(tx *state.ReadTx, m *hostv1.ListVolumesRequest, refs []claim.VolumeRef) ([]claim.VolumeRef, error) {
	if search := strings.ToLower(m.GetSearch()); search != "" {
		refs = slices.DeleteFunc(refs, func(r claim.VolumeRef) bool {
			return !strings.Contains(strings.ToLower(r.ID), search)
		})
	}
	if m.GetState() != "" {
		claimed, err := tx.VolumesClaimed(m.GetState() == "releasing")
		if err != nil {
			return nil, err
		}
		refs = slices.DeleteFunc(refs, func(r claim.VolumeRef) bool { return claimed[r] == (m.GetState() == "free") })
	}
	if m.GetNode() != "" {
		claims, err := tx.ClaimsOn(m.GetNode())
		if err != nil {
			return nil, err
		}
		there := map[claim.VolumeRef]bool{}
		for _, c := range claims {
			there[c.Volume] = true
		}
		refs = slices.DeleteFunc(refs, func(r claim.VolumeRef) bool { return !there[r] })
	}
	return refs, nil
}

// pageOf returns one page of a list; a size of 0: all of it.
func pageOf(refs []claim.VolumeRef, size, page int) []claim.VolumeRef {
	if size == 0 {
		return refs
	}
	from := min((max(page, 1)-1)*size, len(refs))
	return refs[from:min(from+size, len(refs))]
}

// seenVolume is what a driver says of a volume.
type seenVolume struct {
	controller *storage.Condition // nil: it says nothing
	nodes      []string           // that have mounted it; this one first
	stats      []*storage.Stats   // of each node; nil: it did not answer
}

// look asks the driver's controller about a volume, and each node that has mounted it.
func (h *Handler) look(ctx context.Context, v claim.Volume, claims []claim.Claim) seenVolume {
	ctx, cancel := context.WithTimeout(ctx, call.StatsTimeout)
	defer cancel()
	var seen seenVolume
	places := h.Workloads.Placements(v.VolumeRef)
	if len(places) > 0 {
		seen.nodes = append(seen.nodes, h.Name)
	}
	seen.nodes = append(seen.nodes, h.elsewhere(claims)...)
	seen.stats = make([]*storage.Stats, len(seen.nodes))
	var asking sync.WaitGroup
	asking.Go(func() {
		if condition, err := h.Controllers.Condition(ctx, v); err == nil {
			seen.controller = condition
		}
	})
	for n, node := range seen.nodes {
		asking.Go(func() {
			var stats storage.Stats
			var err error
			if node == h.Name {
				stats, err = h.Controllers.Stats(ctx, v.Definition, places[0].Place)
			} else {
				stats, err = h.Nodes.VolumeStats(ctx, node, v)
			}
			if err == nil {
				seen.stats[n] = &stats
			}
		})
	}
	asking.Wait()
	return seen
}

// usage is from the first node that answered; nil: none did.
func (v seenVolume) usage() *hostv1.VolumeUsage {
	for _, stats := range v.stats {
		if stats == nil {
			continue
		}
		shown := &hostv1.VolumeUsage{}
		for _, u := range stats.Usage {
			switch u.Unit {
			case storage.Bytes:
				shown.BytesTotal, shown.BytesUsed, shown.BytesAvailable = u.Total, u.Used, u.Available
			case storage.Inodes:
				shown.InodesTotal, shown.InodesUsed, shown.InodesAvailable = u.Total, u.Used, u.Available
			}
		}
		if stats.Condition != nil {
			shown.Abnormal, shown.Condition = stats.Condition.Abnormal, stats.Condition.Message
		}
		return shown
	}
	return nil
}

func (v seenVolume) conditions() (all []*hostv1.VolumeCondition) {
	add := func(node string, c *storage.Condition) {
		if c != nil {
			all = append(all, &hostv1.VolumeCondition{Node: node, Abnormal: c.Abnormal, Message: c.Message})
		}
	}
	add("", v.controller)
	for n, stats := range v.stats {
		if stats != nil {
			add(v.nodes[n], stats.Condition)
		}
	}
	return all
}
