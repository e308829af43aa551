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
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) workloadCommand() *cobra.Command {
	return a.Noun("workload", "Workloads, their volumes and services",
		a.workloadInit(), a.workloadValidate(), a.workloadRun(), a.workloadStart(), a.workloadUpdate(),
		a.workloadStop(), a.workloadStatus())
}

// mountFormats are the additional formats of commands that show a workload's mounts.
var mountFormats = map[string]string{extraFormats: formatDocker + " " + formatSystemd + " " + formatDropin}

func (a *App) workloadStart() *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use: "start SPEC", Short: "Start a workload for a unit, a container or a script",
		Long: `Bring a workload's volumes and services up and keep them until pannier workload
stop. It may be repeated. With -o docker the workload's mounts, secrets and ports are
written as flags of docker run, with -o systemd as lines of a unit, with -o systemd-dropin
as the drop-in of a unit that pannier-workload@.service starts the workload for. -dry-run changes
nothing: it says what a start would do and who has the volumes, and fails if it would be refused.`,
		Example:     "flags=$(pannier workload start -o docker redis.hcl) && docker run $flags redis",
		Annotations: mountFormats,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			spec, err := a.readWorkload(args[0])
			if err != nil {
				return err
			}
			if dry {
				return a.dryStart(ctx, client, spec)
			}
			p := a.progress()
			w, err := a.start(ctx, client, p, &hostv1.StartWorkloadRequest{Spec: spec})
			p.close()
			if ctx.Err() != nil {
				return Hinted(errors.New("interrupted"), "%s",
					"the agent may continue the start; undo it with: pannier workload stop "+spec.GetId())
			}
			if err != nil {
				return hintStart(ctx, client, err, spec, args[0])
			}
			return a.printMounts(&hostv1.GetWorkloadResponse{Workload: w}, nil, func() { a.Show(mountTable(w)) })
		}),
	}
	dryFlag(cmd, &dry)
	return cmd
}

func (a *App) workloadUpdate() *cobra.Command {
	return &cobra.Command{
		Use: "update SPEC", Short: "Change the services of a running workload",
		Long: `Register the services of a workload that runs here again, as the spec has them now:
upstreams, proxies' configuration, intentions, tags, meta, checks and weights. A proxy whose
bootstrap changes with them gets another file, and is started again by pannier workload
run. The workload and its program run on. What else differs is refused, but for exec.`,
		Example: "pannier workload update web.hcl",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			spec, err := a.readWorkload(args[0])
			if err != nil {
				return err
			}
			p := a.progress()
			w, err := a.start(ctx, client, p, &hostv1.StartWorkloadRequest{Spec: spec, Update: true})
			p.close()
			return a.Print(&hostv1.GetWorkloadResponse{Workload: w}, err, func() { a.showWorkload(w) })
		}),
	}
}

func dryFlag(cmd *cobra.Command, dry *bool) {
	cmd.Flags().BoolVar(dry, "dry-run", false, "say what a start would do and who has the volumes, and change nothing")
}

func (a *App) workloadStatus() *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "status [SPEC|ID]", Short: "List the workloads, or show one with its mounts, services and steps",
		Example:     "pannier workload status redis\npannier workload status redis -node n2",
		Annotations: mountFormats,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			if len(args) == 0 {
				if strings.Contains(mountFormats[extraFormats], a.format) {
					return Usage("-o %s is for one workload; name it", a.format)
				}
				resp, err := client.Workloads.ListWorkloads(ctx,
					&hostv1.ListWorkloadsRequest{Namespace: a.namespaceOr("*"), Node: node})
				return a.Print(resp, err, func() { a.showWorkloads(resp.GetWorkloads()) })
			}
			namespace, id, err := a.specOrID(args[0])
			if err != nil {
				return err
			}
			resp, err := client.Workloads.GetWorkload(ctx,
				&hostv1.GetWorkloadRequest{Namespace: namespace, Id: id, Holders: true, Node: node})
			return a.printMounts(resp, err, func() { a.showWorkload(resp.GetWorkload(), resp.GetHolders()...) })
		}),
	}
	nodeFlag(cmd, &node)
	return cmd
}

