package nomad

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// pluginStub is a CSI driver in a list: Nomad's plugins are drivers here.
type pluginStub struct {
	ID       string
	Provider string
	health
	indexes
}

// plugin is a CSI driver with what each node says of it.
type plugin struct {
	ID          string
	Provider    string
	Version     string
	Controllers map[string]csiInfo // by node id
	Nodes       map[string]csiInfo
	Allocations []allocation // none: no workload runs the driver
	health
	indexes
	times
}

// csiInfo is a driver on one node.
type csiInfo struct {
	PluginID                 string
	AllocID                  string
	Healthy                  bool
	HealthDescription        string
	UpdateTime               time.Time
	RequiresControllerPlugin bool
	RequiresTopologies       bool
	ControllerInfo           *controllerInfo `json:",omitempty"`
	NodeInfo                 *nodeInfo       `json:",omitempty"`
}

type controllerInfo struct {
	SupportsCreateDelete             bool
	SupportsAttachDetach             bool
	SupportsListVolumes              bool
	SupportsGetCapacity              bool
	SupportsCreateDeleteSnapshot     bool
	SupportsListSnapshots            bool
	SupportsClone                    bool
	SupportsReadOnlyAttach           bool
	SupportsExpand                   bool
	SupportsListVolumesAttachedNodes bool
	SupportsCondition                bool
	SupportsGet                      bool
}

type nodeInfo struct {
	ID                      string
	MaxVolumes              int64
	AccessibleTopology      *topology
	RequiresNodeStageVolume bool
	SupportsStats           bool
	SupportsExpand          bool
	SupportsCondition       bool
}

// listPlugins lists the drivers.
func (s *server) listPlugins(ctx context.Context, w http.ResponseWriter, r *http.Request) (answer, error) {
	if answered, a, err := emptyType(r); answered {
		return a, err
	}
	q, err := readQuery(r)
	if err != nil {
		return answer{}, err
	}
	var all []*hostv1.Driver
	meta, err := s.blockingDrivers(ctx, q, func(ctx context.Context) (err error) {
		all, err = s.drivers(ctx, q.prefix)
		return err
	})
	if err != nil {
		return answer{}, err
	}
	stubs := make([]pluginStub, 0, len(all))
	for _, d := range page(w, q, all, (*hostv1.Driver).GetId) {
		stubs = append(stubs, pluginStub{
			ID: d.GetId(), Provider: d.GetProvider(), health: healthOf(d),
			indexes: indexes{d.GetModifyIndex(), d.GetModifyIndex()},
		})
	}
	return answer{stubs, meta}, nil
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

// blockingDrivers reads drivers, for which the API has no query that waits: it waits for the topic.
func (s *server) blockingDrivers(ctx context.Context, q query, read func(ctx context.Context) error) (*hostv1.ReadMeta,
	error,
) {
	return s.blocking(ctx, q, func(ctx context.Context, how *hostv1.ReadOptions) (*hostv1.ReadMeta, error) {
		waiting, cancel := context.WithTimeout(ctx, cmp.Or(how.GetWait().AsDuration(), defaultWait))
		defer cancel()
		index, err := s.awaitDrivers(waiting, how.GetIndex())
		if err != nil {
			return nil, err
		}
		return &hostv1.ReadMeta{Index: index, KnownLeader: true}, read(ctx)
	})
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
func (s *server) readPlugin(ctx context.Context, _ http.ResponseWriter, r *http.Request) (answer, error) {
	q, err := readQuery(r)
	if err != nil {
		return answer{}, err
	}
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
	return answer{pluginOf(d), meta}, nil
}

func pluginOf(d *hostv1.Driver) plugin {
	h := healthOf(d)
	shown := plugin{
		ID: d.GetId(), Provider: d.GetProvider(), Version: d.GetProviderVersion(),
		Controllers: map[string]csiInfo{}, Nodes: map[string]csiInfo{}, Allocations: []allocation{}, health: h,
		indexes: indexes{d.GetModifyIndex(), d.GetModifyIndex()},
		times:   times{nanoseconds(d.GetModifiedAt()), nanoseconds(d.GetModifiedAt())},
	}
	for _, on := range d.GetOnNodes() {
		has := func(capability string) bool { return slices.Contains(on.GetControllerCapabilities(), capability) }
		base := csiInfo{
			PluginID: d.GetId(), UpdateTime: timeOf(on.GetUpdatedAt()), RequiresControllerPlugin: h.ControllerRequired,
			RequiresTopologies: has("VOLUME_ACCESSIBILITY_CONSTRAINTS"),
		}
		if on.GetType() != "node" {
			info := base
			info.Healthy, info.HealthDescription = on.GetControllerHealthy(), healthText(on.GetControllerMessage())
			info.ControllerInfo = &controllerInfo{
				SupportsCreateDelete: has("CREATE_DELETE_VOLUME"), SupportsAttachDetach: has("PUBLISH_UNPUBLISH_VOLUME"),
				SupportsListVolumes: has("LIST_VOLUMES"), SupportsGetCapacity: has("GET_CAPACITY"),
				SupportsCreateDeleteSnapshot: has("CREATE_DELETE_SNAPSHOT"), SupportsListSnapshots: has("LIST_SNAPSHOTS"),
				SupportsClone: has("CLONE_VOLUME"), SupportsReadOnlyAttach: has("PUBLISH_READONLY"),
				SupportsExpand: has("EXPAND_VOLUME"), SupportsCondition: has("VOLUME_CONDITION"),
			}
			shown.Controllers[nodeID(on.GetNode())] = info
		}
		if on.GetType() != "controller" {
			can := func(capability string) bool { return slices.Contains(on.GetNodeCapabilities(), capability) }
			info := base
			info.Healthy, info.HealthDescription = on.GetHealthy(), healthText(on.GetMessage())
			info.NodeInfo = &nodeInfo{
				ID: on.GetNodeId(), MaxVolumes: on.GetMaxVolumes(), RequiresNodeStageVolume: can("STAGE_UNSTAGE_VOLUME"),
				SupportsStats: can("GET_VOLUME_STATS"), SupportsExpand: can("EXPAND_VOLUME"),
				SupportsCondition: can("VOLUME_CONDITION"),
			}
			if len(on.GetTopology()) > 0 {
				info.NodeInfo.AccessibleTopology = &topology{on.GetTopology()}
			}
			shown.Nodes[nodeID(on.GetNode())] = info
		}
	}
	return shown
}

// healthText is Nomad's description of a driver's health.
func healthText(message string) string { return cmp.Or(message, "healthy") }
