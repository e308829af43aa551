package workload

import "context"

// A workload's start, from top to bottom; its stop, from bottom to top.
//
// Steps of the whole workload run one after the other. Steps of each volume run
// in their order for one volume, and side by side for several.
var steps = []step{
	{name: "claim", do: (*run).claim, undo: (*run).release},
	{name: "attach", each: true, when: attaches, do: (*run).attach, undo: (*run).leaveAttachment},
	{name: "stage", each: true, when: stages, do: (*run).stage, undo: (*run).unstage},
	{name: "publish", each: true, do: (*run).publish, undo: (*run).withdraw},
}

// step is one reversible action. Do and Undo are told the volume where the step
// is one of each volume, and nil otherwise.
type step struct {
	name string
	each bool                 // of each volume, not of the whole workload
	when func(v *volume) bool // nil: always

	do, undo func(r *run, ctx context.Context, v *volume) error
}

// attaches: the driver has a controller service with PUBLISH_UNPUBLISH_VOLUME
// (CSI spec, ControllerPublishVolume).
func attaches(v *volume) bool {
	c := v.driver.Fingerprint.Controller
	return c != nil && c.AttachDetach
}

// stages: the driver has STAGE_UNSTAGE_VOLUME (CSI spec, NodeStageVolume).
func stages(v *volume) bool {
	n := v.driver.Fingerprint.Node
	return n != nil && n.StageUnstage
}
