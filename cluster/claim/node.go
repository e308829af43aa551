package claim

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"sync"
	"time"
)

// Node is an agent as it last described itself.
type Node struct {
	Name       string                `json:"name"`
	BootID     string                `json:"boot_id"` // of its machine (process.MachineID)
	Address    string                `json:"address,omitempty"`
	Drivers    map[string]NodeDriver `json:"drivers,omitempty"` // by driver id
	Devices    []NodeDevices         `json:"devices,omitempty"` // by group and plugin
	Attributes map[string]string     `json:"attributes,omitempty"`

	// The ledger sets the fields below; a node's description of itself never changes them.

	// SecretHash is the SHA-256 of the node's secret, in hexadecimal, as first reported.
	SecretHash string     `json:"secret_hash,omitempty"`
	Status     NodeStatus `json:"status,omitempty"` // empty: ready
	StatusAt   time.Time  `json:"status_at,omitzero"`
	// StatusIndex is the ledger index at which the status was set.
	StatusIndex uint64 `json:"status_index,omitempty"`
	// LostIndex is the ledger index at which a claim of the node was last released by others while the node may use it,
	// or at which the node first registered or the ledger was restored. The node gets no lease before it has compared its
	// workloads with a ledger of this index.
	LostIndex uint64 `json:"lost_index,omitempty"`
	// Ineligible nodes start no workloads.
	Ineligible bool   `json:"ineligible,omitempty"`
	Drain      *Drain `json:"drain,omitempty"` // nil: the node is not drained
	// Namespaces are those whose workloads the node may have, at most MaxNamespaces; * matches any characters. None:
	// those of all.
	Namespaces []string `json:"namespaces,omitempty"`
	// ControllerOf are the drivers whose controllers here get the secrets of all volumes: those that this node reported
	// before any other, and those that an operator approved.
	ControllerOf []string `json:"controller_of,omitempty"`

	CreateIndex uint64    `json:"create_index"`
	ModifyIndex uint64    `json:"modify_index"`
	ModifiedAt  time.Time `json:"modified_at"`
}

// NodeStatus is whether the leader hears from a node.
type NodeStatus string

// The statuses. A node without one is ready: it is the only host.
const (
	NodeReady        NodeStatus = "ready"
	NodeDisconnected NodeStatus = "disconnected" // not heard from for heartbeat_ttl; it keeps its claims
	NodeDown         NodeStatus = "down"         // it has stopped by its own clock, and its claims were released
)

// Valid reports whether s is a status.
func (s NodeStatus) Valid() bool {
	return s == NodeReady || s == NodeDisconnected || s == NodeDown
}

// Ready reports whether the node is ready.
func (n *Node) Ready() bool { return n.Status == "" || n.Status == NodeReady }

// Seen is the node's report on a driver as it counts now: a node that is not ready reports nothing, and nobody reaches
// its drivers.
func (n *Node) Seen(d NodeDriver) NodeDriver {
	if n.Ready() {
		return d
	}
	away := DriverHealth{Message: fmt.Sprintf("the node is %s", n.Status)}
	d.Healthy, d.Message = away.Healthy, away.Message
	if d.ControllerApart != nil {
		d.ControllerApart = &away
	}
	return d
}

// AnotherBoot reports whether the node, of which this is the record, may use its claims until its lease is over, and
// bootID is not of the machine that has that lease: it was booted again, or it is another machine with a copy of the
// data directory, such as another container. A host in no cluster has no secret, and no lease.
func (n *Node) AnotherBoot(bootID string) bool {
	return n.SecretHash != "" && n.BootID != "" && bootID != "" && n.BootID != bootID && n.Status != NodeDown
}

// Machine is the public part of a node's SecretHash. It distinguishes machines with the same name.
func Machine(secretHash string) string { return secretHash[:min(16, len(secretHash))] }

// EarlierBoot returns an ErrEarlierBoot with what the node's new boot has to wait for.
func (n *Node) EarlierBoot() error {
	return fmt.Errorf(
		"node %q: %w: this ends when its lease is over, or it has no claims; if two machines have a copy of one"+
			" data directory, stop one of them and empty its data directory", n.Name, ErrEarlierBoot)
}

