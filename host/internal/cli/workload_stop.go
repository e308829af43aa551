package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"

	"github.com/pannier/pannier/cluster/claim"
	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// stopFlags are those of pannier workload stop.
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
			p := c.progress()
			w, err := stopWithin(ctx, c, p, s.timeout,
				&hostv1.StopWorkloadRequest{Namespace: namespace, Id: id, Force: s.force})
			p.close()
			return c.Print(&hostv1.GetWorkloadResponse{Workload: w}, err, func() { c.Note("workload %q is stopped", id) })
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
	err = c.patiently(ctx, p, true, func() error {
		stream, err := c.Workloads.StopWorkload(ctx, req)
		if err != nil {
			return err
		}
		var some bool
		w, some, err = receive(stream, p)
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
