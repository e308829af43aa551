package cli

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pannier/pannier/host/internal/cli/launch"
	"github.com/pannier/pannier/host/internal/consul/vars"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// tokenFileVariable tells Consul's own tools and client libraries where their token is.
const tokenFileVariable = "CONSUL_HTTP_TOKEN_FILE"

// programPlan says what the program is to find.
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
		})
	}
	reserved, err := reservedMounts(w.GetReservation())
	plan.Mounts = append(plan.Mounts, reserved...)
	return plan, err
}

// plan says what a sidecar is to find. It shares the program's mounts.
func (c *sidecar) plan(w *hostv1.Workload) (launch.Plan, error) {
	x := newExpander(w, c.service)
	command, env := x.list("command", c.spec.GetCommand()), x.mapping("env", c.spec.GetEnv())
	if x.err != nil {
		return launch.Plan{}, fmt.Errorf("sidecar %q: %w", c.service, x.err)
	}
	return launch.Plan{Command: command[0], Args: command[1:], User: c.user, Env: environment(w, c.service, c.user, env)}, nil
}

// environment is a program's: the caller's, with what the user, the spec and the
// workload add to it. service is the one that the program stands for; empty: none.
func environment(w *hostv1.Workload, service string, user *launch.User, own map[string]string) (env []string) {
	all := map[string]string{}
	for _, kv := range os.Environ() {
		if key, value, ok := strings.Cut(kv, "="); ok {
			all[key] = value
		}
	}
	delete(all, tokenEnv) // the caller's own rights are not the program's
	if user != nil && user.Name != "" {
		all["USER"], all["LOGNAME"], all["HOME"] = user.Name, user.Name, user.Home
	}
	told := variables(w, w.GetSecretsDir())
	if s := statusOf(w, service); s.GetTokenFile() != "" {
		told[tokenFileVariable] = s.GetTokenFile()
	}
	if told[tokenFileVariable] != "" {
		// Whoever has a token of its own is not to work with the caller's.
		delete(all, "CONSUL_HTTP_TOKEN")
		all[tokenFileVariable] = told[tokenFileVariable]
		delete(told, tokenFileVariable)
	}
	maps.Copy(all, own)
	maps.Copy(all, told)
	all["PANNIER_WORKLOAD"] = w.GetSpec().GetId()
	for _, m := range w.GetMounts() {
		all[variable("VOLUME", m.GetRequest())] = m.GetDestination()
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		env = append(env, key+"="+all[key])
	}
	return env
}

// statusOf is how a service of the workload stands; nil where there is none.
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
	err  error // the first
}

// newExpander knows the variables of a program that stands for a service. The
// workload's own stands for the one that has a token, and for the one that has a
// proxy, where there is only one.
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

// expected is the workload as far as its spec tells: every name that it will have has
// some value.
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
