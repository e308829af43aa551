package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch"
	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/system/vars"
	escape "github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
)

// leftoverGrace is how long processes that the program left have to end by themselves.
const leftoverGrace = 10 * time.Second

// leaveGrace is how long the agent has to take services out of the catalog, beside their shutdown_delay.
const leaveGrace = 15 * time.Second

// echoTime is how long after the program's end signals are taken as meant for the program.
const echoTime = 500 * time.Millisecond

func runVerb() verb {
	var dry bool
	return verb{
		use: "run SPEC [-- COMMAND ARGS...]", short: "Run a program with its volumes in the foreground",
		long: `Start a workload, run its program in a mount namespace of its own with each volume at its
destination, and release the volumes when it ends. Sidecars of the spec start before
the program, which waits until a proxy is ready, and end after it. A spec with a sidecar
needs no program, as a gateway: it runs until a signal. The exit code is the program's.
Processes that the program leaves running are ended. Needs root. -dry-run runs nothing: it
says what a start would do and who has the volumes, and fails if it would be refused.`,
		example: "redis.hcl -- redis-server --dir /data",
		flags:   func(f *pflag.FlagSet) { dryFlag(f, &dry) },
		local: func(ctx context.Context, c *call) error {
			r, err := newRun(c)
			if err != nil {
				return err
			}
			if dry {
				return dryStart(ctx, c, r.spec)
			}
			return r.run(context.WithoutCancel(ctx))
		},
	}
}

// run is one workload in the foreground.
type run struct {
	*call
	path string // of the spec
	spec *hostv1.WorkloadSpec
	// user of the program; nil: the caller.
	user     *child.User
	sidecars []*sidecar
	// running sidecars; nil: none.
	running *launch.Sidecars
	// signals of this process; each phase that waits reads them.
	signals chan os.Signal
	// by is the signal that ended the last interruptible phase; 0: none.
	by syscall.Signal
	// ignoreSignalsUntil is the time until which signals that would end a phase are
	// ignored: they were meant for the program.
	ignoreSignalsUntil time.Time
}

// newRun reads and checks everything that needs no agent.
func newRun(c *call) (*run, error) {
	file, command := c.args[0], c.args[1:]
	spec, err := c.readWorkload()
	if err != nil {
		return nil, err
	}
	if len(command) > 0 {
		if spec.Exec == nil {
			spec.Exec = &hostv1.Exec{}
		}
		spec.Exec.Command, spec.Exec.Args = command[0], nil
		// What a shell has passed on has no variables of the spec.
		for _, arg := range command[1:] {
			spec.Exec.Args = append(spec.Exec.Args, vars.Escape(arg))
		}
	}
	if spec.GetExec().GetCommand() == "" && len(spec.GetSidecars()) == 0 {
		return nil, Usage("%s has no exec and no sidecar block, and there is no command after --", file)
	}
	r := &run{call: c, path: file, spec: spec}
	if err := r.readPrograms(); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, Hinted(Coded(child.CodeNotRun,
			errors.New("workload run needs root, to bind the volumes in a mount namespace")), "run it with sudo; exec.user in the spec says who runs the program")
	}
	c.Client, err = c.App.Client()
	return r, err
}

// run goes through the phases: start, program, release. ctx is never cancelled: each
// phase handles signals itself.
func (r *run) run(ctx context.Context) error {
	r.signals = make(chan os.Signal, 32)
	for _, s := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTSTP,
	} {
		// Signals that nohup or a shell's & ignores stay ignored.
		if !signal.Ignored(s) {
			signal.Notify(r.signals, s)
		}
	}
	defer signal.Stop(r.signals)

	w, err := r.start(ctx)
	if err == nil {
		var code int
		code, err = r.program(ctx, w)
		if err == nil {
			r.release(ctx)
			return silentExit(code)
		}
	}
	// The agent undoes a start that failed, but not one that was interrupted here.
	by := r.by
	if w != nil || by != 0 {
		r.release(ctx)
	}
	if by != 0 {
		return silentExit(128 + int(by))
	}
	failure := (*child.Error)(nil)
	if errors.As(err, &failure) {
		return Coded(failure.Code, err)
	}
	return Coded(child.CodeNotRun, hintStart(ctx, r.call, err, r.spec, r.path))
}

