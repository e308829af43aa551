package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) workloadCommand() *cobra.Command {
	return a.noun("workload", "Workloads, their volumes and services",
		a.workloadRun(), a.workloadStart(), a.workloadStop(), a.workloadStatus())
}

// mountFormats are the formats of commands that tell a workload's mounts.
var mountFormats = map[string]string{extraFormats: formatDocker + " " + formatSystemd}

func (a *app) workloadStart() *cobra.Command {
	return &cobra.Command{
		Use: "start SPEC", Short: "Bring a workload's volumes and services up, for a unit, a container or a script",
		Long: `Bring a workload's volumes and services up and leave them until pannier workload
stop. It may be repeated. With -o docker what the workload is to find, its mounts,
secrets and ports, is written as flags of docker run, with -o systemd as lines of a
unit.`,
		Args: exactly("SPEC"), ValidArgsFunction: completeSpec, Annotations: mountFormats,
		RunE: a.do(func(ctx context.Context, args []string) error {
			spec, err := a.readWorkload(args[0])
			if err != nil {
				return err
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			p := a.progress()
			w, err := a.start(ctx, client, p, &hostv1.StartWorkloadRequest{Spec: spec})
			p.close()
			if ctx.Err() != nil {
				return &hintError{
					errors.New("left before the end"),
					"the agent may go on with it; take it down with: pannier workload stop " + spec.GetId(),
				}
			}
			if err != nil {
				return hintStart(err)
			}
			return a.printMounts(&hostv1.GetWorkloadResponse{Workload: w}, func() error { return a.showMounts(w) })
		}),
	}
}

func (a *app) workloadStop() *cobra.Command {
	return &cobra.Command{
		Use: "stop SPEC|ID", Short: "Take a workload down and release what it has",
		Long: `Take a workload down: its volumes are released, its services are taken out of
Consul, their tokens revoked. What cannot be undone now, since a driver or Consul is
away, is tried again until it is; the command can be left meanwhile.`,
		Args: exactly("SPEC or ID"), ValidArgsFunction: a.completeFileOrID(workloadIDs),
		RunE: a.do(func(ctx context.Context, args []string) error {
			namespace, id, err := a.specOrID(args[0])
			if err != nil {
				return err
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			p := a.progress()
			w, err := a.stop(ctx, client, p, namespace, id)
			p.close()
			if ctx.Err() != nil {
				return &hintError{errors.New("left before the end"), "the agent goes on; follow it with: pannier workload status " + id}
			}
			if err != nil {
				return hintWorkload(err)
			}
			return a.print(&hostv1.GetWorkloadResponse{Workload: w}, func() error {
				a.note("workload %q is stopped", id)
				return nil
			})
		}),
	}
}

func (a *app) workloadStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status [SPEC|ID]", Short: "List the workloads, or show one with its mounts, services and steps",
		Args: between(0, "SPEC or ID"), ValidArgsFunction: a.completeFileOrID(workloadIDs), Annotations: mountFormats,
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				if a.format == formatDocker || a.format == formatSystemd {
					return &usageError{err: fmt.Errorf("-o %s is for one workload; name it", a.format)}
				}
				resp, err := client.Workloads.ListWorkloads(ctx, connect.NewRequest(&hostv1.ListWorkloadsRequest{Namespace: a.namespaceOr("*")}))
				if err != nil {
					return err
				}
				return a.print(resp.Msg, func() error { return a.showWorkloads(resp.Msg.GetWorkloads()) })
			}
			namespace, id, err := a.specOrID(args[0])
			if err != nil {
				return err
			}
			resp, err := client.Workloads.GetWorkload(ctx, connect.NewRequest(&hostv1.GetWorkloadRequest{Namespace: namespace, Id: id}))
			if err != nil {
				return hintWorkload(err)
			}
			return a.printMounts(resp.Msg, func() error { return a.showWorkload(resp.Msg.GetWorkload()) })
		}),
	}
}

