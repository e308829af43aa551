package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/cli/launch"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/consul/vars"
	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
)

// tokenFileVariable tells Consul's own tools and client libraries where their token is.
const tokenFileVariable = "CONSUL_HTTP_TOKEN_FILE"

// programPlan returns how the program is run.
func (r *run) programPlan(w *hostv1.Workload) (launch.Plan, error) {
	exec := r.spec.GetExec()
	x := newExpander(w, "")
	args, env := x.list("args", exec.GetArgs()), x.mapping("env", exec.GetEnv())
	if x.err != nil {
		return launch.Plan{}, fmt.Errorf("exec: %w", x.err)
	}
	plan := launch.Plan{
		Command: exec.GetCommand(), Args: args, User: r.user,
		Env: environment(w, "", r.user, env), VolumesDir: w.GetVolumesDir(),
	}
	for _, m := range w.GetMounts() {
		plan.Mounts = append(plan.Mounts, launch.Mount{
			Source: m.GetHostPath(), Destination: m.GetDestination(), ReadOnly: m.GetReadOnly(), Block: m.GetBlock(),
			SUID: m.GetSuid(), Dev: m.GetDev(),
		})
	}
	reserved, err := deviceMounts(w.GetReservation())
	plan.Mounts = append(plan.Mounts, reserved...)
	return plan, err
}

// plan returns how the sidecar is run. It shares the program's mounts. epoch counts those that have taken over from one
// before.
func (c *sidecar) plan(w *hostv1.Workload, epoch int) (launch.Plan, error) {
	x := newExpander(w, c.service)
	x.vars[vars.RestartEpoch], x.vars[vars.BaseID] = strconv.Itoa(epoch), strconv.Itoa(c.baseID)
	command, env := x.list("command", c.spec.GetCommand()), x.mapping("env", c.spec.GetEnv())
	if x.err != nil {
		return launch.Plan{}, fmt.Errorf("sidecar %q: %w", c.service, x.err)
	}
	return launch.Plan{
		Command: command[0], Args: command[1:], User: c.user,
		Env: environment(w, c.service, c.user, env),
	}, nil
}

// environment returns a program's environment: the caller's, with the variables of the user,
// the spec and the workload. service is the one that the program is a sidecar of; empty: none.
func environment(w *hostv1.Workload, service string, user *launch.User, own map[string]string) (env []string) {
	all := map[string]string{}
	for _, kv := range os.Environ() {
		if key, value, ok := strings.Cut(kv, "="); ok {
			all[key] = value
		}
	}
	delete(all, tokenEnv) // the program does not inherit the caller's rights
	if user != nil && user.Name != "" {
		all["USER"], all["LOGNAME"], all["HOME"] = user.Name, user.Name, user.Home
	}
	set := variables(w, w.GetSecretsDir())
	if s := statusOf(w, service); s.GetTokenFile() != "" {
		set[tokenFileVariable] = s.GetTokenFile()
	}
	if set[tokenFileVariable] != "" {
		// A program with a token of its own must not use the caller's.
		delete(all, "CONSUL_HTTP_TOKEN")
		all[tokenFileVariable] = set[tokenFileVariable]
		delete(set, tokenFileVariable)
	}
	maps.Copy(all, own)
	maps.Copy(all, set)
	all["PANNIER_WORKLOAD"] = w.GetSpec().GetId()
	for _, m := range w.GetMounts() {
		all[variable("VOLUME", m.GetRequest())] = m.GetDestination()
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		env = append(env, key+"="+all[key])
	}
	return env
}

// statusOf returns a service's status; nil when there is no such service.
func statusOf(w *hostv1.Workload, service string) *hostv1.ServiceStatus {
	for _, s := range w.GetServices() {
		if s.GetName() == service {
			return s
		}
	}
	return nil
}

// expander replaces the variables of a program's arguments and environment.
type expander struct {
	vars map[string]string
	err  error // the first one
}

// newExpander returns an expander for a service's sidecar. For the workload's own program,
// service is empty: it gets the token of the only service with a token, and the bootstrap and
// proxy of the only service with a proxy.
func newExpander(w *hostv1.Workload, service string) *expander {
	known := map[string]string{
		vars.NodeName:          w.GetNode(),
		vars.WorkloadID:        w.GetSpec().GetId(),
		vars.WorkloadNamespace: w.GetSpec().GetNamespace(),
	}
	for label, number := range w.GetPorts() {
		known[vars.Port(label)] = strconv.Itoa(int(number))
	}
	if w.GetSecretsDir() != "" {
		known[vars.SecretsDir] = w.GetSecretsDir()
	}
	values := map[string][]string{}
	for _, s := range w.GetServices() {
		if service != "" && s.GetName() != service {
			continue
		}
		for name, value := range map[string]string{
			vars.TokenFile: s.GetTokenFile(), vars.Bootstrap: s.GetBootstrapFile(), vars.ProxyID: s.GetProxyId(),
		} {
			if value != "" {
				values[name] = append(values[name], value)
			}
		}
	}
	for name, all := range values {
		if len(all) == 1 {
			known[name] = all[0]
		}
	}
	return &expander{vars: known}
}

