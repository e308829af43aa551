package cli

import (
	"cmp"
	"context"
	_ "embed" // for the spec that init writes
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/config"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func workloadNoun() noun {
	var node string
	return nounOf("workload", "Workloads, their volumes and services", append(workloadSpecVerbs(), runVerb(), leaveVerb(), stopVerb(), moveVerb(),
		verb{
			use: "status [SPEC|ID]", short: "List the workloads, or show one with its mounts, services and steps",
			example: "redis\nredis -node n2", formats: mountFormats,
			flags: func(f *pflag.FlagSet) { nodeFlag(f, &node) },
			run:   func(ctx context.Context, c *call) error { return workloadStatus(ctx, c, node) },
		}))
}

// mountFormats are the additional formats of commands that show a workload's mounts.
const mountFormats = formatDocker + " " + formatSystemd + " " + formatDropin

//go:embed workload_init.hcl
var workloadInit string

// workloadSpecVerbs take or write a spec, and do not run its program.
func workloadSpecVerbs() []verb {
	var dry bool
	var group string
	return []verb{
		{
			use: "init [FILE]", short: "Write a workload spec to start from (workload.hcl; - is standard output)",
			local: func(_ context.Context, c *call) error {
				return writeSpec(c, "workload", workloadInit, "pannier workload validate")
			},
		},
		{
			use: "validate FILE", short: "Check a workload spec against this host, and change nothing", example: "redis.hcl",
			long: `Check a workload spec, and change nothing: first the file, with file and line of all that is wrong
with it, then whether its volumes are registered, their drivers are healthy here, and the modes,
ports and services fit. That another workload has a volume now is no mistake of a spec: pannier
workload start -dry-run says that too. - is standard input.`,
			run: withSpec((*call).readWorkload, validateWorkload),
		},
		{
			use: "convert JOB", short: "Write a workload spec from a group of a Nomad job", example: "web.nomad.hcl -group api >api.hcl",
			long: `Write a workload spec from a group of a Nomad job in HCL, or from the content of one, to
standard output. What a workload has too is taken as it is, and a comment says why something is
changed or left out. The exit code is 1 if something is left to be changed: what, is said on
standard error. Nothing is asked of a Nomad.`,
			flags: func(f *pflag.FlagSet) { f.StringVar(&group, "group", "", "the `NAME` of one of several groups") },
			local: func(_ context.Context, c *call) error { return convertJob(c, group) },
		},
		{
			use: "start SPEC", short: "Start a workload for a unit, a container or a script",
			long: `Bring a workload's volumes and services up and keep them until pannier workload
stop. It may be repeated. With -o docker the workload's mounts, secrets and ports are
written as flags of docker run, with -o systemd as lines of a unit, with -o systemd-dropin
as the drop-in of a unit that pannier-workload@.service starts the workload for. -dry-run changes
nothing: it says what a start would do and who has the volumes, and fails if it would be refused.`,
			example: "flags=$(pannier workload start -o docker redis.hcl) && docker run $flags redis",
			formats: mountFormats,
			flags:   func(f *pflag.FlagSet) { dryFlag(f, &dry) },
			run: withSpec((*call).readWorkload, func(ctx context.Context, c *call, spec *hostv1.WorkloadSpec) error {
				if dry {
					return dryStart(ctx, c, spec)
				}
				p := c.progress()
				w, err := c.start(ctx, p, &hostv1.StartWorkloadRequest{Spec: spec})
				p.close()
				if ctx.Err() != nil {
					return Hinted(errors.New("interrupted"), "%s",
						"the agent may continue the start; undo it with: pannier workload stop "+spec.GetId())
				}
				if err != nil {
					return hintStart(ctx, c, err, spec, c.args[0])
				}
				return printMounts(c.Printer, &hostv1.GetWorkloadResponse{Workload: w}, nil, func() { c.Show(mountTable(w)) })
			}),
		},
		{
			use: "update SPEC", short: "Change the services of a running workload", example: "web.hcl",
			long: `Register the services of a workload that runs here again, as the spec has them now:
upstreams, proxies' configuration, intentions, tags, meta, checks and weights. A proxy whose
bootstrap changes with them gets another file, and is started again by pannier workload
run. The workload and its program run on. What else differs is refused, but for exec.`,
			run: withSpec((*call).readWorkload, func(ctx context.Context, c *call, spec *hostv1.WorkloadSpec) error {
				p := c.progress()
				w, err := c.start(ctx, p, &hostv1.StartWorkloadRequest{Spec: spec, Update: true})
				p.close()
				return c.Print(&hostv1.GetWorkloadResponse{Workload: w}, err, func() { showWorkload(c.Printer, w) })
			}),
		},
	}
}