// readWorkload reads a spec and fills in its namespace.
func (a *App) readWorkload(path string) (*hostv1.WorkloadSpec, error) {
	spec, err := config.ReadWorkload(path)
	if err != nil {
		return nil, err
	}
	if spec.GetNamespace() == "" {
		spec.Namespace = a.namespaceOr(claim.DefaultNamespace)
	}
	return spec, nil
}

// specOrID reads an argument that looks like a file as a spec, any other as an id.
func (a *App) specOrID(arg string) (namespace, id string, err error) {
	if arg == "-" || strings.ContainsRune(arg, '/') || strings.HasSuffix(arg, ".hcl") || strings.HasSuffix(arg, ".json") {
		spec, err := a.readWorkload(arg)
		return spec.GetNamespace(), spec.GetId(), err
	}
	if err := claim.CheckID(arg); err != nil {
		return "", "", Usage("workload id: %w", err)
	}
	return a.namespaceOr(claim.DefaultNamespace), arg, nil
}

// hintStart says what to do about a start that has failed.
func hintStart(ctx context.Context, client *api.Client, err error, spec *hostv1.WorkloadSpec, path string) error {
	resp, getErr := client.Workloads.GetWorkload(ctx,
		&hostv1.GetWorkloadRequest{Namespace: spec.GetNamespace(), Id: spec.GetId()})
	if getErr == nil && resp.GetWorkload().GetState() == "stopping" {
		return Hinted(err, "pannier workload status %s says what undoing it waits for", escape.Argument(spec.GetId()))
	}
	err = hint(err, ExitNotFound, "pannier volume status lists the volumes; nothing of the workload is left")
	return hint(err, ExitRefused, "nothing of the workload is left; pannier workload start -dry-run %s says who has its "+
		"volumes, and pannier workload status who waits for whom", escape.Argument(path))
}

// progressMessage is a message of a start or a stop.
type progressMessage interface {
	GetStep() *hostv1.Step
	GetWorkload() *hostv1.Workload
}

// receive shows the steps of a stream. It returns the workload at its end, and whether there
// were steps.
func receive[T any](stream *connect.ServerStreamForClient[T], p *progress) (w *hostv1.Workload, some bool, err error) {
	defer func() { err = errors.Join(stream.Err(), stream.Close()) }()
	for stream.Receive() {
		m, _ := any(stream.Msg()).(progressMessage)
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

// start starts a workload. A start may be repeated, so it is retried while the agent is down.
func (a *App) start(ctx context.Context, client *api.Client, p *progress,
	req *hostv1.StartWorkloadRequest,
) (w *hostv1.Workload, err error) {
	err = a.patiently(ctx, p, false, func() error {
		stream, err := client.Workloads.StartWorkload(ctx, req)
		if err != nil {
			return err
		}
		w, _, err = receive(stream, p)
		return err
	})
	if err != nil {
		p.explain(err)
	}
	if err == nil && w == nil {
		err = fmt.Errorf("the agent's answer to the start of %q has no workload in it", req.GetSpec().GetId())
	}
	return w, err
}

// patiently retries a call while the agent is down, for a.patience from the first failure. A
// call that ran for longer than that before it broke starts a new period; one that the agent
// answered after so long is not retried, because the agent has retried itself. An agent whose
// socket does not exist is not waited for, unless it is known to have run.
func (a *App) patiently(ctx context.Context, p *progress, known bool, call func() error) error {
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
				reason = "the connection to the agent was lost"
			}
			p.note("%s; retrying for %s", reason, a.patience)
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

// away reports whether an error may pass when the agent, or what it needs, is back.
func away(err error, known bool) bool {
	if unreachable := (*api.UnreachableError)(nil); errors.As(err, &unreachable) {
		return !errors.Is(err, fs.ErrPermission) && (known || !errors.Is(err, fs.ErrNotExist))
	}
	return connect.CodeOf(err) == connect.CodeUnavailable || lost(err)
}

// answered reports whether an error is the agent's own answer.
func answered(err error) bool {
	unreachable := (*api.UnreachableError)(nil)
	return !errors.As(err, &unreachable) && !lost(err)
}
