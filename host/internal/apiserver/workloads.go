package apiserver

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// workloadService serves pannier.host.v1.WorkloadService.
type workloadService struct{ *Server }

// StartWorkload brings a workload up and streams its steps.
func (s workloadService) StartWorkload(ctx context.Context, req *connect.Request[hostv1.StartWorkloadRequest], stream *connect.ServerStream[hostv1.StartWorkloadResponse]) error {
	spec, err := workloadSpec(req.Msg.GetSpec())
	if err != nil {
		return err
	}
	var opts workload.Options
	if req.Msg.GetReleaseWithCaller() {
		if opts.Owner = peerOf(ctx).pid; opts.Owner == 0 {
			return connect.NewError(connect.CodeFailedPrecondition,
				errors.New("release_with_caller: the calling process is in a pid namespace that the agent cannot see: call without it, and stop the workload"))
		}
	}
	// A caller that is gone ends the waiting, not the start.
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	opts.Progress = func(step workload.Step) {
		if err := stream.Send(&hostv1.StartWorkloadResponse{Event: &hostv1.StartWorkloadResponse_Step{Step: shownStep(step)}}); err != nil {
			leave(err)
		}
	}
	w, err := s.cfg.Workloads.Start(ctx, spec, opts)
	if err != nil {
		return err
	}
	shown, err := s.shownWorkload(w)
	if err != nil {
		return err
	}
	return stream.Send(&hostv1.StartWorkloadResponse{Event: &hostv1.StartWorkloadResponse_Workload{Workload: shown}})
}

// StopWorkload takes a workload down and streams its steps until nothing is left.
func (s workloadService) StopWorkload(ctx context.Context, req *connect.Request[hostv1.StopWorkloadRequest], stream *connect.ServerStream[hostv1.StopWorkloadResponse]) error {
	ref, err := workloadRef(req.Msg)
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	progress := func(step workload.Step) {
		if err := stream.Send(&hostv1.StopWorkloadResponse{Event: &hostv1.StopWorkloadResponse_Step{Step: shownStep(step)}}); err != nil {
			leave(err)
		}
	}
	w, err := s.cfg.Workloads.Stop(ctx, ref, fmt.Sprintf("stopped by %s", callerOf(ctx).who()), progress)
	if err != nil {
		return err
	}
	shown, err := s.shownWorkload(w)
	if err != nil {
		return err
	}
	return stream.Send(&hostv1.StopWorkloadResponse{Event: &hostv1.StopWorkloadResponse_Workload{Workload: shown}})
}

// RunningWorkload tells which process is the workload.
func (s workloadService) RunningWorkload(_ context.Context, req *connect.Request[hostv1.RunningWorkloadRequest]) (*connect.Response[hostv1.RunningWorkloadResponse], error) {
	ref, err := workloadRef(req.Msg)
	if err != nil {
		return nil, err
	}
	const maxPID = 1 << 22 // proc(5), pid_max
	pid := req.Msg.GetPid()
	if pid < 1 || pid > maxPID {
		return nil, invalid(fmt.Sprintf("workload %q", ref), "pid", fmt.Sprintf("%d is no process id", pid))
	}
	return connect.NewResponse(&hostv1.RunningWorkloadResponse{}), s.cfg.Workloads.Running(ref, int(pid))
}

// GetWorkload reads one workload.
func (s workloadService) GetWorkload(_ context.Context, req *connect.Request[hostv1.GetWorkloadRequest]) (*connect.Response[hostv1.GetWorkloadResponse], error) {
	ref, err := workloadRef(req.Msg)
	if err != nil {
		return nil, err
	}
	w, err := s.cfg.Workloads.Get(ref)
	if err != nil {
		return nil, err
	}
	shown, err := s.shownWorkload(w)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostv1.GetWorkloadResponse{Workload: shown}), nil
}

// ListWorkloads lists the workloads of this node, those that ended lately too.
func (s workloadService) ListWorkloads(_ context.Context, req *connect.Request[hostv1.ListWorkloadsRequest]) (*connect.Response[hostv1.ListWorkloadsResponse], error) {
	namespace := allOr(req.Msg.GetNamespace())
	if namespace != "" {
		if err := claim.CheckID(namespace); err != nil {
			return nil, invalid("list workloads", "namespace", err.Error())
		}
	}
	resp := &hostv1.ListWorkloadsResponse{}
	for _, w := range s.cfg.Workloads.List() {
		if namespace != "" && w.Spec.Namespace != namespace {
			continue
		}
		shown, err := s.shownWorkload(w)
		if err != nil {
			return nil, err
		}
		resp.Workloads = append(resp.Workloads, shown)
	}
	return connect.NewResponse(resp), nil
}

// workloadRef is the workload that a request names.
func workloadRef(req interface {
	GetNamespace() string
	GetId() string
},
) (claim.WorkloadRef, error) {
	ref := claim.WorkloadRef{Namespace: namespaceOr(req.GetNamespace()), ID: req.GetId()}
	return ref, ref.Validate()
}
