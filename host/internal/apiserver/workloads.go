package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
)

// workloadService serves pannier.host.v1.WorkloadService.
type workloadService struct{ *Server }

// StartWorkload starts a workload and streams its steps.
func (s workloadService) StartWorkload(ctx context.Context, req *hostv1.StartWorkloadRequest,
	stream *connect.ServerStream[hostv1.StartWorkloadResponse],
) error {
	spec, err := workloadSpec(req.GetSpec())
	if err != nil {
		return err
	}
	opts := workload.Options{Token: call.SecretOf(ctx), Update: req.GetUpdate()}
	if req.GetReleaseWithCaller() {
		if opts.Owner = call.CallerOf(ctx).PID; opts.Owner == 0 {
			return connect.NewError(connect.CodeFailedPrecondition,
				errors.New(
					"release_with_caller: the calling process is in a pid namespace that the agent cannot see: call without it, and stop the workload"))
		}
	}
	if at := req.GetMountedAt(); at != "" {
		if opts.Owner == 0 || !filepath.IsAbs(at) || filepath.Clean(at) != at || len(at) >= unix.PathMax {
			return call.Invalid(fmt.Sprintf("workload %q", spec.WorkloadRef), "mounted_at",
				"it must be an absolute, clean path, and release_with_caller be set")
		}
		opts.MountedAt = at
	}
	// If the caller disconnects the wait ends, not the start.
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	opts.Progress = func(step workload.Step) {
		if err := stream.Send(
			&hostv1.StartWorkloadResponse{Event: &hostv1.StartWorkloadResponse_Step{Step: shownStep(step)}}); err != nil {
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

// CheckWorkload says what StartWorkload would do on this node.
func (s workloadService) CheckWorkload(ctx context.Context, req *hostv1.CheckWorkloadRequest,
) (*hostv1.CheckWorkloadResponse, error) {
	spec, err := workloadSpec(req.GetSpec())
	if err != nil {
		return nil, err
	}
	found, err := s.cfg.Workloads.Check(ctx, spec)
	if err != nil {
		return nil, err
	}
	resp := &hostv1.CheckWorkloadResponse{Node: s.cfg.Name, State: string(found.State)}
	for _, v := range found.Volumes {
		mode := claim.Write
		if v.Usage.ReadOnly {
			mode = claim.Read
		}
		resp.Volumes = append(resp.Volumes, &hostv1.CheckedVolume{
			Request: v.Request.Name, Volume: v.Request.Source, Driver: v.Driver, Mode: string(mode),
			AccessMode: string(v.Usage.AccessMode), AttachmentMode: string(v.Usage.AttachmentMode),
		})
	}
	for _, problem := range found.Problems {
		resp.Problems = append(resp.Problems, problem.Error())
	}
	return resp, nil
}

// StopWorkload stops a workload and streams its steps until nothing is left.
func (s workloadService) StopWorkload(ctx context.Context, req *hostv1.StopWorkloadRequest,
	stream *connect.ServerStream[hostv1.StopWorkloadResponse],
) error {
	ref, err := workloadRef(req)
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancelCause(ctx)
	defer leave(nil)
	progress := func(step workload.Step) {
		if err := stream.Send(
			&hostv1.StopWorkloadResponse{Event: &hostv1.StopWorkloadResponse_Step{Step: shownStep(step)}}); err != nil {
			leave(err)
		}
	}
	if req.GetForce() {
		if err := s.cfg.Workloads.Force(ref, call.CallerOf(ctx).Who()); err != nil {
			return err
		}
	}
	w, err := s.cfg.Workloads.Stop(ctx, ref, fmt.Sprintf("stopped by %s", call.CallerOf(ctx).Who()), progress)
	if err != nil {
		return err
	}
	shown, err := s.shownWorkload(w)
	if err != nil {
		return err
	}
	return stream.Send(&hostv1.StopWorkloadResponse{Event: &hostv1.StopWorkloadResponse_Workload{Workload: shown}})
}

// RunningWorkload records which process is the workload.
func (s workloadService) RunningWorkload(ctx context.Context,
	req *hostv1.RunningWorkloadRequest,
) (*hostv1.RunningWorkloadResponse, error) {
	ref, err := workloadRef(req)
	if err != nil {
		return nil, err
	}
	const maxPID = 1 << 22 // proc(5), pid_max
	pid := req.GetPid()
	if pid < 1 || pid > maxPID {
		return nil, call.Invalid(fmt.Sprintf("workload %q", ref), "pid", fmt.Sprintf("%d is no process id", pid))
	}
	caller := call.CallerOf(ctx).PID
	if caller == 0 {
		return nil, fmt.Errorf("workload %q: %w: call over the agent's unix socket, on its host", ref, workload.ErrNotOwner)
	}
	return &hostv1.RunningWorkloadResponse{}, s.cfg.Workloads.Running(ref, int(pid), caller)
}

// GetWorkload reads one workload.
func (s workloadService) GetWorkload(ctx context.Context,
	req *hostv1.GetWorkloadRequest,
) (*hostv1.GetWorkloadResponse, error) {
	if node := req.GetNode(); s.isOther(node) {
		return askNode(ctx, s.Server, req, node, nodePatience, nodeClients.GetWorkload)
	}
	ref, err := workloadRef(req)
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
	resp := &hostv1.GetWorkloadResponse{Workload: shown}
	if req.GetTokens() {
		if resp.Tokens, err = s.inspectTokens(ctx, ref); err != nil {
			return nil, err
		}
	}
	if !req.GetHolders() {
		return resp, nil
	}
	held, err := s.cfg.Workloads.Holders(ref)
	if err != nil {
		return nil, err
	}
	for _, h := range held {
		resp.Holders = append(resp.Holders, &hostv1.Holder{
			Request: h.Request, Pid: int64(h.PID), Command: h.Command, Path: h.Path, ReadOnly: h.ReadOnly,
			Owner: owner.Of(h.PID, h.Group).Name, Stop: h.Stop(),
		})
	}
	return resp, nil
}

func (s workloadService) inspectTokens(ctx context.Context, ref claim.WorkloadRef) (all []*hostv1.InspectedToken,
	err error,
) {
	found, err := s.cfg.Workloads.InspectTokens(ctx, ref)
	for _, t := range found {
		shown := &hostv1.InspectedToken{Token: shownToken(t.Token, false), State: string(t.State)}
		if t.Err != nil {
			shown.Error = t.Err.Error()
		}
		all = append(all, shown)
	}
	return all, err
}

// ListWorkloads lists the workloads of this node, including those that ended recently.
func (s workloadService) ListWorkloads(ctx context.Context,
	req *hostv1.ListWorkloadsRequest,
) (*hostv1.ListWorkloadsResponse, error) {
	if node := req.GetNode(); s.isOther(node) {
		return askNode(ctx, s.Server, req, node, nodePatience, nodeClients.ListWorkloads)
	}
	namespace := call.AllOr(req.GetNamespace())
	if namespace != "" {
		if err := claim.CheckID(namespace); err != nil {
			return nil, call.Invalid("list workloads", "namespace", err.Error())
		}
	}
	resp := &hostv1.ListWorkloadsResponse{Node: s.cfg.Name}
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
	return resp, nil
}

// workloadRef returns the workload that a request names.
func workloadRef(req call.Namespaced) (claim.WorkloadRef, error) {
	ref := claim.WorkloadRef{Namespace: call.NamespaceOr(req.GetNamespace()), ID: req.GetId()}
	return ref, ref.Validate()
}

// workloadSpec converts a workload's spec, which workload.Spec.Validate checks. Empty lists and maps become nil, as
// in specs from the journal, since the two are compared.
func workloadSpec(spec *hostv1.WorkloadSpec) (workload.Spec, error) {
	out := workload.Spec{
		WorkloadRef: claim.WorkloadRef{Namespace: call.NamespaceOr(spec.GetNamespace()), ID: spec.GetId()},
		User:        spec.GetUser(), Canary: spec.GetCanary(),
	}
	for _, v := range spec.GetVolumes() {
		out.Volumes = append(out.Volumes, volumesteps.Request{
			Name: v.GetName(), Source: v.GetSource(), Driver: v.GetDriver(), ReadOnly: v.GetReadOnly(),
			AccessMode: claim.AccessMode(v.GetAccessMode()), AttachmentMode: claim.AttachmentMode(v.GetAttachmentMode()),
			MountOptions: call.MountOptions(v.GetMountOptions()), Destination: v.GetDestination(),
		})
		if len(v.GetAttributes()) > 0 {
			out.Volumes[len(out.Volumes)-1].Attributes = maps.Clone(v.GetAttributes())
		}
	}
	if e := spec.GetExec(); e != nil {
		out.Exec = &workload.Exec{Command: e.GetCommand(), Args: call.NotEmpty(e.GetArgs()), User: e.GetUser()}
		if len(e.GetEnv()) > 0 {
			out.Exec.Env = maps.Clone(e.GetEnv())
		}
	}
	for _, m := range spec.GetServices() {
		svc, err := service.FromProto(m)
		if err != nil {
			return out, call.Invalid(fmt.Sprintf("workload %q", out.WorkloadRef), fmt.Sprintf("service %q", m.GetName()), err.Error())
		}
		out.Services = append(out.Services, svc)
	}
	for _, p := range spec.GetPorts() {
		out.Ports = append(out.Ports, workload.Port{Label: p.GetLabel(), Static: int(p.GetStatic())})
	}
	for _, c := range spec.GetSidecars() {
		out.Sidecars = append(out.Sidecars, workload.Sidecar{
			Service: c.GetService(), Command: call.NotEmpty(c.GetCommand()), Env: maps.Clone(c.GetEnv()), User: c.GetUser(),
		})
	}
	for _, d := range spec.GetDevices() {
		out.Devices = append(out.Devices, workload.DeviceRequest{Name: d.GetName(), Count: int(d.GetCount())})
	}
	out.Units = call.NotEmpty(spec.GetUnits())
	var err error
	if out.After, err = awaited(out.WorkloadRef, "after", spec.GetAfter()); err != nil {
		return out, err
	}
	out.Replaces, err = awaited(out.WorkloadRef, "replaces", spec.GetReplaces())
	return out, err
}

// awaited converts the workloads that another one names. Names without a namespace are in its own.
func awaited(by claim.WorkloadRef, field string, names []string) (refs []claim.WorkloadRef, err error) {
	for _, name := range names {
		ref := claim.WorkloadRef{Namespace: by.Namespace, ID: name}
		if namespace, id, qualified := strings.Cut(name, "/"); qualified {
			ref = claim.WorkloadRef{Namespace: namespace, ID: id}
		}
		if err := ref.Validate(); err != nil {
			return nil, call.Invalid(fmt.Sprintf("workload %q", by), field,
				fmt.Sprintf("names %q, which is neither ID nor NAMESPACE/ID: %v", name, err))
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// shownAwaited names workloads as seen from a namespace.
func shownAwaited(namespace string, refs []claim.WorkloadRef) (names []string) {
	for _, ref := range refs {
		if ref.Namespace == namespace {
			names = append(names, ref.ID)
		} else {
			names = append(names, ref.Namespace+"/"+ref.ID)
		}
	}
	return names
}

func shownWorkloadSpec(spec workload.Spec) (*hostv1.WorkloadSpec, error) {
	out := &hostv1.WorkloadSpec{
		Namespace: spec.Namespace, Id: spec.ID, User: spec.User, Canary: spec.Canary,
		After: shownAwaited(spec.Namespace, spec.After), Replaces: shownAwaited(spec.Namespace, spec.Replaces),
		Units: call.NotEmpty(spec.Units),
	}
	for _, v := range spec.Volumes {
		out.Volumes = append(out.Volumes, &hostv1.VolumeRequest{
			Name: v.Name, Source: v.Source, Driver: v.Driver, Attributes: maps.Clone(v.Attributes), ReadOnly: v.ReadOnly,
			AccessMode: string(v.AccessMode), AttachmentMode: string(v.AttachmentMode),
			MountOptions: call.ShownMountOptions(v.MountOptions), Destination: v.Destination,
		})
	}
	if e := spec.Exec; e != nil {
		out.Exec = &hostv1.Exec{Command: e.Command, Args: call.NotEmpty(e.Args), Env: maps.Clone(e.Env), User: e.User}
	}
	for _, svc := range spec.Services {
		m, err := svc.ToProto()
		if err != nil {
			return nil, fmt.Errorf("show workload %q: service %q: %w", spec.WorkloadRef, svc.Name, err)
		}
		out.Services = append(out.Services, m)
	}
	for _, p := range spec.Ports {
		out.Ports = append(out.Ports, &hostv1.Port{Label: p.Label, Static: int32(p.Static)})
	}
	for _, c := range spec.Sidecars {
		out.Sidecars = append(out.Sidecars, &hostv1.Sidecar{
			Service: c.Service, Command: call.NotEmpty(c.Command), Env: maps.Clone(c.Env), User: c.User,
		})
	}
	for _, d := range spec.Devices {
		out.Devices = append(out.Devices, &hostv1.DeviceRequest{Name: d.Name, Count: int32(d.Count)})
	}
	return out, nil
}

// shownRelease returns a release that has to wait.
func shownRelease(w workload.Workload) *hostv1.Release {
	r := w.Release
	return &hostv1.Release{
		Workload: w.Spec.String(), Tries: int32(r.Tries), Since: call.Time(r.Since), Error: r.Error,
		NextTryAt: call.Time(r.NextAt), Command: r.Command,
	}
}

// releases are those of this node's workloads that have to wait.
func (s *Server) releases() (all []*hostv1.Release) {
	for _, w := range s.cfg.Workloads.List() {
		if w.Release.Tries > 0 {
			all = append(all, shownRelease(w))
		}
	}
	return all
}

// releaseTimeout bounds asking a node how a release goes.
const releaseTimeout = 2 * time.Second

// releaseOf returns how the release of a claim goes while its node has to act; zero: it does not wait, or it is not
// known.
func (s *Server) releaseOf(ctx context.Context, c claim.Claim) workload.Release {
	if c.Node == s.cfg.Name {
		return s.ownRelease(c)
	}
	if s.cfg.Nodes == nil || c.State == claim.Taken || !c.State.Before(claim.NodeDetached) {
		return workload.Release{}
	}
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	r, err := s.cfg.Nodes.Release(ctx, c)
	if err != nil {
		s.log.Debug("a node does not say how a release goes", "node", c.Node, "workload", c.Workload, "error", err)
	}
	return r
}

// ownRelease is how the release of a claim goes on this node; zero for a claim of another node.
func (s *Server) ownRelease(c claim.Claim) workload.Release {
	if c.Node != s.cfg.Name || !c.State.Before(claim.NodeDetached) {
		return workload.Release{}
	}
	w, _ := s.cfg.Workloads.Get(c.Workload) // zero for one that is not here
	return w.Release
}

// shownWorkload returns a workload as the API shows it, with what its release waits for.
func (s *Server) shownWorkload(w workload.Workload) (*hostv1.Workload, error) {
	spec, err := shownWorkloadSpec(w.Spec)
	if err != nil {
		return nil, err
	}
	out := &hostv1.Workload{
		Spec: spec, Node: s.cfg.Name, State: string(w.State), Message: w.Message,
		StartedAt: call.Time(w.StartedAt), EndedAt: call.Time(w.EndedAt), OwnerPid: int64(w.OwnerPID), Pid: int64(w.PID),
		VolumesDir: s.cfg.VolumesDir, SecretsDir: w.SecretsDir,
		WaitsFor: shownAwaited(w.Spec.Namespace, w.WaitsFor), WaitsSince: call.Time(w.WaitsSince),
	}
	if w.Waiting != "" && !w.State.Ended() {
		out.Message = w.Waiting
	}
	if w.Release.Tries > 0 {
		out.Release = shownRelease(w)
	}
	for _, m := range w.Mounts {
		out.Mounts = append(out.Mounts, &hostv1.Mount{
			Volume: m.Volume.ID, Request: m.Request, HostPath: m.HostPath, Destination: m.Destination,
			ReadOnly: m.ReadOnly, Block: m.Block, Propagation: "rprivate", Suid: m.SUID, Dev: m.Dev,
			Driver: m.Driver,
		})
	}
	for _, step := range w.Steps {
		out.Steps = append(out.Steps, shownStep(step))
	}
	for _, svc := range w.Services {
		out.Services = append(out.Services, s.shownService(svc))
	}
	for _, c := range w.Credentials {
		out.Credentials = append(out.Credentials, &hostv1.Credential{Name: c.Name, File: c.File})
		out.CredentialsSocket = s.cfg.CredentialsSocket
	}
	for label, number := range w.Ports {
		if out.Ports == nil {
			out.Ports = map[string]int32{}
		}
		out.Ports[label] = int32(number)
	}
	for _, d := range w.Devices {
		out.Devices = append(out.Devices, &hostv1.GivenDevice{Request: d.Request, Plugin: d.Plugin, Group: d.Group, Id: d.ID})
	}
	if len(w.Devices) > 0 {
		out.Reservation = shownReservation(w.Reservation)
	}
	return out, nil
}

// shownService returns a service's state. A problem of the service itself is shown rather than one of its Consul.
func (s *Server) shownService(svc servicesteps.Status) *hostv1.ServiceStatus {
	return &hostv1.ServiceStatus{
		Name: svc.Name, Id: svc.ID, ProxyId: svc.ProxyID, Consul: svc.Consul, Port: int32(svc.Port),
		TokenAccessor: svc.Accessor, TokenExpiresAt: call.Time(svc.ExpiresAt),
		TokenFile: svc.TokenFile, BootstrapFile: svc.BootstrapFile,
		AdminPort: int32(svc.AdminPort), ReadyPort: int32(svc.ReadyPort),
		AdminSocket: svc.AdminSocket, ReadySocket: svc.ReadySocket, Upstreams: svc.Upstreams,
		Message: cmp.Or(svc.Message, s.cfg.Services.Conflict(svc.Consul, svc.ID),
			s.cfg.Services.Problems()[svc.Consul]),
	}
}

func shownStep(step workload.Step) *hostv1.Step {
	return &hostv1.Step{
		Name: step.Name, Volume: step.Volume, Service: step.Service, State: string(step.State), Undo: step.Undo,
		StartedAt: call.Time(step.StartedAt), Took: durationpb.New(
			step.Took), Error: step.Error, Note: step.Note, Attempt: int32(step.Attempt),
	}
}
