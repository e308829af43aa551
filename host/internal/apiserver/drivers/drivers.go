package drivers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// Handler serves pannier.host.v1.DriverService.
type Handler struct {
	Name        string // of this node
	Drivers     *drivers.Registry
	Controllers *controllers.Controllers
	// Ledger has what other nodes report; nil: this agent is no server.
	Ledger call.Ledger
}

// maxHealthTimeout bounds the wait for a driver's first healthy answer, in milliseconds.
const maxHealthTimeout = int64(10 * time.Minute / time.Millisecond)

// RegisterDriver adds a running driver.
func (h *Handler) RegisterDriver(ctx context.Context,
	req *hostv1.RegisterDriverRequest,
) (*hostv1.RegisterDriverResponse, error) {
	if ms := req.GetHealthTimeoutMs(); ms < 0 || ms > maxHealthTimeout {
		return nil, call.Invalid(fmt.Sprintf("driver %q", req.GetId()), "health_timeout_ms",
			fmt.Sprintf("must be 0 to %d", maxHealthTimeout))
	}
	d, err := h.Drivers.Register(ctx, drivers.Spec{
		ID: req.GetId(), Type: drivers.Type(req.GetType()), Plugin: req.GetPlugin(),
		Endpoint: req.GetEndpoint(),
		MountDir: req.GetMountDir(), StagePublishBaseDir: req.GetStagePublishBaseDir(),
		HealthTimeout: time.Duration(req.GetHealthTimeoutMs()) * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	shown, err := h.shownDriver(ctx, d.ID)
	return &hostv1.RegisterDriverResponse{Driver: shown}, err
}

// DeregisterDriver removes a driver that was added at run time.
func (h *Handler) DeregisterDriver(ctx context.Context,
	req *hostv1.DeregisterDriverRequest,
) (*hostv1.DeregisterDriverResponse, error) {
	err := h.Drivers.Deregister(ctx, req.GetId(), drivers.Type(req.GetType()), req.GetForce())
	return &hostv1.DeregisterDriverResponse{}, err
}

// RestartDriver restarts a driver that this node runs.
func (h *Handler) RestartDriver(ctx context.Context,
	req *hostv1.RestartDriverRequest,
) (*hostv1.RestartDriverResponse, error) {
	id := req.GetId()
	if err := h.Drivers.Restart(ctx, id, drivers.Type(req.GetType()), req.GetForce()); err != nil {
		return nil, err
	}
	shown, err := h.shownDriver(ctx, id)
	return &hostv1.RestartDriverResponse{Driver: shown}, err
}

// ListDrivers lists the drivers of this node and of the ledger, by id.
func (h *Handler) ListDrivers(ctx context.Context, _ *hostv1.ListDriversRequest) (*hostv1.ListDriversResponse, error) {
	shown, err := h.Shown(ctx)
	return &hostv1.ListDriversResponse{Drivers: shown}, err
}

// GetDriver reads one driver, and how much room it has.
func (h *Handler) GetDriver(ctx context.Context, req *hostv1.GetDriverRequest) (*hostv1.GetDriverResponse, error) {
	shown, err := h.shownDriver(ctx, req.GetId())
	if err == nil {
		for _, p := range []*hostv1.Driver{shown, shown.GetController()} {
			if path, err := h.Drivers.Log(shown.GetId(), drivers.Type(p.GetType())); err == nil && p != nil {
				p.LastOutput = call.LastOutput(ctx, path)
			}
		}
		ctx, cancel := context.WithTimeout(ctx, call.StatsTimeout)
		defer cancel()
		if room, ok := h.Controllers.CapacityHere(ctx, req.GetId()); ok {
			shown.Capacity = &hostv1.DriverCapacity{
				Available: room.Available, MaximumVolume: room.MaximumVolume, MinimumVolume: room.MinimumVolume,
			}
		}
	}
	return &hostv1.GetDriverResponse{Driver: shown}, err
}

// DriverLog streams what a driver's processes printed.
func (h *Handler) DriverLog(ctx context.Context, req *hostv1.DriverLogRequest,
	stream *connect.ServerStream[hostv1.DriverLogResponse],
) error {
	path, err := h.Drivers.Log(req.GetId(), drivers.Type(req.GetType()))
	if err != nil {
		return err
	}
	return call.SendLog(ctx, fmt.Sprintf("driver %q", req.GetId()), path, req, stream,
		func(line string) *hostv1.DriverLogResponse { return &hostv1.DriverLogResponse{Line: line} })
}

// shownDriver returns a driver as this node has it or, if only other nodes have it, as the ledger has it. If no node
// has it the error is this node's.
func (h *Handler) shownDriver(ctx context.Context, id string) (*hostv1.Driver, error) {
	if err := claim.CheckID(id); err != nil {
		return nil, call.Invalid("driver", "id", err.Error())
	}
	var known claim.Driver
	if call.Here(h.Ledger) {
		var err error
		known, err = call.Get(ctx, h.Ledger, (*state.ReadTx).Driver, id)
		if _, err = call.Found(err, claim.ErrDriverNotFound); err != nil {
			return nil, err
		}
	}
	here, missing := h.Drivers.Get(id)
	if missing != nil && !h.elsewhere(known) {
		return nil, missing
	}
	shown := mergedDriver(here, missing == nil, known)
	for _, node := range slices.Sorted(maps.Keys(known.Nodes)) {
		shown.OnNodes = append(shown.OnNodes, driverOnNode(node, known.Nodes[node]))
	}
	return shown, nil
}

// driverOnNode shows what a node has reported of a driver.
func driverOnNode(node string, d claim.NodeDriver) *hostv1.DriverOnNode {
	controller := d.ForController()
	shown := &hostv1.DriverOnNode{
		Node: node, Type: string(d.Type), Healthy: d.Healthy, Message: d.Message,
		ControllerHealthy: controller.Healthy, ControllerMessage: controller.Message,
		Provider: d.Provider, ProviderVersion: d.Version, NodeId: d.NodeID, MaxVolumes: d.MaxVolumes,
		Topology: maps.Clone(d.Topology), UpdatedAt: call.Time(d.UpdatedAt),
	}
	if d.Controller != nil {
		shown.ControllerCapabilities = controllerCapabilities((*storage.ControllerCapabilities)(d.Controller))
	}
	if c := d.Node; c != nil {
		shown.NodeCapabilities = nodeCapabilities(&storage.NodeCapabilities{
			StageUnstage: c.StageUnstage, VolumeStats: c.VolumeStats, Expand: c.Expand, VolumeCondition: c.VolumeCondition,
			SingleNodeMultiWriter: c.SingleNodeMultiWriter, VolumeMountGroup: c.VolumeMountGroup,
		})
	}
	return shown
}

// Shown returns the drivers of this node and, on a server, of all others.
func (h *Handler) Shown(ctx context.Context) ([]*hostv1.Driver, error) {
	known := map[string]claim.Driver{}
	if call.Here(h.Ledger) {
		all, err := call.Reading(ctx, h.Ledger, (*state.ReadTx).Drivers)
		if err != nil {
			return nil, err
		}
		for _, d := range all {
			known[d.ID] = d
		}
	}
	var out []*hostv1.Driver
	for _, here := range h.Drivers.List() {
		out = append(out, mergedDriver(here, true, known[here.ID]))
		delete(known, here.ID)
	}
	for _, d := range known {
		if h.elsewhere(d) {
			out = append(out, mergedDriver(drivers.Driver{}, false, d))
		}
	}
	slices.SortFunc(out, func(a, b *hostv1.Driver) int { return strings.Compare(a.Id, b.Id) })
	return out, nil
}

// elsewhere reports whether another node has the driver. The ledger's entry for this node is ignored: it may be older
// than the registry's, or kept until garbage collection.
func (h *Handler) elsewhere(d claim.Driver) bool {
	_, here := d.Nodes[h.Name]
	return len(d.Nodes) > 1 || !here && len(d.Nodes) == 1
}

// mergedDriver returns a driver as this node has it, if it does, with the counts of all nodes.
func mergedDriver(here drivers.Driver, isHere bool, known claim.Driver) *hostv1.Driver {
	shown := &hostv1.Driver{
		Id: known.ID, Provider: known.Provider, ProviderVersion: known.Version,
		ControllersHealthy: int64(known.ControllersHealthy), ControllersExpected: int64(known.ControllersExpected),
		NodesHealthy: int64(known.NodesHealthy), NodesExpected: int64(known.NodesExpected),
		Message:     "it is not on this node",
		ModifyIndex: known.ModifyIndex, ModifiedAt: call.Time(known.ModifiedAt),
	}
	if !isHere {
		return shown
	}
	showProcess(shown, here)
	if here.Controller != nil {
		shown.Controller = &hostv1.Driver{}
		showProcess(shown.Controller, *here.Controller)
	}
	fp := here.Fingerprint
	for _, pid := range here.Left {
		shown.LeftPids = append(shown.LeftPids, int64(pid))
	}
	if e := here.EphemeralVolumes; e != nil {
		shown.EphemeralVolumes, shown.EphemeralNamespaces = true, e.Namespaces
	}
	shown.Plugin = here.Plugin
	shown.MountDir, shown.StagePublishBaseDir = here.MountDir, here.StagePublishBaseDir
	shown.ControllerCapabilities = controllerCapabilities(fp.Controller)
	if n := fp.Node; n != nil {
		shown.NodeId, shown.MaxVolumes, shown.Topology = n.NodeID, n.MaxVolumes, maps.Clone(n.AccessibleTopology)
		shown.NodeCapabilities = nodeCapabilities(n)
	}
	return shown
}

// showProcess shows what a driver has of each of its processes.
func showProcess(shown *hostv1.Driver, here drivers.Driver) {
	shown.Id, shown.Type, shown.Endpoint, shown.Source = here.ID, string(here.Type), here.Endpoint, string(here.Source)
	shown.Healthy, shown.Message, shown.ChangedAt = here.Healthy, here.Message, call.Time(here.ChangedAt)
	shown.Provider, shown.ProviderVersion = here.Fingerprint.Provider, here.Fingerprint.Version
	shown.Pid, shown.Restarts = int64(here.PID), int32(here.Restarts)
	shown.ConfigurationWaits = here.Waiting
	shown.ProgramSha256, shown.ProgramProblem = here.Program, here.ProgramProblem
	for _, w := range here.Swaps {
		swap := &hostv1.DriverSwap{
			At: call.Time(w.At), FromSha256: w.From.SHA256, ToSha256: w.To.SHA256, Overlap: w.Overlap,
			Refused: w.Error != "", Rollback: w.Rollback, Why: cmp.Or(w.Error, w.Why),
		}
		if w.Took > 0 {
			swap.Took = durationpb.New(w.Took)
		}
		shown.Swaps = append(shown.Swaps, swap)
	}
}

// named is a capability with its CSI name.
type named struct {
	name string
	has  bool
}

func names(all ...named) []string {
	var out []string
	for _, n := range all {
		if n.has {
			out = append(out, n.name)
		}
	}
	return out
}

func controllerCapabilities(c *storage.ControllerCapabilities) []string {
	if c == nil {
		return nil
	}
	return names(
		named{"CREATE_DELETE_VOLUME", c.CreateDelete},
		named{"PUBLISH_UNPUBLISH_VOLUME", c.AttachDetach},
		named{"PUBLISH_READONLY", c.AttachReadOnly},
		named{"LIST_VOLUMES", c.ListVolumes},
		named{"GET_CAPACITY", c.GetCapacity},
		named{"CREATE_DELETE_SNAPSHOT", c.CreateDeleteSnapshot},
		named{"LIST_SNAPSHOTS", c.ListSnapshots},
		named{"CLONE_VOLUME", c.Clone},
		named{"EXPAND_VOLUME", c.Expand},
		named{"VOLUME_CONDITION", c.VolumeCondition},
		named{"SINGLE_NODE_MULTI_WRITER", c.SingleNodeMultiWriter},
		// Of the driver as a whole (PluginCapability).
		named{"VOLUME_ACCESSIBILITY_CONSTRAINTS", c.Topology},
		named{"VolumeExpansion.OFFLINE alone", c.Expand && !c.OnlineExpand},
	)
}

func nodeCapabilities(n *storage.NodeCapabilities) []string {
	return names(
		named{"STAGE_UNSTAGE_VOLUME", n.StageUnstage},
		named{"GET_VOLUME_STATS", n.VolumeStats},
		named{"EXPAND_VOLUME", n.Expand},
		named{"VOLUME_CONDITION", n.VolumeCondition},
		named{"SINGLE_NODE_MULTI_WRITER", n.SingleNodeMultiWriter},
		named{"VOLUME_MOUNT_GROUP", n.VolumeMountGroup},
	)
}
