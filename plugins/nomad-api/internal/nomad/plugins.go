package nomad

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// listPlugins lists the drivers, which are what Nomad calls plugins.
func (s *server) listPlugins(ctx context.Context, q query, r *http.Request) (answer, error) {
	if answered, a, err := emptyType(r); answered {
		return a, err
	}
	var all []*hostv1.Driver
	meta, err := s.blockingDrivers(ctx, q, func(ctx context.Context) (err error) {
		all, err = s.drivers(ctx, q.prefix)
		return err
	})
	if err != nil {
		return answer{}, err
	}
	all, next := page(q, all, (*hostv1.Driver).GetId)
	stubs := make([]*api.CSIPluginListStub, 0, len(all))
	for _, d := range all {
		full := pluginOf(d)
		stubs = append(stubs, &api.CSIPluginListStub{
			ID: full.ID, Provider: full.Provider, ControllerRequired: full.ControllerRequired,
			ControllersHealthy: full.ControllersHealthy, ControllersExpected: full.ControllersExpected,
			NodesHealthy: full.NodesHealthy, NodesExpected: full.NodesExpected,
			CreateIndex: full.CreateIndex, ModifyIndex: full.ModifyIndex,
		})
	}
	return answer{stubs, meta, next}, nil
}

// drivers returns the drivers whose ids begin with a prefix, by id.
func (s *server) drivers(ctx context.Context, prefix string) ([]*hostv1.Driver, error) {
	res, err := s.api.Drivers.ListDrivers(ctx, &hostv1.ListDriversRequest{})
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(res.GetDrivers(),
		func(d *hostv1.Driver) bool { return !strings.HasPrefix(d.GetId(), prefix) })
	slices.SortFunc(all, func(a, b *hostv1.Driver) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return all, nil
}

// readAt is an answer that has nothing but what it was read from.
type readAt struct{ *hostv1.ReadMeta }

// GetMeta implements what blocking needs.
func (at readAt) GetMeta() *hostv1.ReadMeta { return at.ReadMeta }

// blockingDrivers reads drivers, for which the API has no query that waits: it waits for the topic.
func (s *server) blockingDrivers(ctx context.Context, q query, read func(ctx context.Context) error) (*hostv1.ReadMeta,
	error,
) {
	at, err := blocking(ctx, s, q, func(ctx context.Context, how *hostv1.ReadOptions) (readAt, error) {
		waiting, cancel := context.WithTimeout(ctx, cmp.Or(how.GetWait().AsDuration(), defaultWait))
		defer cancel()
		index, err := s.awaitDrivers(waiting, how.GetIndex())
		if err != nil {
			return readAt{}, err
		}
		return readAt{&hostv1.ReadMeta{Index: index, KnownLeader: true}}, read(ctx)
	})
	return at.ReadMeta, err
}

// awaitDrivers waits until a driver may have changed after an index, or until ctx's deadline, and returns the index
// that a read afterwards includes.
func (s *server) awaitDrivers(ctx context.Context, after uint64) (index uint64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.api.System.Watch(ctx, &hostv1.WatchRequest{Topics: []string{"drivers"}})
	if err != nil {
		return 0, err
	}
	defer stream.Close()
	for stream.Receive() {
		if index = stream.Msg().GetIndex(); index != after {
			return index, nil
		}
	}
	if index != 0 && ctx.Err() != nil {
		return index, nil
	}
	return 0, cmp.Or(stream.Err(), ctx.Err())
}

// readPlugin reads one driver.
func (s *server) readPlugin(ctx context.Context, q query, r *http.Request) (answer, error) {
	var d *hostv1.Driver
	meta, err := s.blockingDrivers(ctx, q, func(ctx context.Context) error {
		res, err := s.api.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: r.PathValue("id")})
		if err == nil {
			d = res.GetDriver()
		}
		return err
	})
	if err != nil {
		return answer{}, err
	}
	return answer{value: pluginOf(d), meta: meta}, nil
}

// pluginOf shows a driver with what each node has of it. It has no allocations: no workload runs it.
func pluginOf(d *hostv1.Driver) *api.CSIPlugin {
	shown := &api.CSIPlugin{
		ID: d.GetId(), Provider: d.GetProvider(), Version: d.GetProviderVersion(),
		Controllers: map[string]*api.CSIInfo{}, Nodes: map[string]*api.CSIInfo{},
		Allocations: []*api.AllocationListStub{}, ControllerRequired: d.GetControllersExpected() > 0,
		ControllersHealthy: int(d.GetControllersHealthy()), ControllersExpected: int(d.GetControllersExpected()),
		NodesHealthy: int(d.GetNodesHealthy()), NodesExpected: int(d.GetNodesExpected()),
		CreateIndex: d.GetModifyIndex(), ModifyIndex: d.GetModifyIndex(),
		CreateTime: nanoseconds(d.GetModifiedAt()), ModifyTime: nanoseconds(d.GetModifiedAt()),
	}
	for _, on := range d.GetOnNodes() {
		has := func(capability string) bool { return slices.Contains(on.GetControllerCapabilities(), capability) }
		base := api.CSIInfo{
			PluginID: d.GetId(), RequiresControllerPlugin: shown.ControllerRequired,
			RequiresTopologies: has("VOLUME_ACCESSIBILITY_CONSTRAINTS"),
		}
		if t := on.GetUpdatedAt(); t != nil {
			base.UpdateTime = t.AsTime()
		}
		if on.GetType() != "node" {
			info := base
			info.Healthy, info.HealthDescription = on.GetControllerHealthy(), healthText(on.GetControllerMessage())
			info.ControllerInfo = &api.CSIControllerInfo{
				SupportsCreateDelete: has("CREATE_DELETE_VOLUME"), SupportsAttachDetach: has("PUBLISH_UNPUBLISH_VOLUME"),
				SupportsListVolumes: has("LIST_VOLUMES"), SupportsGetCapacity: has("GET_CAPACITY"),
				SupportsCreateDeleteSnapshot: has("CREATE_DELETE_SNAPSHOT"), SupportsListSnapshots: has("LIST_SNAPSHOTS"),
				SupportsClone: has("CLONE_VOLUME"), SupportsReadOnlyAttach: has("PUBLISH_READONLY"),
				SupportsExpand: has("EXPAND_VOLUME"), SupportsCondition: has("VOLUME_CONDITION"),
			}
			shown.Controllers[nodeID(on.GetNode())] = &info
		}
		if on.GetType() != "controller" {
			can := func(capability string) bool { return slices.Contains(on.GetNodeCapabilities(), capability) }
			info := base
			info.Healthy, info.HealthDescription = on.GetHealthy(), healthText(on.GetMessage())
			info.NodeInfo = &api.CSINodeInfo{
				ID: on.GetNodeId(), MaxVolumes: on.GetMaxVolumes(), RequiresNodeStageVolume: can("STAGE_UNSTAGE_VOLUME"),
				SupportsStats: can("GET_VOLUME_STATS"), SupportsExpand: can("EXPAND_VOLUME"),
				SupportsCondition: can("VOLUME_CONDITION"),
			}
			if len(on.GetTopology()) > 0 {
				info.NodeInfo.AccessibleTopology = &api.CSITopology{Segments: on.GetTopology()}
			}
			shown.Nodes[nodeID(on.GetNode())] = &info
		}
	}
	return shown
}

// healthText is Nomad's description of a driver's health.
func healthText(message string) string { return cmp.Or(message, "healthy") }
