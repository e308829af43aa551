package server

import (
	"maps"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/host/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/host/internal/workload"
)

// workloadSpec takes in a workload's spec, which workload.Spec checks itself. Empty
// lists and maps are nil, as in one that comes back from the journal: the two are
// compared.
func workloadSpec(spec *hostv1.WorkloadSpec) workload.Spec {
	out := workload.Spec{WorkloadRef: claim.WorkloadRef{Namespace: namespaceOr(spec.GetNamespace()), ID: spec.GetId()}}
	for _, v := range spec.GetVolumes() {
		out.Volumes = append(out.Volumes, workload.VolumeRequest{
			Name: v.GetName(), Source: v.GetSource(), ReadOnly: v.GetReadOnly(),
			AccessMode: claim.AccessMode(v.GetAccessMode()), AttachmentMode: claim.AttachmentMode(v.GetAttachmentMode()),
			MountOptions: mountOptions(v.GetMountOptions()), Destination: v.GetDestination(),
		})
	}
	if e := spec.GetExec(); e != nil {
		out.Exec = &workload.Exec{Command: e.GetCommand(), Args: notEmpty(e.GetArgs()), User: e.GetUser()}
		if len(e.GetEnv()) > 0 {
			out.Exec.Env = maps.Clone(e.GetEnv())
		}
	}
	return out
}

func shownWorkloadSpec(spec workload.Spec) *hostv1.WorkloadSpec {
	out := &hostv1.WorkloadSpec{Namespace: spec.Namespace, Id: spec.ID}
	for _, v := range spec.Volumes {
		out.Volumes = append(out.Volumes, &hostv1.VolumeRequest{
			Name: v.Name, Source: v.Source, ReadOnly: v.ReadOnly, AccessMode: string(v.AccessMode), AttachmentMode: string(v.AttachmentMode),
			MountOptions: shownMountOptions(v.MountOptions), Destination: v.Destination,
		})
	}
	if e := spec.Exec; e != nil {
		out.Exec = &hostv1.Exec{Command: e.Command, Args: notEmpty(e.Args), Env: maps.Clone(e.Env), User: e.User}
	}
	return out
}

// shownWorkload is a workload with what its release waits for, where it does.
func (s *Server) shownWorkload(w workload.Workload) *hostv1.Workload {
	out := &hostv1.Workload{
		Spec: shownWorkloadSpec(w.Spec), Node: s.cfg.Name, State: string(w.State), Message: w.Message,
		StartedAt: timestamp(w.StartedAt), EndedAt: timestamp(w.EndedAt), OwnerPid: int64(w.OwnerPID), Pid: int64(w.PID),
		VolumesDir: s.cfg.VolumesDir,
	}
	if w.State == workload.Stopping && w.Waiting != "" {
		out.Message = w.Waiting
	}
	for _, m := range w.Mounts {
		out.Mounts = append(out.Mounts, &hostv1.Mount{
			Volume: m.Volume.ID, Request: m.Request, HostPath: m.HostPath, Destination: m.Destination,
			ReadOnly: m.ReadOnly, Block: m.Block, Propagation: "rprivate",
		})
	}
	for _, step := range w.Steps {
		out.Steps = append(out.Steps, shownStep(step))
	}
	return out
}

func shownStep(step workload.Step) *hostv1.Step {
	return &hostv1.Step{
		Name: step.Name, Volume: step.Volume, State: string(step.State), Undo: step.Undo,
		StartedAt: timestamp(step.StartedAt), Took: durationpb.New(step.Took), Error: step.Error, Attempt: int32(step.Attempt),
	}
}