// convert writes what a file is converted to.
func (c *call) convert(do func(name string, src []byte) ([]byte, error)) (written []byte, err error) {
	src, err := os.ReadFile(c.args[0])
	if err == nil {
		written, err = do(c.args[0], src)
	}
	c.write(string(written))
	return written, err
}

func convertJob(c *call, group string) error {
	spec, err := c.convert(func(name string, src []byte) ([]byte, error) { return config.ConvertJob(name, src, group) })
	if err != nil {
		return err
	}
	if _, err := config.ParseWorkload("the spec", spec); err != nil {
		return fmt.Errorf("what is left to be changed: %w", err)
	}
	return nil
}

func dryFlag(f *pflag.FlagSet, dry *bool) {
	f.BoolVar(dry, "dry-run", false, "say what a start would do and who has the volumes, and change nothing")
}

func workloadStatus(ctx context.Context, c *call, node string) error {
	if len(c.args) == 0 {
		if strings.Contains(mountFormats, c.format) {
			return Usage("-o %s is for one workload; name it", c.format)
		}
		resp, err := c.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: c.namespaceOr("*"), Node: node})
		return list(c.Printer, resp, err, resp.GetWorkloads(), workloadColumns)
	}
	namespace, id, err := c.specOrID()
	if err != nil {
		return err
	}
	resp, err := c.Workloads.GetWorkload(ctx,
		&hostv1.GetWorkloadRequest{Namespace: namespace, Id: id, Holders: true, Node: node})
	return printMounts(c.Printer, resp, err, func() { showWorkload(c.Printer, resp.GetWorkload(), resp.GetHolders()...) })
}

// withSpec is work on the spec of the first argument.
func withSpec[S any](read func(*call) (S, error), do func(ctx context.Context, c *call, spec S) error) work {
	return func(ctx context.Context, c *call) error {
		spec, err := read(c)
		if err != nil {
			return err
		}
		return do(ctx, c, spec)
	}
}

// readWorkload reads the spec of the first argument and fills in its namespace.
func (c *call) readWorkload() (*hostv1.WorkloadSpec, error) {
	spec, err := config.ReadWorkload(c.args[0])
	if err == nil && spec.GetNamespace() == "" {
		spec.Namespace = c.inNamespace()
	}
	return spec, err
}

// specOrID reads the first argument: what looks like a file as a spec, any other as an id.
func (c *call) specOrID() (namespace, id string, err error) {
	arg := c.args[0]
	if arg == "-" || strings.ContainsRune(arg, '/') || strings.HasSuffix(arg, ".hcl") || strings.HasSuffix(arg, ".json") {
		spec, err := c.readWorkload()
		return spec.GetNamespace(), spec.GetId(), err
	}
	if err := claim.CheckID(arg); err != nil {
		return "", "", Usage("workload id: %w", err)
	}
	return c.inNamespace(), arg, nil
}

