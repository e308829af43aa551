package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pannier/pannier/host/internal/cli/launch"
	"github.com/pannier/pannier/host/internal/config"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
)

// sidecarGrace is how long sidecars have to end when they are asked to.
const sidecarGrace = 10 * time.Second

// sidecar is one of the spec's, with what can be known of it before the start.
type sidecar struct {
	spec *hostv1.Sidecar
	// service whose proxy it is.
	service string
	user    *launch.User
}

// readPrograms finds each sidecar's service and user, and sees to it that every variable
// of theirs and of the program's will have a value.
func (r *run) readPrograms(path string) error {
	var problems config.Problems
	bad := func(err error) { problems = append(problems, config.Problem{File: path, Text: err.Error()}) }
	w := expected(r.spec)
	if _, err := r.programPlan(w); err != nil {
		bad(err)
	}
	for _, s := range r.spec.GetSidecars() {
		c, err := r.sidecar(s)
		if err == nil {
			_, err = c.plan(w)
		}
		if err != nil {
			bad(err)
		}
		r.sidecars = append(r.sidecars, c)
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// sidecar finds a sidecar's service: the one that it names, or the only one that has a
// proxy. Its user is its own, the workload's or that of exec, in this order.
func (r *run) sidecar(s *hostv1.Sidecar) (c *sidecar, err error) {
	c = &sidecar{spec: s, service: s.GetService(), user: r.user}
	for _, service := range r.spec.GetServices() {
		if c.service == "" && hasProxy(service) {
			c.service = service.GetName()
		}
	}
	if name := cmp.Or(s.GetUser(), r.spec.GetUser()); name != "" {
		if c.user, err = launch.LookupUser(name); err != nil {
			return nil, fmt.Errorf("sidecar %q: user: %w", c.service, err)
		}
	}
	return c, nil
}

// hasProxy says whether a proxy stands for the service: a sidecar or a gateway.
func hasProxy(s *servicev1.Service) bool {
	return s.GetConnect().GetSidecarService() != nil || s.GetConnect().GetGateway() != nil
}

// startSidecars starts them beside the child, before it is told to go.
func (r *run) startSidecars(ctx context.Context, child *launch.Process, w *hostv1.Workload) (err error) {
	if len(r.sidecars) == 0 {
		return nil
	}
	var plans []launch.Plan
	for _, c := range r.sidecars {
		plan, err := c.plan(w)
		if err != nil {
			return err
		}
		plans = append(plans, plan)
	}
	if r.beside, err = launch.NewSidecars(child, r.note); err != nil {
		return err
	}
	for i, c := range r.sidecars {
		if err := r.beside.Start(ctx, c.service, plans[i], statusOf(w, c.service).GetBootstrapFile()); err != nil {
			return err
		}
	}
	return nil
}

// endAll ends what the program left running, and then the sidecars: nothing of the
// workload runs when its volumes are given back.
func (r *run) endAll(ctx context.Context) error {
	if r.beside == nil {
		return r.endLeftovers(ctx, "the program")
	}
	err := r.endLeftovers(ctx, "the program", r.beside.Settle()...)
	stopped := r.interruptible(ctx, func(ctx context.Context) error {
		r.beside.Stop(ctx, sidecarGrace)
		return nil
	})
	return errors.Join(err, stopped, r.endLeftovers(ctx, "the sidecars"))
}

func (r *run) endLeftovers(ctx context.Context, whose string, spared ...int) error {
	return r.interruptible(ctx, func(ctx context.Context) error {
		told, err := launch.EndLeftovers(ctx, leftoverGrace, spared...)
		if told > 0 {
			r.note("ended %s that %s had left running", countProcesses(told), whose)
		}
		return err
	})
}