// interruptible runs a phase that a terminating signal cancels; r.by is then that signal.
func (r *run) interruptible(ctx context.Context, phase func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.by = 0
	done := make(chan error, 1)
	go func() { done <- phase(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case s := <-r.signals:
			switch s {
			case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
				if time.Now().Before(r.ignoreSignalsUntil) {
					continue
				}
				// A signal is always a syscall.Signal on Linux.
				r.by, _ = s.(syscall.Signal)
				cancel()
			case syscall.SIGTSTP:
				_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
			}
		}
	}
}

func (r *run) start(ctx context.Context) (w *hostv1.Workload, err error) {
	p := r.progress()
	defer p.close()
	err = r.interruptible(ctx, func(ctx context.Context) error {
		w, err = r.call.start(ctx, p, &hostv1.StartWorkloadRequest{Spec: r.spec, ReleaseWithCaller: true})
		return err
	})
	return w, err
}

// program runs the program and returns its exit code. An error means that it did not run.
func (r *run) program(ctx context.Context, w *hostv1.Workload) (int, error) {
	plan, err := r.programPlan(w)
	if err != nil {
		return 0, err
	}
	proc, err := launch.Start(plan)
	if err != nil {
		return 0, err
	}
	err = r.interruptible(ctx, func(ctx context.Context) error {
		p := r.progress()
		defer p.close()
		return r.patiently(ctx, p, true, func() error {
			_, err := r.Workloads.RunningWorkload(ctx, &hostv1.RunningWorkloadRequest{
				Namespace: r.spec.GetNamespace(), Id: r.spec.GetId(), Pid: int64(proc.PID()),
			})
			return err
		})
	})
	if r.by != 0 {
		err = errors.Join(err, fmt.Errorf("interrupted by %v", r.by))
	}
	if err == nil {
		// The agent knows the namespace now: if this process is killed, the agent ends what runs in it.
		err = r.startSidecars(ctx, proc, w)
	}
	if err != nil {
		proc.Abort()
		return 0, err
	}
	alone := r.spec.GetExec() == nil // the child holds the sidecars' namespace, and executes nothing
	if !alone {
		if err := proc.Go(); err != nil {
			return 0, err
		}
	}
	r.forward(ctx, proc)
	code, err := proc.Wait()
	if alone && (code == 128+int(syscall.SIGTERM) || code == 128+int(syscall.SIGINT)) {
		code = 0 // as asked
	}
	return code, err
}

// forward passes signals on until the program has ended. The first SIGTERM is a stop; another one reaches the program
// at once.
func (r *run) forward(ctx context.Context, proc *launch.Process) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopping := false
	for {
		select {
		case <-proc.Done():
			return
		case s := <-r.signals:
			if s == syscall.SIGTERM && !stopping {
				stopping = true
				go r.end(ctx, proc)
				continue
			}
			send := proc.Signal
			key := s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGTSTP || s == syscall.SIGWINCH
			if key && inForeground() {
				send = proc.SignalKey
			}
			if err := send(s); err != nil {
				r.Note("warning: %v", err)
			}
			if s == syscall.SIGTSTP {
				_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
			}
		}
	}
}

// end takes the services out of Consul's catalog and then asks the program to end. It is killed when its kill_timeout,
// if it has one, is over. ctx ends with the program.
func (r *run) end(ctx context.Context, proc *launch.Process) {
	exec := r.spec.GetExec()
	sig, timeout := process.Ending(exec.GetKillSignal(), exec.GetKillTimeout())
	if err := r.leave(ctx); err != nil {
		r.Note("warning: the services may be in Consul's catalog still: %s", message(err))
	}
	if err := proc.Signal(sig); err != nil {
		r.Note("warning: %v", err)
	}
	if timeout == 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(timeout):
		r.Note("the program did not end within its kill_timeout of %s: it is killed", timeout)
		_ = proc.Signal(syscall.SIGKILL) // it may have ended
	}
}

