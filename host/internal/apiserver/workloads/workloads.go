package workloads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/asknode"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/onbehalf"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/host/internal/workload/specs"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/convert"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/service"
)

// Handler serves pannier.host.v1.WorkloadService and TokenService.
type Handler struct {
	Name string // of this node
	// VolumesDir is where the host mounts volumes.
	VolumesDir string
	// CredentialsSocket is from where units load their workloads' secrets.
	CredentialsSocket string
	Workloads         Workloads
	Services          Services
	Nodes             *asknode.Asker
	// Ledger is nil on an agent that is no server. It does not answer for tokens.
	Ledger call.Ledger
	Tokens Tokens
}

// Workloads are this node's workloads (workload.Manager).
type Workloads interface {
	Start(ctx context.Context, spec specs.Spec, opts workload.Options) (workload.Workload, error)
	// Check returns what Start would do, and changes nothing.
	Check(ctx context.Context, spec specs.Spec) (workload.Check, error)
	Stop(ctx context.Context, ref claim.WorkloadRef, reason string, progress func(workload.Step)) (workload.Workload,
		error)
	// Leave takes a workload's services out of Consul's catalog, for its stop.
	Leave(ctx context.Context, ref claim.WorkloadRef) error
	// Force lets the release of a workload unmount what drivers do not.
	Force(ref claim.WorkloadRef, by string) error
	Running(ref claim.WorkloadRef, pid int, caller process.Ref) error
	Get(ref claim.WorkloadRef) (workload.Workload, error)
	List() []workload.Workload
	// Holders lists who has the volumes of a workload, besides the host.
	Holders(ref claim.WorkloadRef) ([]workload.Holder, error)
	ProxyEnded(ref claim.WorkloadRef, caller process.Ref, service string, restarts int, how string) error
	// FailedTries counts the tries to release a workload that failed.
	FailedTries() int64
	// InspectTokens asks Consul about the tokens of a workload's services.
	InspectTokens(ctx context.Context, ref claim.WorkloadRef) ([]servicesteps.Inspection, error)
}

// Services registers the services of this node's workloads in Consul (services.Registrar).
type Services interface {
	// Problems returns, by consul block, what keeps services from being in sync; empty: nothing.
	Problems() map[string]string
	// Conflict says whose registration stands in the place of a service; empty: none.
	Conflict(consul, id string) string
}

// Tokens are the Consul tokens of the cluster's services (tokens.Authority).
type Tokens interface {
	// List returns the tokens of a namespace and a workload; empty: of all.
	List(ctx context.Context, namespace, workload string) ([]tokens.Listed, error)
	// Sweep revokes tokens whose workload is gone. A dry run only lists them.
	Sweep(ctx context.Context, dryRun bool) (tokens.Report, error)
}

// StartWorkload starts a workload and streams its steps.
func (h *Handler) StartWorkload(ctx context.Context, req *hostv1.StartWorkloadRequest,
	stream *connect.ServerStream[hostv1.StartWorkloadResponse],
) error {
	if node := req.GetNode(); h.Nodes.IsOther(node) {
		return asknode.Stream(ctx, h.Nodes, req, node, stream, asknode.Clients.StartWorkload)
	}
	spec, err := SpecOf(req.GetSpec())
	if err != nil {
		return err
	}
	opts := workload.Options{Token: call.SecretOf(ctx), Update: req.GetUpdate()}
	if req.GetReleaseWithCaller() {
		if opts.Owner = call.CallerOf(ctx).Process; opts.Owner.PID == 0 {
			return connect.NewError(connect.CodeFailedPrecondition,
				errors.New(
					"release_with_caller: the calling process has ended, or is in a pid namespace that the agent cannot see: call without it, and stop the workload"))
		}
	}
	if at := req.GetMountedAt(); at != "" {
		if opts.Owner.PID == 0 || !filepath.IsAbs(at) || filepath.Clean(at) != at || len(at) >= unix.PathMax {
			return call.Invalid(fmt.Sprintf("workload %q", spec.WorkloadRef), "mounted_at",
				"it must be an absolute, clean path, and release_with_caller be set")
		}
		opts.MountedAt = at
	}
	ctx, leave := context.WithCancelCause(ctx) // if the caller disconnects the wait ends, not what is done
	defer leave(nil)
	opts.Progress = func(step workload.Step) {
		event := &hostv1.StartWorkloadResponse_Step{Step: shownStep(step)}
		if err := stream.Send(&hostv1.StartWorkloadResponse{Event: event}); err != nil {
			leave(err)
		}
	}
	if err := stream.Send(nil); err != nil { // send the headers now: the first step may be far off
		return err
	}
	w, err := h.Workloads.Start(ctx, spec, opts)
	if err != nil {
		return err
	}
	shown, err := h.Shown(w)
	if err != nil {
		return err
	}
	return stream.Send(&hostv1.StartWorkloadResponse{Event: &hostv1.StartWorkloadResponse_Workload{Workload: shown}})
}