// readWorkload reads a spec and settles its namespace.
func (a *app) readWorkload(path string) (*hostv1.WorkloadSpec, error) {
	spec, err := config.ReadWorkload(path)
	if err != nil {
		return nil, err
	}
	if spec.GetNamespace() == "" {
		spec.Namespace = a.namespaceOr(claim.DefaultNamespace)
	}
	return spec, nil
}

// specOrID takes what looks like a file as a spec, anything else as an id.
func (a *app) specOrID(arg string) (namespace, id string, err error) {
	if arg == "-" || strings.ContainsRune(arg, '/') || strings.HasSuffix(arg, ".hcl") || strings.HasSuffix(arg, ".json") {
		spec, err := a.readWorkload(arg)
		return spec.GetNamespace(), spec.GetId(), err
	}
	if err := claim.CheckID(arg); err != nil {
		return "", "", &usageError{err: fmt.Errorf("workload id: %w", err)}
	}
	return a.namespaceOr(claim.DefaultNamespace), arg, nil
}

func hintWorkload(err error) error {
	return hint(err, ExitNotFound, "pannier workload status lists the workloads")
}

func hintStart(err error) error {
	err = hint(err, ExitNotFound, "pannier volume status lists the volumes; nothing of the workload is left")
	return hint(err, ExitRefused, "pannier volume status ID shows who holds a volume, pannier workload status who waits for whom; nothing of the workload is left")
}

// news is a message of a start or a stop.
type news interface {
	GetStep() *hostv1.Step
	GetWorkload() *hostv1.Workload
}

// receive shows the steps of a stream, and says whether there were some, and gives
// the workload at its end.
func receive[T any](stream *connect.ServerStreamForClient[T], p *progress) (w *hostv1.Workload, some bool, err error) {
	defer func() { err = errors.Join(stream.Err(), stream.Close()) }()
	for stream.Receive() {
		// Both kinds of messages are news.
		m, _ := any(stream.Msg()).(news)
		if step := m.GetStep(); step != nil {
			p.step(step)
			some = true
		}
		if last := m.GetWorkload(); last != nil {
			w = last
		}
	}
	return w, some, nil
}

// start brings a workload up. A start may be repeated, so it is while the agent is away.
func (a *app) start(ctx context.Context, client *api.Client, p *progress, req *hostv1.StartWorkloadRequest) (w *hostv1.Workload, err error) {
	err = a.patiently(ctx, p, false, func() error {
		stream, err := client.Workloads.StartWorkload(ctx, connect.NewRequest(req))
		if err != nil {
			return err
		}
		w, _, err = receive(stream, p)
		return err
	})
	if err == nil && w == nil {
		err = fmt.Errorf("the agent's answer to the start of %q has no workload in it", req.GetSpec().GetId())
	}
	return w, err
}

// stop takes a workload down; it may be repeated too.
func (a *app) stop(ctx context.Context, client *api.Client, p *progress, namespace, id string) (w *hostv1.Workload, err error) {
	under := false // the agent has told of this stop's steps
	err = a.patiently(ctx, p, true, func() error {
		stream, err := client.Workloads.StopWorkload(ctx, connect.NewRequest(&hostv1.StopWorkloadRequest{Namespace: namespace, Id: id}))
		if err != nil {
			return err
		}
		var some bool
		w, some, err = receive(stream, p)
		if under && connect.CodeOf(err) == connect.CodeNotFound {
			// It died between the last step and its answer: there is nothing left to know.
			w, err = &hostv1.Workload{Spec: &hostv1.WorkloadSpec{Id: id, Namespace: namespace}, State: "stopped"}, nil
		}
		under = under || some
		return err
	})
	return w, err
}