// SetStatus sets the status, with the time and the index of the change.
func (n *Node) SetStatus(status NodeStatus, at time.Time, index uint64) {
	n.Status, n.StatusAt, n.StatusIndex = status, at, index
}

// CheckEligible returns why the node starts no workload at present, and what to do about it. The error is an
// ErrIneligible.
func (n *Node) CheckEligible() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("node %q: %w: it %s", n.Name, ErrIneligible, fmt.Sprintf(format, args...))
	}
	switch {
	case n.Drain != nil:
		return refuse("has been drained since %s: \"pannier node drain -disable %s\" ends that",
			n.Drain.StartedAt.Format(time.RFC3339), n.Name)
	case !n.Ready():
		return refuse("has been %s since %s: see \"pannier node status %s\"",
			n.Status, n.StatusAt.Format(time.RFC3339), n.Name)
	case n.Ineligible:
		return refuse("was made ineligible: \"pannier node eligibility -enable %s\" ends that", n.Name)
	default:
		return nil
	}
}

// CheckNamespace refuses a namespace that the node is not bound to. The error is an ErrUnbound.
func (n *Node) CheckNamespace(namespace string) error {
	if len(n.Namespaces) == 0 || AmongNamespaces(n.Namespaces, namespace) {
		return nil
	}
	return fmt.Errorf("node %q: %w: namespace %q is not among %q (see: pannier node namespaces -h)", n.Name, ErrUnbound,
		namespace, n.Namespaces)
}

// AmongNamespaces reports whether a namespace matches one of the patterns (Node.Namespaces).
func AmongNamespaces(patterns []string, namespace string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, namespace)
		return ok && err == nil
	})
}