// hintStart returns what to do about a failed start.
func hintStart(ctx context.Context, c *call, err error, spec *hostv1.WorkloadSpec, path string) error {
	resp, getErr := c.Workloads.GetWorkload(ctx,
		&hostv1.GetWorkloadRequest{Namespace: spec.GetNamespace(), Id: spec.GetId()})
	if getErr == nil && resp.GetWorkload().GetState() == "stopping" {
		return Hinted(err, "pannier workload status %s says what undoing it waits for", escape.Argument(spec.GetId()))
	}
	code, _ := classify(err)
	if silentNode(ctx, c.Client, code, message(err)) != "" {
		return err // advise says when to repeat it
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
func (c *call) start(ctx context.Context, p *progress, req *hostv1.StartWorkloadRequest,
) (w *hostv1.Workload, err error) {
	err = c.patiently(ctx, p, false, func() error {
		stream, err := c.Workloads.StartWorkload(ctx, req)
		if err != nil {
			return err
		}
		w, _, err = receive(stream, p)
		return err
	})
	switch {
	case err != nil:
		p.explain(err)
	case w == nil:
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

// stopFlags are the flags of pannier workload stop.
type stopFlags struct {
	force, all, yes bool
	timeout         time.Duration
}

func stopVerb() verb {
	var s stopFlags
	return verb{
		use: "stop [SPEC|ID]", short: "Stop a workload and release what it has", example: "redis\n-all -timeout 1m",
		long: `Stop a workload: release its volumes, deregister its services from Consul, revoke their
tokens. What cannot be undone now, because a driver or Consul is down, is retried until
it is done; the command can be interrupted meanwhile, the agent continues. After -timeout it
says what the workload still waits for, and the exit code is 1; the agent continues then, too.
In the stop of a unit (ExecStop=, ExecStopPost=) an agent that does not answer is waited for 5 s,
and stops the workload when it is up: systemd starts it after that stop only.

With -all the workloads of this host are stopped, in the namespace of -namespace if it is given.
Their programs are not ended, and a volume that is still in use is waited for. On a terminal you
are asked first.

With -force the agent unmounts itself what a driver does not unmount, because it does not
answer, fails, or its FUSE file system has no server any more. A volume that is still in use
is waited for as without it. What Consul does not let it deregister or revoke is left there,
with an event: the ledger keeps the tokens, and they and the services are removed as soon as
Consul lets it.`,
		flags: func(f *pflag.FlagSet) {
			f.BoolVar(&s.force, "force", false,
				"unmount what a driver does not unmount, leave what Consul keeps; your name is recorded")
			f.BoolVar(&s.all, "all", false, "stop all workloads of this host")
			f.BoolVar(&s.yes, "yes", false, "do not ask on a terminal before -all")
			f.DurationVar(&s.timeout, "timeout", 0, "wait no longer than this `duration`, such as 30s; 0: until it is stopped")
		},
		run: func(ctx context.Context, c *call) error {
			switch {
			case s.timeout < 0:
				return Usage("-timeout: not less than 0")
			case s.all && len(c.args) > 0:
				return Usage("%q is one argument too many with -all", c.args[0])
			case s.all:
				return stopAll(ctx, c, s)
			case len(c.args) == 0:
				return Usage("SPEC or ID is missing; -all stops all workloads of this host")
			}
			namespace, id, err := c.specOrID()
			if err != nil {
				return err
			}
			if _, inUnit := os.LookupEnv("SERVICE_RESULT"); inUnit { // systemd.exec(5): a command of its stop
				c.patience, c.silence = answerWait, answerWait
			}
			p := c.progress()
			w, err := stopWithin(ctx, c, p, s.timeout,
				&hostv1.StopWorkloadRequest{Namespace: namespace, Id: id, Force: s.force})
			p.close()
			if errors.Is(err, errSilent) {
				c.Note("%s; it stops workload %q when it is up", message(err), id)
				return nil
			}
			return c.Print(&hostv1.GetWorkloadResponse{Workload: w}, err, func() { c.Note("workload %q is stopped", id) })
		},
	}
}

func leaveVerb() verb {
	return verb{
		use: "leave SPEC|ID", short: "Take the services of a workload out of Consul's catalog before it is stopped", example: "web",
		long: `Take the services of a running workload out of Consul's catalog, and return when their callers
have had the spec's shutdown_delay to see that: no request is lost when what runs the workload
is stopped then. The workload runs on; pannier workload start registers them again. A stop of
pannier workload run, and of a program that it runs, does this by itself.`,
		run: func(ctx context.Context, c *call) error {
			namespace, id, err := c.specOrID()
			if err != nil {
				return err
			}
			c.Note("workload %q leaves Consul's catalog and waits for its shutdown_delay", id)
			resp, err := c.Workloads.LeaveWorkload(ctx, &hostv1.LeaveWorkloadRequest{Namespace: namespace, Id: id})
			return c.Print(resp, err, func() { c.Note("the services of workload %q have left", id) })
		},
	}
}

// stopAll stops the workloads of this host at the same time: one that waits delays no other.
func stopAll(ctx context.Context, c *call, f stopFlags) error {
	resp, err := c.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: c.namespaceOr("*")})
	if err != nil {
		return err
	}
	var all []*hostv1.WorkloadSpec
	for _, w := range resp.GetWorkloads() {
		if !ended(w) {
			all = append(all, w.GetSpec())
		}
	}
	stopped := &hostv1.ListWorkloadsResponse{}
	if len(all) > 0 {
		if err := c.confirm(f.yes, "stop %s of this host?", escape.Count(len(all), "workload")); err != nil {
			return err
		}
	}
	type result struct {
		ref claim.WorkloadRef
		w   *hostv1.Workload
		err error
	}
	results := make(chan result)
	for _, spec := range all {
		go func() {
			quiet := &progress{w: io.Discard}
			w, err := stopWithin(ctx, c, quiet, f.timeout,
				&hostv1.StopWorkloadRequest{Namespace: spec.GetNamespace(), Id: spec.GetId(), Force: f.force})
			results <- result{claim.WorkloadRef{Namespace: spec.GetNamespace(), ID: spec.GetId()}, w, err}
		}()
	}
	failed := 0
	for range all {
		switch r := <-results; {
		case r.err == nil:
			stopped.Workloads = append(stopped.Workloads, r.w)
			c.Note("workload %q is stopped", r.ref)
		case connect.CodeOf(r.err) == connect.CodeNotFound: // somebody else has stopped it
		default:
			failed++
			c.Note("error: workload %q: %s", r.ref, message(r.err))
		}
	}
	if err := c.Print(stopped, nil, func() {}); err != nil {
		return err
	}
	if failed > 0 {
		return Hinted(fmt.Errorf("%s not stopped; the agent continues", Was(int64(failed), "workload")),
			"pannier workload status shows them")
	}
	c.Note("%s stopped", Was(int64(len(stopped.GetWorkloads())), "workload"))
	return nil
}

// ended reports whether a workload has ended, and nothing of it is left.
func ended(w *hostv1.Workload) bool { return w.GetState() == "stopped" || w.GetState() == "failed" }

// stopWithin stops a workload, and waits no longer than timeout; 0: until it is stopped.
func stopWithin(ctx context.Context, c *call, p *progress, timeout time.Duration,
	req *hostv1.StopWorkloadRequest,
) (*hostv1.Workload, error) {
	within, cancel := context.WithCancel(ctx) // not with a deadline, of which the agent would be told
	defer cancel()
	if timeout > 0 {
		defer time.AfterFunc(timeout, cancel).Stop()
	}
	w, err := c.stop(within, p, req)
	status := "pannier workload status " + escape.Argument(req.GetId())
	switch {
	case err == nil:
		return w, nil
	case ctx.Err() != nil:
		return nil, Hinted(errors.New("interrupted"), "the agent continues; follow it with: %s", status)
	case within.Err() != nil:
		err := fmt.Errorf("workload %q is not stopped within %s; the agent continues", req.GetId(), timeout)
		if waits := p.waiting(); len(waits) > 0 {
			err = fmt.Errorf("%w, and waits for: %s", err, strings.Join(waits, "; "))
		}
		return nil, Hinted(err, "%s", status+" says what it waits for")
	}
	return nil, err
}

// stop stops a workload, with retries as start has.
func (c *call) stop(ctx context.Context, p *progress, req *hostv1.StopWorkloadRequest,
) (w *hostv1.Workload, err error) {
	seen := false // steps of this stop were received
	err = c.patiently(ctx, p, true, func() (err error) {
		var some bool
		w, some, err = stopOnce(ctx, c.Client, p, req, c.silence)
		if seen && connect.CodeOf(err) == connect.CodeNotFound {
			// The agent died between the last step and its answer: the workload is stopped.
			spec := &hostv1.WorkloadSpec{Id: req.GetId(), Namespace: req.GetNamespace()}
			w, err = &hostv1.Workload{Spec: spec, State: "stopped"}, nil
		}
		seen = seen || some
		return err
	})
	return w, err
}

// answerWait is how long the stop of a unit waits for an agent that does not answer. Such an agent may be waiting for
// that stop: systemd starts no unit before the stops of the units that are ordered after it.
const answerWait = 5 * time.Second

// errSilent: the call is in the socket's queue, from which the agent takes it when it is up.
var errSilent = fmt.Errorf("the agent does not answer within %s", answerWait)

// stopOnce asks the agent to stop a workload, and shows the steps. It does not wait longer than silence for the answer
// to begin; 0: as long as it takes.
func stopOnce(ctx context.Context, client *api.Client, p *progress, req *hostv1.StopWorkloadRequest,
	silence time.Duration,
) (w *hostv1.Workload, some bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(cmp.Or(silence, math.MaxInt64), func() { cancel(errSilent) })
	stream, err := client.Workloads.StopWorkload(ctx, req)
	late.Stop()
	if err == nil {
		return receive(stream, p)
	}
	if errors.Is(context.Cause(ctx), errSilent) {
		err = errSilent
	}
	return nil, false, err
}
