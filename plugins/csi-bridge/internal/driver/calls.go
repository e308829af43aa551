package driver

import (
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// This file is the whole policy of calls to a driver:
//
//	class  | deadline                          | retried on
//	ask    | 5 s (Probe: what the caller sets) | never: the fingerprint asks again
//	change | 2 m in all                        | Unavailable, DeadlineExceeded, ResourceExhausted, Aborted
//	read   | 2 m in all                        | the same
//	list   | 2 m in all                        | the same without Aborted
type class struct {
	budgeted bool // Timing.Budget in all, else Timing.Ask
	changes  bool // an answer that never came leaves it open what is true now
	retry    []codes.Code
}

var (
	ask    = &class{}
	change = &class{budgeted: true, changes: true, retry: passing}
	read   = &class{budgeted: true, retry: passing}
	// For a list Aborted means that starting_token is not valid, which the same
	// call again cannot mend (CSI spec, "ListVolumes Errors").
	list = &class{budgeted: true, retry: []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted}}
)

// passing are the codes of what passes by itself. Aborted means that an
// operation on the volume is pending (CSI spec, "Error Scheme").
var passing = []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted}

// RPC is one of CSI's calls with its policy.
type RPC struct {
	method string // full gRPC name
	does   string // in messages, before the name of the object
	class  *class
}

// The RPCs that the bridge makes.
var (
	Probe                 = RPC{csi.Identity_Probe_FullMethodName, "probe", ask}
	GetPluginInfo         = RPC{csi.Identity_GetPluginInfo_FullMethodName, "read the identity", ask}
	GetPluginCapabilities = RPC{csi.Identity_GetPluginCapabilities_FullMethodName, "read the capabilities", ask}
	GetControllerCaps     = RPC{csi.Controller_ControllerGetCapabilities_FullMethodName, "read the controller's capabilities", ask}
	GetNodeCaps           = RPC{csi.Node_NodeGetCapabilities_FullMethodName, "read the node's capabilities", ask}
	GetNodeInfo           = RPC{csi.Node_NodeGetInfo_FullMethodName, "read the node's id", ask}

	CreateVolume   = RPC{csi.Controller_CreateVolume_FullMethodName, "create volume", change}
	DeleteVolume   = RPC{csi.Controller_DeleteVolume_FullMethodName, "delete volume", change}
	AttachVolume   = RPC{csi.Controller_ControllerPublishVolume_FullMethodName, "attach volume", change}
	DetachVolume   = RPC{csi.Controller_ControllerUnpublishVolume_FullMethodName, "detach volume", change}
	ValidateVolume = RPC{csi.Controller_ValidateVolumeCapabilities_FullMethodName, "validate volume", read}
	ExpandVolume   = RPC{csi.Controller_ControllerExpandVolume_FullMethodName, "expand volume", change}
	CreateSnapshot = RPC{csi.Controller_CreateSnapshot_FullMethodName, "create snapshot", change}
	DeleteSnapshot = RPC{csi.Controller_DeleteSnapshot_FullMethodName, "delete snapshot", change}
	ListVolumes    = RPC{csi.Controller_ListVolumes_FullMethodName, "list volumes", list}
	ListSnapshots  = RPC{csi.Controller_ListSnapshots_FullMethodName, "list snapshots", list}

	StageVolume      = RPC{csi.Node_NodeStageVolume_FullMethodName, "stage volume", change}
	UnstageVolume    = RPC{csi.Node_NodeUnstageVolume_FullMethodName, "unstage volume", change}
	PublishVolume    = RPC{csi.Node_NodePublishVolume_FullMethodName, "publish volume", change}
	UnpublishVolume  = RPC{csi.Node_NodeUnpublishVolume_FullMethodName, "unpublish volume", change}
	ExpandNodeVolume = RPC{csi.Node_NodeExpandVolume_FullMethodName, "expand mounted volume", change}
	VolumeStats      = RPC{csi.Node_NodeGetVolumeStats_FullMethodName, "read the statistics of volume", read}
	VolumeHealth     = RPC{csi.Node_NodeGetVolumeHealth_FullMethodName, "read the health of volume", read}
)

// retries says whether the call is made again, with the same arguments, after
// code. Beside the codes that the spec forbids to retry, Internal and Unknown
// are not retried: the spec gives them no recovery, drivers use them for
// whatever went wrong half way, and two minutes of the same failed mount helps
// no one. The call's effect is then uncertain, and the host, which sees the
// error at once, repeats or reverses it by its own clock.
func (r RPC) retries(code codes.Code) bool { return slices.Contains(r.class.retry, code) }

// Timing is the policy's clock. Tests shorten it; nothing else may.
type Timing struct {
	Ask    time.Duration // deadline of a call of the class ask
	Budget time.Duration // of a retried call, all attempts and waits together
	// Attempt bounds each attempt until one has run out of it; from then on an
	// attempt may take what is left of Budget. So a driver that hung once is asked
	// again, and one that is only slow can still finish.
	Attempt    time.Duration
	Backoff    time.Duration // before the second attempt, ± half; doubles each time
	BackoffMax time.Duration
}

// DefaultTiming is what every build but a test runs with.
var DefaultTiming = Timing{
	Ask:        5 * time.Second,
	Budget:     2 * time.Minute,
	Attempt:    30 * time.Second,
	Backoff:    100 * time.Millisecond,
	BackoffMax: 5 * time.Second,
}