// CheckWorkload returns what StartWorkload would do on this node.
func (h *Handler) CheckWorkload(ctx context.Context, req *hostv1.CheckWorkloadRequest,
) (*hostv1.CheckWorkloadResponse, error) {
	if node := req.GetNode(); h.Nodes.IsOther(node) {
		return asknode.Ask(ctx, h.Nodes, req, node, 0, asknode.Clients.CheckWorkload)
	}
	spec, err := SpecOf(req.GetSpec())
	if err != nil {
		return nil, err
	}
	// A node reads the volumes from the leader, which checks the caller's token as it does for a start.
	found, err := h.Workloads.Check(onbehalf.With(ctx, onbehalf.New(call.SecretOf(ctx), nil)), spec)
	if err != nil {
		return nil, err
	}
	resp := &hostv1.CheckWorkloadResponse{Node: h.Name, State: string(found.State)}
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
func (h *Handler) StopWorkload(ctx context.Context, req *hostv1.StopWorkloadRequest,
	stream *connect.ServerStream[hostv1.StopWorkloadResponse],
) error {
	if node := req.GetNode(); h.Nodes.IsOther(node) {
		return asknode.Stream(ctx, h.Nodes, req, node, stream, asknode.Clients.StopWorkload)
	}
	ref, err := workloadRef(req)
	if err != nil {
		return err
	}
	by := call.CallerOf(ctx).Who()
	if req.GetForce() {
		if err := h.Workloads.Force(ref, by); err != nil {
			return err
		}
	}
	ctx, leave := context.WithCancelCause(ctx) // if the caller disconnects the wait ends, not what is done
	defer leave(nil)
	// Send the headers now: the first step may be far off. It is stopped also if the caller has not waited for that.
	if err := stream.Send(nil); err != nil {
		leave(err)
	}
	w, err := h.Workloads.Stop(ctx, ref, "stopped by "+by, func(step workload.Step) {
		event := &hostv1.StopWorkloadResponse_Step{Step: shownStep(step)}
		if err := stream.Send(&hostv1.StopWorkloadResponse{Event: event}); err != nil {
			leave(err)
		}
	})
	if err != nil {
		return err
	}
	shown, err := h.Shown(w)
	if err != nil {
		return err
	}
	return stream.Send(&hostv1.StopWorkloadResponse{Event: &hostv1.StopWorkloadResponse_Workload{Workload: shown}})
}

// LeaveWorkload takes the services of a workload out of the catalog.
func (h *Handler) LeaveWorkload(ctx context.Context,
	req *hostv1.LeaveWorkloadRequest,
) (*hostv1.LeaveWorkloadResponse, error) {
	ref, err := workloadRef(req)
	if err != nil {
		return nil, err
	}
	return &hostv1.LeaveWorkloadResponse{}, h.Workloads.Leave(ctx, ref)
}

// RunningWorkload records which process is the workload.
func (h *Handler) RunningWorkload(ctx context.Context,
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
	caller := call.CallerOf(ctx).Process
	if caller.PID == 0 {
		return nil, fmt.Errorf("workload %q: %w: call over the agent's unix socket, on its host", ref, workload.ErrNotOwner)
	}
	if e := req.GetEnded(); e != nil {
		return &hostv1.RunningWorkloadResponse{}, h.Workloads.ProxyEnded(ref, caller, e.GetService(), int(e.GetRestarts()),
			e.GetHow())
	}
	return &hostv1.RunningWorkloadResponse{}, h.Workloads.Running(ref, int(pid), caller)
}

// GetWorkload reads one workload.
func (h *Handler) GetWorkload(ctx context.Context,
	req *hostv1.GetWorkloadRequest,
) (*hostv1.GetWorkloadResponse, error) {
	if node := req.GetNode(); h.Nodes.IsOther(node) {
		return asknode.Ask(ctx, h.Nodes, req, node, 0, asknode.Clients.GetWorkload)
	}
	ref, err := workloadRef(req)
	if err != nil {
		return nil, err
	}
	w, err := h.Workloads.Get(ref)
	if err != nil {
		return nil, err
	}
	shown, err := h.Shown(w)
	if err != nil {
		return nil, err
	}
	resp := &hostv1.GetWorkloadResponse{Workload: shown}
	if req.GetTokens() {
		if resp.Tokens, err = h.inspectTokens(ctx, ref); err != nil {
			return nil, err
		}
	}
	if !req.GetHolders() {
		return resp, nil
	}
	held, err := h.Workloads.Holders(ref)
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

func (h *Handler) inspectTokens(ctx context.Context, ref claim.WorkloadRef) (all []*hostv1.InspectedToken, err error) {
	found, err := h.Workloads.InspectTokens(ctx, ref)
	for _, t := range found {
		shown := &hostv1.InspectedToken{Token: shownToken(t.Token, false), State: string(t.State)}
		if t.Err != nil {
			shown.Error = t.Err.Error()
		}
		all = append(all, shown)
	}
	return all, err
}

// ListWorkloads lists the workloads of this node, including recently ended ones.
func (h *Handler) ListWorkloads(ctx context.Context,
	req *hostv1.ListWorkloadsRequest,
) (*hostv1.ListWorkloadsResponse, error) {
	if node := req.GetNode(); h.Nodes.IsOther(node) {
		return asknode.Ask(ctx, h.Nodes, req, node, 0, asknode.Clients.ListWorkloads)
	}
	namespace := call.AllOr(req.GetNamespace())
	if err := call.CheckIDs("list workloads", map[string]string{"namespace": namespace}); err != nil {
		return nil, err
	}
	resp := &hostv1.ListWorkloadsResponse{Node: h.Name}
	for _, w := range h.Workloads.List() {
		if namespace != "" && w.Spec.Namespace != namespace {
			continue
		}
		shown, err := h.Shown(w)
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

// SpecOf converts a workload's spec. The rules of it are checked where it is used.
func SpecOf(spec *hostv1.WorkloadSpec) (specs.Spec, error) {
	out := specs.Of(spec)
	for _, m := range spec.GetServices() {
		svc, err := service.FromProto(m)
		if err != nil {
			return out, call.Invalid(fmt.Sprintf("workload %q", out.WorkloadRef), fmt.Sprintf("service %q", m.GetName()), err.Error())
		}
		out.Services = append(out.Services, svc)
	}
	return out, nil
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

// ShownSpec shows a workload's spec.
func ShownSpec(spec specs.Spec) (*hostv1.WorkloadSpec, error) {
	out := convert.To[hostv1.WorkloadSpec](spec)
	out.After, out.Replaces = shownAwaited(spec.Namespace, spec.After), shownAwaited(spec.Namespace, spec.Replaces)
	for _, v := range out.GetVolumes() {
		call.Redact(v.GetMountOptions())
	}
	for _, svc := range spec.Services {
		m, err := svc.ToProto()
		if err != nil {
			return nil, fmt.Errorf("show workload %q: service %q: %w", spec.WorkloadRef, svc.Name, err)
		}
		out.Services = append(out.Services, m)
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

// Releases are the releases of this node's workloads that have to wait.
func (h *Handler) Releases() (all []*hostv1.Release) {
	for _, w := range h.Workloads.List() {
		if w.Release.Tries > 0 {
			all = append(all, shownRelease(w))
		}
	}
	return all
}

// Shown returns a workload as the API shows it, with what its release waits for.
func (h *Handler) Shown(w workload.Workload) (*hostv1.Workload, error) {
	spec, err := ShownSpec(w.Spec)
	if err != nil {
		return nil, err
	}
	out := &hostv1.Workload{
		Spec: spec, Node: h.Name, State: string(w.State), Message: w.Message,
		StartedAt: call.Time(w.StartedAt), EndedAt: call.Time(w.EndedAt), OwnerPid: int64(w.OwnerPID), Pid: int64(w.PID),
		VolumesDir: h.VolumesDir, SecretsDir: w.SecretsDir,
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
		out.Services = append(out.Services, h.shownService(svc))
	}
	for _, c := range w.Credentials {
		out.Credentials = append(out.Credentials, &hostv1.Credential{Name: c.Name, File: c.File})
		out.CredentialsSocket = h.CredentialsSocket
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
func (h *Handler) shownService(svc servicesteps.Status) *hostv1.ServiceStatus {
	out := convert.To[hostv1.ServiceStatus](svc)
	out.Message = cmp.Or(svc.Message, h.Services.Conflict(svc.Consul, svc.ID), h.Services.Problems()[svc.Consul])
	return out
}

func shownStep(step workload.Step) *hostv1.Step {
	return &hostv1.Step{
		Name: step.Name, Volume: step.Volume, Service: step.Service, State: string(step.State), Undo: step.Undo,
		StartedAt: call.Time(step.StartedAt), Took: durationpb.New(
			step.Took), Error: step.Error, Note: step.Note, Attempt: int32(step.Attempt),
	}
}

// shownReservation returns what a workload needs to use its devices.
func shownReservation(r device.Reservation) *hostv1.DeviceReservation {
	out := &hostv1.DeviceReservation{Env: r.Env}
	for _, m := range r.Mounts {
		out.Mounts = append(out.Mounts, convert.To[hostv1.DeviceMount](m))
	}
	for _, d := range r.Devices {
		out.Nodes = append(out.Nodes, convert.To[hostv1.DeviceNode](d))
	}
	return out
}

// Counts counts the workloads of this node, for every state.
func (h *Handler) Counts() map[string]int {
	n := map[string]int{}
	for _, state := range []workload.State{
		workload.Starting, workload.Running, workload.Unknown, workload.Stopping,
		workload.Stopped, workload.Failed,
	} {
		n[string(state)] = 0
	}
	for _, w := range h.Workloads.List() {
		n[string(w.State)]++
	}
	return n
}

// ListTokens lists the ledger's tokens by workload and service.
func (h *Handler) ListTokens(ctx context.Context, req *hostv1.ListTokensRequest) (*hostv1.ListTokensResponse, error) {
	namespace, workload := call.AllOr(req.GetNamespace()), req.GetWorkload()
	if err := call.CheckIDs("list tokens", map[string]string{"namespace": namespace, "workload": workload}); err != nil {
		return nil, err
	}
	topics, err := h.tokenTopics(ctx)
	if err != nil {
		return nil, err
	}
	// The list is read afterwards, so it is at least as new.
	meta, err := call.Read(ctx, h.Ledger, req, topics, func(*state.ReadTx) error { return nil })
	if err != nil {
		return nil, err
	}
	all, err := h.Tokens.List(ctx, namespace, workload)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b tokens.Listed) int {
		return cmp.Or(cmp.Compare(a.Workload.Namespace, b.Workload.Namespace), cmp.Compare(a.Workload.ID, b.Workload.ID),
			cmp.Compare(a.Service, b.Service), a.CreatedAt.Compare(b.CreatedAt))
	})
	resp := &hostv1.ListTokensResponse{Meta: meta}
	for _, t := range all {
		resp.Tokens = append(resp.Tokens, shownToken(t.Token, t.Orphan))
	}
	return resp, nil
}

// tokenTopics change with every token: it is recorded when its workload starts, and changes on its node.
func (h *Handler) tokenTopics(ctx context.Context) ([]state.Topic, error) {
	all, err := call.Reading(ctx, h.Ledger, (*state.ReadTx).Nodes)
	topics := call.Each(all, func(n claim.Node) state.Topic { return state.TopicTokensOn(n.Name) })
	return append(topics, state.TopicWorkloads), err
}

// SweepTokens revokes the tokens whose workload is gone.
func (h *Handler) SweepTokens(ctx context.Context,
	req *hostv1.SweepTokensRequest,
) (*hostv1.SweepTokensResponse, error) {
	report, err := h.Tokens.Sweep(ctx, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	resp := &hostv1.SweepTokensResponse{}
	for _, t := range report.Swept {
		shown := &hostv1.SweptToken{Token: shownToken(t.Token, true), Reason: t.Reason, Revoked: t.Revoked}
		if t.Err != nil {
			shown.Error = t.Err.Error()
		}
		resp.Tokens = append(resp.Tokens, shown)
	}
	for _, err := range report.Problems {
		resp.Problems = append(resp.Problems, err.Error())
	}
	return resp, nil
}

func shownToken(t claim.Token, orphan bool) *hostv1.Token {
	return &hostv1.Token{
		Id: t.ID, Accessor: t.Accessor, Namespace: t.Workload.Namespace, Workload: t.Workload.ID, Service: t.Service,
		Node:   t.Node,
		Consul: t.Consul, CreatedAt: call.Time(t.CreatedAt), ExpiresAt: call.Time(t.ExpiresAt), Orphan: orphan,
	}
}
