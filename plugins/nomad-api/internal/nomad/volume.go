package nomad

import (
	"time"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// volumeStub is a volume in a list.
type volumeStub struct {
	ID             string
	Namespace      string
	Name           string
	ExternalID     string
	Topologies     []topology
	AccessMode     string
	AttachmentMode string
	CurrentReaders int
	CurrentWriters int
	Schedulable    bool
	PluginID       string
	Provider       string
	health
	ResourceExhausted time.Time // never: what a claim needs is checked when it is taken
	indexes
	times
}

// definition is the part of a volume that clients send.
type definition struct {
	ID                    string
	Name                  string
	ExternalID            string
	Namespace             string
	PluginID              string
	RequestedTopologies   *topologyRequest
	AccessMode            string
	AttachmentMode        string
	MountOptions          *mountOptions
	Secrets               map[string]string
	Parameters            map[string]string
	Context               map[string]string
	RequestedCapacityMin  int64
	RequestedCapacityMax  int64
	RequestedCapabilities []capability
	CloneID               string
	SnapshotID            string
}

// volume is a whole volume. Its modes are those in use.
type volume struct {
	definition
	Topologies      []topology
	Capacity        int64
	ReadAllocs      map[string]*struct{} // by allocation; the values are null
	WriteAllocs     map[string]*struct{}
	Allocations     []allocation
	Schedulable     bool
	Provider        string
	ProviderVersion string
	health
	ResourceExhausted time.Time
	indexes
	times
}

// health counts the processes of a driver on all nodes.
type health struct {
	ControllerRequired  bool
	ControllersHealthy  int
	ControllersExpected int
	NodesHealthy        int
	NodesExpected       int
}

type indexes struct {
	CreateIndex uint64
	ModifyIndex uint64
}

// times are in nanoseconds since 1970.
type times struct {
	CreateTime int64
	ModifyTime int64
}

type topology struct {
	Segments map[string]string
}

type topologyRequest struct {
	Required  []topology
	Preferred []topology
}

type mountOptions struct {
	FSType     string
	MountFlags []string
}

type capability struct {
	AccessMode     string
	AttachmentMode string
}

// counted is what the API counts of a driver.
type counted interface {
	GetControllersHealthy() int64
	GetControllersExpected() int64
	GetNodesHealthy() int64
	GetNodesExpected() int64
}

func healthOf(c counted) health {
	return health{
		ControllerRequired: c.GetControllersExpected() > 0,
		ControllersHealthy: int(c.GetControllersHealthy()), ControllersExpected: int(c.GetControllersExpected()),
		NodesHealthy: int(c.GetNodesHealthy()), NodesExpected: int(c.GetNodesExpected()),
	}
}

// schedulable reports whether a volume of the driver can be claimed somewhere.
func (h health) schedulable() bool {
	return h.NodesHealthy > 0 && (!h.ControllerRequired || h.ControllersHealthy > 0)
}

func stubOf(v *hostv1.Volume) volumeStub {
	spec, h := v.GetSpec(), healthOf(v)
	stub := volumeStub{
		ID: spec.GetId(), Namespace: spec.GetNamespace(), Name: spec.GetName(), ExternalID: spec.GetExternalId(),
		Topologies: topologiesOf(v.GetTopologies()), AccessMode: v.GetAccessMode(), AttachmentMode: v.GetAttachmentMode(),
		Schedulable: h.schedulable(), PluginID: spec.GetPluginId(), Provider: v.GetProvider(), health: h,
		indexes: indexes{v.GetCreateIndex(), v.GetModifyIndex()},
		times:   times{nanoseconds(v.GetCreatedAt()), nanoseconds(v.GetModifiedAt())},
	}
	for _, c := range v.GetClaims() {
		if c.GetMode() == modeWrite {
			stub.CurrentWriters++
		} else {
			stub.CurrentReaders++
		}
	}
	return stub
}

func volumeOf(v *hostv1.Volume) volume {
	h := healthOf(v)
	shown := volume{
		definition: definitionOf(v), Topologies: topologiesOf(v.GetTopologies()), Capacity: v.GetCapacity(),
		ReadAllocs: map[string]*struct{}{}, WriteAllocs: map[string]*struct{}{}, Allocations: []allocation{},
		Schedulable: h.schedulable(), Provider: v.GetProvider(), ProviderVersion: v.GetProviderVersion(), health: h,
		indexes: indexes{v.GetCreateIndex(), v.GetModifyIndex()},
		times:   times{nanoseconds(v.GetCreatedAt()), nanoseconds(v.GetModifiedAt())},
	}
	for _, c := range v.GetClaims() {
		a := allocationOf(c)
		shown.Allocations = append(shown.Allocations, a)
		if c.GetMode() == modeWrite {
			shown.WriteAllocs[a.ID] = nil
		} else {
			shown.ReadAllocs[a.ID] = nil
		}
	}
	return shown
}

func definitionOf(v *hostv1.Volume) definition {
	spec := v.GetSpec()
	d := definition{
		ID: spec.GetId(), Name: spec.GetName(), ExternalID: spec.GetExternalId(), Namespace: spec.GetNamespace(),
		PluginID: spec.GetPluginId(), AccessMode: v.GetAccessMode(), AttachmentMode: v.GetAttachmentMode(),
		Secrets: spec.GetSecrets(), Parameters: spec.GetParameters(), Context: spec.GetContext(),
		RequestedCapacityMin: spec.GetCapacityMin(), RequestedCapacityMax: spec.GetCapacityMax(),
		CloneID: spec.GetCloneId(), SnapshotID: spec.GetSnapshotId(),
	}
	if r := spec.GetTopologyRequest(); r != nil {
		d.RequestedTopologies = &topologyRequest{topologiesOf(r.GetRequired()), topologiesOf(r.GetPreferred())}
	}
	if o := spec.GetMountOptions(); o != nil {
		d.MountOptions = &mountOptions{FSType: o.GetFsType(), MountFlags: o.GetMountFlags()}
	}
	for _, c := range spec.GetCapabilities() {
		d.RequestedCapabilities = append(d.RequestedCapabilities, capability{c.GetAccessMode(), c.GetAttachmentMode()})
	}
	return d
}

// topologiesOf shows where a volume is; nil: nobody knows, or everywhere.
func topologiesOf(all []*hostv1.Topology) (shown []topology) {
	for _, t := range all {
		shown = append(shown, topology{t.GetSegments()})
	}
	return shown
}