// leave takes the services out of Consul's catalog, as far as the agent answers in time. ctx ends with the program,
// which then needs no warning.
func (r *run) leave(ctx context.Context) error {
	if len(r.spec.GetServices()) == 0 {
		return nil
	}
	delay, _ := time.ParseDuration(r.spec.GetShutdownDelay()) // the default is short
	bounded, cancel := context.WithTimeout(ctx, delay+leaveGrace)
	defer cancel()
	_, err := r.Workloads.LeaveWorkload(bounded,
		&hostv1.LeaveWorkloadRequest{Namespace: r.spec.GetNamespace(), Id: r.spec.GetId()})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// inForeground reports whether the controlling terminal sends the signals of its keys to
// this process's group.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// release ends what still runs and releases the volumes. Failures are only reported,
// because the exit code is the program's.
func (r *run) release(ctx context.Context) {
	// A signal that ended the program, sent to the whole group, may only arrive now.
	r.ignoreSignalsUntil = time.Now().Add(echoTime)
	err := r.endAll(ctx)
	if err != nil {
		r.Note("warning: processes of the program may still run: %v", err)
	}
	p := r.progress()
	defer p.close()
	err = r.interruptible(ctx, func(ctx context.Context) error {
		_, err := r.stop(ctx, p, &hostv1.StopWorkloadRequest{Namespace: r.spec.GetNamespace(), Id: r.spec.GetId()})
		return err
	})
	status := "pannier workload status " + r.spec.GetId()
	switch {
	case err == nil, connect.CodeOf(err) == connect.CodeNotFound:
	case r.by != 0:
		p.note("interrupted: the agent continues the release; follow it with: %s", status)
	case away(err, true):
		p.note("warning: %s; the agent releases the volumes by itself as soon as it is back", message(err))
	default:
		p.note("error: release workload %q: %s; the agent tries again by itself; see: %s", r.spec.GetId(), message(err),
			status)
	}
}

// tokenFileVariable tells Consul's own tools and client libraries where their token is.
const tokenFileVariable = "CONSUL_HTTP_TOKEN_FILE"

// programPlan returns how the program is run.
func (r *run) programPlan(w *hostv1.Workload) (child.Plan, error) {
	exec := r.spec.GetExec()
	x := newExpander(w, "")
	args, env := x.list("args", exec.GetArgs()), x.mapping("env", exec.GetEnv())
	if x.err != nil {
		return child.Plan{}, fmt.Errorf("exec: %w", x.err)
	}
	plan := child.Plan{
		Command: exec.GetCommand(), Args: args, User: r.user,
		Env: environment(w, "", r.user, env), VolumesDir: w.GetVolumesDir(),
	}
	for _, m := range w.GetMounts() {
		plan.Mounts = append(plan.Mounts, child.Mount{
			Source: m.GetHostPath(), Destination: m.GetDestination(), ReadOnly: m.GetReadOnly(), Block: m.GetBlock(),
			SUID: m.GetSuid(), Dev: m.GetDev(),
		})
	}
	reserved, err := deviceMounts(w.GetReservation())
	plan.Mounts = append(plan.Mounts, reserved...)
	return plan, err
}

// plan returns how the sidecar is run. It shares the program's mounts. epoch counts the Envoys of the base ID that have
// taken over from one before.
func (c *sidecar) plan(w *hostv1.Workload, baseID, epoch int) (child.Plan, error) {
	x := newExpander(w, c.service)
	x.vars[vars.BaseID], x.vars[vars.RestartEpoch] = strconv.Itoa(baseID), strconv.Itoa(epoch)
	command, env := x.list("command", c.spec.GetCommand()), x.mapping("env", c.spec.GetEnv())
	if x.err != nil {
		return child.Plan{}, fmt.Errorf("sidecar %q: %w", c.service, x.err)
	}
	return child.Plan{
		Command: command[0], Args: command[1:], User: c.user,
		Env: environment(w, c.service, c.user, env),
	}, nil
}

// environment returns a program's environment: the caller's, with the variables of the user,
// the spec and the workload. service is the one that the program is a sidecar of; empty: none.
func environment(w *hostv1.Workload, service string, user *child.User, own map[string]string) (env []string) {
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

// proxyPatience is how long the program waits for its proxies, which wait as long for Consul's first answer.
const proxyPatience = 15 * time.Second

// reportPatience bounds the report of a sidecar's end, which is not tried again.
const reportPatience = 2 * time.Second

// sidecarGrace is how long sidecars have to end when they are asked to.
const sidecarGrace = 10 * time.Second

// sidecar is one of the spec's sidecars, with what is known before the start.
type sidecar struct {
	spec *hostv1.Sidecar
	// service whose proxy it is.
	service string
	user    *child.User
}

// readPrograms finds the programs' users and each sidecar's service, and checks that every variable will have a value
// and that each program is there.
func (r *run) readPrograms() (err error) {
	var problems config.Problems
	bad := func(err error) { problems = append(problems, config.Problem{File: r.path, Text: err.Error()}) }
	if name := r.spec.GetExec().GetUser(); name != "" {
		if r.user, err = launch.LookupUser(name); err != nil {
			bad(fmt.Errorf("exec: user: %w", err))
		}
	}
	w := expected(r.spec)
	if _, err := r.programPlan(w); err != nil {
		bad(err)
	}
	for _, s := range r.spec.GetSidecars() {
		c, err := r.sidecar(s)
		if err == nil {
			_, err = c.plan(w, 0, 0)
		}
		if err != nil {
			bad(err)
		}
		r.sidecars = append(r.sidecars, c)
	}
	if len(problems) > 0 {
		return problems
	}
	if failure := r.findPrograms(); failure != nil {
		return Coded(failure.Code, failure)
	}
	return nil
}

// findPrograms returns an error if a program would not be found. One that a volume or a device may bring is not known
// yet.
func (r *run) findPrograms() *child.Error {
	w := expected(r.spec)
	look := func(plan child.Plan) *child.Error {
		places := []string{plan.Command}
		for _, kv := range plan.Env {
			if dirs, is := strings.CutPrefix(kv, "PATH="); is && !strings.Contains(plan.Command, "/") {
				places = filepath.SplitList(dirs)
			}
		}
		brought := len(r.spec.GetDevices()) > 0
		for _, v := range r.spec.GetVolumes() {
			brought = brought || slices.ContainsFunc(places, func(at string) bool {
				at, err := filepath.Abs(at)
				return err == nil && strings.HasPrefix(at+"/", path.Clean(v.GetDestination())+"/")
			})
		}
		failure := (*child.Error)(nil)
		if brought || os.Geteuid() != 0 || !errors.As(launch.Look(plan), &failure) {
			return nil
		}
		return failure
	}
	if r.spec.GetExec().GetCommand() != "" {
		plan, _ := r.programPlan(w) // readPrograms has had its errors
		if failure := look(plan); failure != nil {
			return failure
		}
	}
	for _, c := range r.sidecars {
		plan, _ := c.plan(w, 0, 0) // likewise
		if failure := look(plan); failure != nil {
			return &child.Error{Code: child.CodeNotRun, Text: fmt.Sprintf("sidecar %q: %s", c.service, failure.Text)}
		}
	}
	return nil
}

// sidecar finds a sidecar's service: the one that it names, or the only one that has a proxy. Its user is its own, the
// workload's or exec's, in this order.
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

// startSidecars starts the sidecars in the child's namespace, before the child runs the program, and waits until the
// proxies are ready: the program may call its upstreams at once.
func (r *run) startSidecars(ctx context.Context, proc *launch.Process, w *hostv1.Workload) (err error) {
	if len(r.sidecars) == 0 {
		return nil
	}
	for _, c := range r.sidecars {
		if _, err := c.plan(w, 0, 0); err != nil {
			return err
		}
	}
	ended := func(sidecar, how string, restarts int) {
		ctx, cancel := context.WithTimeout(ctx, reportPatience)
		defer cancel()
		// An agent that is away hears of the next end.
		_, _ = r.Workloads.RunningWorkload(ctx, &hostv1.RunningWorkloadRequest{
			Namespace: r.spec.GetNamespace(), Id: r.spec.GetId(), Pid: int64(proc.PID()),
			Ended: &hostv1.SidecarEnd{Service: sidecar, How: how, Restarts: int32(restarts)},
		})
	}
	if r.running, err = launch.NewSidecars(proc, r.Note, ended); err != nil {
		return err
	}
	for _, c := range r.sidecars {
		plan := func(baseID, epoch int) child.Plan {
			plan, _ := c.plan(w, baseID, epoch) // it is as good as the one above
			return plan
		}
		err := r.running.Start(ctx, launch.Sidecar{
			Name: c.service, Plan: plan, File: statusOf(w, c.service).GetBootstrapFile(),
		})
		if err != nil {
			return err
		}
	}
	if r.spec.GetExec() == nil {
		return nil
	}
	return r.interruptible(ctx, func(ctx context.Context) error {
		waiting, cancel := context.WithTimeout(ctx, proxyPatience)
		defer cancel()
		if err := r.running.AwaitReady(waiting); err != nil && ctx.Err() == nil {
			r.Note("warning: %v; the program starts without it after %s", err, proxyPatience)
		}
		return ctx.Err()
	})
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