// patiently repeats a call while the agent is away, for a.patience since it was
// first away; a call that had gone on for longer than that begins anew, but where the
// agent has answered: then it has been patient itself. An agent whose socket was never
// there is not waited for, unless it is known to have been.
func (a *app) patiently(ctx context.Context, p *progress, known bool, call func() error) error {
	var deadline time.Time
	noted := false
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		began := time.Now()
		err := call()
		long := time.Since(began) > a.patience
		if err == nil || ctx.Err() != nil || !away(err, known) || long && answered(err) {
			return err
		}
		known = true
		if deadline.IsZero() || long {
			deadline = time.Now().Add(a.patience)
		}
		if !noted {
			noted = true
			reason := message(err)
			if lost(err) {
				reason = "the connection to the agent broke off"
			}
			p.note("%s; trying again for %s", reason, a.patience)
		}
		if time.Now().After(deadline) {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// away says that an error may pass when the agent, or what it needs, is back.
func away(err error, known bool) bool {
	if unreachable := (*api.UnreachableError)(nil); errors.As(err, &unreachable) {
		return !errors.Is(err, fs.ErrPermission) && (known || !errors.Is(err, fs.ErrNotExist))
	}
	return connect.CodeOf(err) == connect.CodeUnavailable || lost(err)
}

// answered says that an error is the agent's own answer.
func answered(err error) bool {
	unreachable := (*api.UnreachableError)(nil)
	return !errors.As(err, &unreachable) && !lost(err)
}

func (a *app) showWorkloads(workloads []*hostv1.Workload) error {
	if len(workloads) == 0 {
		a.note("no workloads; start one with pannier workload run or pannier workload start")
		return nil
	}
	t := newTable("ID", "NAMESPACE", "STATE", "VOLUMES", "SERVICES", "PID", "AGE", "MESSAGE")
	for _, w := range workloads {
		t.row(w.GetSpec().GetId(), w.GetSpec().GetNamespace(), workloadState(w.GetState()), len(w.GetSpec().GetVolumes()),
			len(w.GetSpec().GetServices()), number(w.GetPid()), age(w.GetStartedAt()), w.GetMessage())
	}
	return a.show(t)
}

func workloadState(state string) cell {
	switch state {
	case "running":
		return cell{state, green}
	case "failed":
		return cell{state, red}
	case "stopped":
		return cell{state, ""}
	default:
		return cell{state, yellow}
	}
}

func (a *app) showWorkload(w *hostv1.Workload) error {
	t := newTable()
	t.row("ID", w.GetSpec().GetId())
	t.row("Namespace", w.GetSpec().GetNamespace())
	t.row("Node", w.GetNode())
	t.row("State", workloadState(w.GetState()))
	t.row("Message", w.GetMessage())
	if len(w.GetWaitsFor()) > 0 {
		t.row("Waits for", strings.Join(w.GetWaitsFor(), ", "))
		t.row("Waits since", age(w.GetWaitsSince()))
	}
	t.row("Process", number(w.GetPid()))
	t.row("Released with", number(w.GetOwnerPid()))
	t.row("Started", age(w.GetStartedAt()))
	if w.GetEndedAt() != nil {
		t.row("Ended", age(w.GetEndedAt()))
	}
	if len(w.GetPorts()) > 0 {
		t.row("Ports", joinPorts(w.GetPorts()))
	}
	if w.GetSecretsDir() != "" {
		t.row("Secrets", w.GetSecretsDir())
	}
	if err := a.show(t); err != nil {
		return err
	}
	if len(w.GetMounts())+len(w.GetReservation().GetMounts())+len(w.GetReservation().GetNodes()) > 0 {
		if err := a.heading("Mounts"); err != nil {
			return err
		}
		if err := a.showMounts(w); err != nil {
			return err
		}
	}
	if err := a.showGiven(w.GetDevices()); err != nil {
		return err
	}
	for _, s := range w.GetServices() {
		if err := a.showService(s); err != nil {
			return err
		}
	}
	if len(w.GetSteps()) == 0 {
		return nil
	}
	if err := a.heading("Steps"); err != nil {
		return err
	}
	for _, s := range w.GetSteps() {
		line := stepLine{step: s, since: s.GetStartedAt().AsTime()}
		if _, err := fmt.Fprintln(a.out, line.text(a.colored(a.out))); err != nil {
			return err
		}
	}
	return nil
}