func (x *expander) list(what string, texts []string) []string {
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = x.text(fmt.Sprintf("%s[%d]", what, i), text)
	}
	return out
}

func (x *expander) mapping(what string, texts map[string]string) map[string]string {
	out := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(texts)) {
		out[key] = x.text(what+": "+key, texts[key])
	}
	return out
}

func (x *expander) text(what, text string) string {
	out, err := vars.Expand(text, x.vars)
	if err != nil && x.err == nil {
		x.err = fmt.Errorf("%s: %w", what, err)
	}
	return out
}

// expected returns the workload as its spec describes it, with a placeholder for every value
// that is known only after the start.
func expected(spec *hostv1.WorkloadSpec) *hostv1.Workload {
	const some = "/"
	w := &hostv1.Workload{Spec: spec, Ports: map[string]int32{}}
	for _, p := range spec.GetPorts() {
		w.Ports[p.GetLabel()] = p.GetStatic()
	}
	for _, s := range spec.GetServices() {
		status := &hostv1.ServiceStatus{Name: s.GetName()}
		if s.GetConnect() != nil {
			w.SecretsDir, status.TokenFile = some, some
		}
		if hasProxy(s) {
			status.BootstrapFile, status.ProxyId = some, some
		}
		w.Services = append(w.Services, status)
	}
	return w
}

// sidecarGrace is how long sidecars have to end when they are asked to.
const sidecarGrace = 10 * time.Second

// sidecar is one of the spec's sidecars, with what is known before the start.
type sidecar struct {
	spec *hostv1.Sidecar
	// service whose proxy it is.
	service string
	user    *launch.User
	// baseID distinguishes it from all proxies of the machine.
	baseID int
}

// readPrograms finds each sidecar's service and user, and checks that every variable of the
// sidecars and the program will have a value.
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
			_, err = c.plan(w, 0)
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

// hasProxy reports whether the service has a proxy: a sidecar or a gateway.
func hasProxy(s *servicev1.Service) bool {
	return s.GetConnect().GetSidecarService() != nil || s.GetConnect().GetGateway() != nil
}

// maxSidecars is how many sidecars of one process have base IDs that differ. Envoy takes IDs up to a tenth of 2^32, and
// Linux has process IDs up to 2^22.
const maxSidecars = 100

// startSidecars starts the sidecars in the child's namespace, before the child runs the program.
func (r *run) startSidecars(ctx context.Context, child *launch.Process, w *hostv1.Workload) (err error) {
	if len(r.sidecars) == 0 {
		return nil
	}
	for n, c := range r.sidecars {
		c.baseID = os.Getpid()*maxSidecars + n%maxSidecars
		if _, err := c.plan(w, 0); err != nil {
			return err
		}
	}
	if r.running, err = launch.NewSidecars(child, r.Note); err != nil {
		return err
	}
	for _, c := range r.sidecars {
		plan := func(epoch int) launch.Plan {
			plan, _ := c.plan(w, epoch) // it is as good as that of epoch 0
			return plan
		}
		if err := r.running.Start(ctx, c.service, plan, statusOf(w, c.service).GetBootstrapFile()); err != nil {
			return err
		}
	}
	return nil
}

// endAll ends what the program left running, and then the sidecars, so that nothing of the
// workload runs when its volumes are released.
func (r *run) endAll(ctx context.Context) error {
	if r.running == nil {
		return r.endLeftovers(ctx, "the program")
	}
	err := r.endLeftovers(ctx, "the program", r.running.StopRestarts()...)
	stopped := r.interruptible(ctx, func(ctx context.Context) error {
		r.running.Stop(ctx, sidecarGrace)
		return nil
	})
	return errors.Join(err, stopped, r.endLeftovers(ctx, "the sidecars"))
}

func (r *run) endLeftovers(ctx context.Context, whose string, spared ...int) error {
	return r.interruptible(ctx, func(ctx context.Context) error {
		ended, err := launch.EndLeftovers(ctx, leftoverGrace, spared...)
		if ended > 0 {
			r.Note("ended %s that %s had left running", escape.Count(ended, "process"), whose)
		}
		return err
	})
}