// validPattern is a namespace's name in which * matches any characters.
var validPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9\-_.*]{1,128}$`) })

// CheckNamespaces checks the namespaces that a node is to be bound to. The error is a *FieldError.
func CheckNamespaces(node string, namespaces []string) error {
	c := checker{object: func() string { return fmt.Sprintf("node %q", node) }}
	if len(namespaces) > MaxNamespaces {
		c.fail("namespaces", fmt.Sprintf("are more than %d", MaxNamespaces))
	}
	for _, n := range namespaces {
		if !validPattern().MatchString(n) {
			c.fail("namespaces", fmt.Sprintf("has %q: 1 to 128 letters, digits and - _ . only, and * for any of them", n))
		}
	}
	return c.err
}

// KeepOwn copies the fields that the ledger sets from the existing record.
func (n *Node) KeepOwn(standing Node) {
	n.SecretHash = standing.SecretHash
	n.Status, n.StatusAt, n.StatusIndex = standing.Status, standing.StatusAt, standing.StatusIndex
	n.LostIndex = standing.LostIndex
	n.Ineligible, n.Drain, n.Namespaces = standing.Ineligible, standing.Drain, standing.Namespaces
	n.ControllerOf = standing.ControllerOf
	n.CreateIndex = standing.CreateIndex
}

// Approve adds a driver to ControllerOf, or removes it.
func (n *Node) Approve(driver string, approved bool) {
	switch at := slices.Index(n.ControllerOf, driver); {
	case at < 0 && approved:
		n.ControllerOf = append(slices.Clip(n.ControllerOf), driver)
	case at >= 0 && !approved:
		n.ControllerOf = slices.Delete(slices.Clone(n.ControllerOf), at, at+1)
	}
}

// Change returns the drain after another order: one that begins is dated at, one that is reported as done keeps
// its beginning. A report on a drain that has ended since changes nothing.
func (d *Drain) Change(next Drain, at time.Time) *Drain {
	switch {
	case d == nil && next.DoneAt.IsZero():
		return &Drain{StartedAt: at, By: next.By}
	case d == nil, !d.DoneAt.IsZero(), next.DoneAt.IsZero(),
		!next.StartedAt.IsZero() && !next.StartedAt.Equal(d.StartedAt):
		return d
	default:
		return &Drain{StartedAt: d.StartedAt, By: d.By, DoneAt: next.DoneAt}
	}
}

// Drain is an operator's order to stop all workloads of a node.
type Drain struct {
	StartedAt time.Time `json:"started_at"`
	By        string    `json:"by,omitempty"`
	// DoneAt is when the node had nothing left; zero: not yet.
	DoneAt time.Time `json:"done_at,omitzero"`
}

// NodeDevices is a group of identical devices on one node, such as its GPUs of one model, as a device plugin's
// fingerprint reported. Only the node knows which workload has which device.
type NodeDevices struct {
	Plugin     string            `json:"plugin"`
	Vendor     string            `json:"vendor"`
	Type       string            `json:"type"`
	Name       string            `json:"name"`
	Total      int               `json:"total"`
	Healthy    int               `json:"healthy"`
	Attributes map[string]string `json:"attributes,omitempty"` // of each of the devices
}

// DriverType is which of CSI's services a driver's process serves.
type DriverType string

// The driver types.
const (
	NodeService       DriverType = "node"
	ControllerService DriverType = "controller"
	Monolith          DriverType = "monolith" // both
)

// NodeDriver is a CSI driver on one node, as its fingerprint reported.
type NodeDriver struct {
	ID      string     `json:"id"`
	Type    DriverType `json:"type"`
	Healthy bool       `json:"healthy"`
	Message string     `json:"message,omitempty"` // why it is unhealthy
	// ControllerApart is the health of its controller, if that is another process than its node service: Healthy and
	// Message are those of the node service then.
	ControllerApart *DriverHealth `json:"controller_apart,omitempty"`

	Provider string `json:"provider,omitempty"`
	Version  string `json:"version,omitempty"`

	NodeID     string            `json:"node_id,omitempty"`     // the driver's own id of the node
	MaxVolumes int64             `json:"max_volumes,omitempty"` // on the node; 0: no limit
	Topology   map[string]string `json:"topology,omitempty"`

	Controller *ControllerCapabilities `json:"controller,omitempty"` // nil: no controller service
	Node       *NodeCapabilities       `json:"node,omitempty"`       // nil: no node service
	UpdatedAt  time.Time               `json:"updated_at"`
}

// DriverHealth is the health of one of a driver's processes.
type DriverHealth struct {
	Healthy bool   `json:"healthy"`
	Message string `json:"message,omitempty"` // why it is unhealthy
}

// ForController is the health of the process that has the controller service.
func (d *NodeDriver) ForController() DriverHealth {
	if d.ControllerApart != nil {
		return *d.ControllerApart
	}
	return DriverHealth{Healthy: d.Healthy, Message: d.Message}
}

// ControllerCapabilities are what a driver's controller service can do (CSI
// spec, ControllerServiceCapability).
type ControllerCapabilities struct {
	CreateDelete          bool `json:"create_delete,omitempty"`
	AttachDetach          bool `json:"attach_detach,omitempty"` // PUBLISH_UNPUBLISH_VOLUME
	AttachReadOnly        bool `json:"attach_read_only,omitempty"`
	ListVolumes           bool `json:"list_volumes,omitempty"`
	GetCapacity           bool `json:"get_capacity,omitempty"`
	CreateDeleteSnapshot  bool `json:"create_delete_snapshot,omitempty"`
	ListSnapshots         bool `json:"list_snapshots,omitempty"`
	Clone                 bool `json:"clone,omitempty"`
	Expand                bool `json:"expand,omitempty"`
	OnlineExpand          bool `json:"online_expand,omitempty"` // also while in use
	VolumeCondition       bool `json:"volume_condition,omitempty"`
	SingleNodeMultiWriter bool `json:"single_node_multi_writer,omitempty"`
	Topology              bool `json:"topology,omitempty"` // VOLUME_ACCESSIBILITY_CONSTRAINTS
}

// NodeCapabilities are what a driver's node service can do (CSI spec,
// NodeServiceCapability).
type NodeCapabilities struct {
	StageUnstage          bool `json:"stage_unstage,omitempty"`
	VolumeStats           bool `json:"volume_stats,omitempty"`
	Expand                bool `json:"expand,omitempty"`
	VolumeCondition       bool `json:"volume_condition,omitempty"`
	SingleNodeMultiWriter bool `json:"single_node_multi_writer,omitempty"`
	VolumeMountGroup      bool `json:"volume_mount_group,omitempty"`
}

// Bounds of one node.
const (
	MaxDrivers      = 64
	MaxDeviceGroups = 64
	MaxNamespaces   = 64
)

// sha256Hex is the format of a secret's hash.
var sha256Hex = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

// Validate checks a node's report about itself. The error is a *FieldError.
func (n *Node) Validate() error {
	c := checker{object: func() string { return fmt.Sprintf("node %q", n.Name) }}
	c.id("name", n.Name)
	if n.SecretHash != "" && !sha256Hex().MatchString(n.SecretHash) {
		c.fail("secret_hash", "is no SHA-256 in lower-case hexadecimal")
	}
	if len(n.Drivers) > MaxDrivers {
		c.fail("drivers", fmt.Sprintf("are more than %d", MaxDrivers))
	}
	for _, id := range slices.Sorted(maps.Keys(n.Drivers)) {
		d := n.Drivers[id]
		c.id("driver id", id)
		if d.ID != id {
			c.fail("driver "+id, fmt.Sprintf("says that its id is %q", d.ID))
		}
		if !slices.Contains([]DriverType{NodeService, ControllerService, Monolith}, d.Type) {
			c.fail("driver "+id, fmt.Sprintf("has the unknown type %q", d.Type))
		}
	}
	if len(n.Devices) > MaxDeviceGroups {
		c.fail("devices", fmt.Sprintf("are more than %d groups", MaxDeviceGroups))
	}
	for _, d := range n.Devices {
		if d.Vendor == "" || d.Type == "" || d.Name == "" {
			c.fail("devices", fmt.Sprintf("have the group \"%s/%s/%s\", a part of whose name is missing",
				d.Vendor, d.Type, d.Name))
		}
		if d.Healthy < 0 || d.Healthy > d.Total {
			c.fail("devices", fmt.Sprintf("of the group \"%s/%s/%s\" are %d, and %d of them healthy",
				d.Vendor, d.Type, d.Name, d.Total, d.Healthy))
		}
	}
	return c.err
}

// Driver sums up one CSI driver over all nodes. It is derived from the nodes' records and never set directly.
type Driver struct {
	ID       string `json:"id"`
	Provider string `json:"provider,omitempty"` // as the last node reported
	Version  string `json:"version,omitempty"`  // as the last node reported

	ControllersHealthy  int `json:"controllers_healthy"`
	ControllersExpected int `json:"controllers_expected"`
	NodesHealthy        int `json:"nodes_healthy"`
	NodesExpected       int `json:"nodes_expected"`
	// HadController is true if a node has reported a controller, and so is its first one (Node.ControllerOf).
	HadController bool `json:"had_controller,omitempty" proto:"-"`

	// Nodes is the driver on each node, by node name. A query fills it in.
	Nodes map[string]NodeDriver `json:"-"`

	ModifyIndex uint64    `json:"modify_index"`
	ModifiedAt  time.Time `json:"modified_at"`
}

// Replace replaces one node's contribution to the counts: before is subtracted and now added; nil: none.
func (d *Driver) Replace(before, now *NodeDriver) {
	d.count(before, -1)
	d.count(now, +1)
	d.HadController = d.HadController || now != nil && now.Type != NodeService
	if now != nil && now.Provider != "" {
		d.Provider, d.Version = now.Provider, now.Version
	}
}

func (d *Driver) count(n *NodeDriver, by int) {
	if n == nil {
		return
	}
	if n.Type != NodeService {
		d.ControllersExpected += by
		if n.ForController().Healthy {
			d.ControllersHealthy += by
		}
	}
	if n.Type != ControllerService {
		d.NodesExpected += by
		if n.Healthy {
			d.NodesHealthy += by
		}
	}
}

// Unused reports whether no node has the driver.
func (d *Driver) Unused() bool { return d.ControllersExpected == 0 && d.NodesExpected == 0 }
