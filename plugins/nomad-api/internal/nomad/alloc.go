package nomad

import (
	"github.com/hashicorp/nomad/api"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// stateTaken is the state of a claim whose workload uses the volume. In all others it is being released.
	stateTaken = "taken"
	// modeWrite is the mode of a claim that may write.
	modeWrite = "write"
)

// allocationOf shows a claim as an allocation, without what Pannier has nothing for. One that is being released is a
// stopped allocation that still holds the volume, as a past claim is in Nomad.
func allocationOf(c *hostv1.Claim) *api.AllocationListStub {
	a := &api.AllocationListStub{
		ID: allocID(c), Name: c.GetWorkload(), Namespace: c.GetNamespace(),
		NodeID: nodeID(c.GetNode()), NodeName: c.GetNode(),
		JobID: c.GetWorkload(), JobType: "service", TaskGroup: c.GetWorkload(),
		DesiredStatus: "run", ClientStatus: "running",
		CreateIndex: c.GetIndex(), ModifyIndex: c.GetIndex(),
		CreateTime: nanoseconds(c.GetTakenAt()), ModifyTime: nanoseconds(c.GetModifiedAt()),
	}
	if c.GetState() != stateTaken {
		a.DesiredStatus, a.ClientStatus = "stop", "complete"
		a.DesiredDescription, a.ClientDescription = "the volume is being released: "+c.GetState(), c.GetLastError()
	}
	return a
}

// nanoseconds is a time as Nomad has it; 0: there is none.
func nanoseconds(t *timestamppb.Timestamp) int64 {
	if t == nil {
		return 0
	}
	return t.AsTime().UnixNano()
}
