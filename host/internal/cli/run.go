package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/consul/vars"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// leftoverGrace is how long processes that the program left have to end by themselves.
const leftoverGrace = 10 * time.Second

// echoTime is how long after the program's end signals are taken as meant for the program.
const echoTime = 500 * time.Millisecond

func runVerb() verb {
	var dry bool
	return verb{
		use: "run SPEC [-- COMMAND ARGS...]", short: "Run a program with its volumes in the foreground",
		long: `Start a workload, run its program in a mount namespace of its own with each volume at its
destination, and release the volumes when it ends. Sidecars of the spec start before
the program and end after it. The exit code is the program's. Processes that the program
leaves running are ended. Needs root. -dry-run runs nothing: it says what a start would do and
who has the volumes, and fails if it would be refused.`,
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
	user     *launch.User
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
	path, command := c.args[0], c.args[1:]
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
	if spec.GetExec().GetCommand() == "" {
		return nil, Usage("%s has no exec block, and there is no command after --", path)
	}
	r := &run{call: c, path: path, spec: spec}
	if name := spec.GetExec().GetUser(); name != "" {
		if r.user, err = launch.LookupUser(name); err != nil {
			return nil, config.Problems{{File: path, Text: "exec: user: " + err.Error()}}
		}
	}
	if err := r.readPrograms(path); err != nil {
		return nil, err
	}
	if os.Geteuid() != 0 {
		return nil, Hinted(Coded(launch.CodeNotRun,
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
	failure := (*launch.Error)(nil)
	if errors.As(err, &failure) {
		return Coded(failure.Code, err)
	}
	return Coded(launch.CodeNotRun, hintStart(ctx, r.call, err, r.spec, r.path))
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
	child, err := launch.Start(plan)
	if err != nil {
		return 0, err
	}
	err = r.interruptible(ctx, func(ctx context.Context) error {
		p := r.progress()
		defer p.close()
		return r.patiently(ctx, p, true, func() error {
			_, err := r.Workloads.RunningWorkload(ctx, &hostv1.RunningWorkloadRequest{
				Namespace: r.spec.GetNamespace(), Id: r.spec.GetId(), Pid: int64(child.PID()),
			})
			return err
		})
	})
	if err != nil || r.by != 0 {
		child.Abort()
		return 0, errors.Join(err, r.interrupted())
	}
	// The agent knows the namespace now: if this process is killed, the agent ends what runs in it.
	if err := r.startSidecars(ctx, child, w); err != nil {
		child.Abort()
		return 0, err
	}
	if err := child.Go(); err != nil {
		return 0, err
	}
	r.forward(child)
	return child.Wait()
}

func (r *run) interrupted() error {
	if r.by == 0 {
		return nil
	}
	return fmt.Errorf("interrupted by %v", r.by)
}

// forward passes signals on until the program has ended.
func (r *run) forward(child *launch.Process) {
	for {
		select {
		case <-child.Done():
			return
		case s := <-r.signals:
			send := child.Signal
			key := s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGTSTP || s == syscall.SIGWINCH
			if key && inForeground() {
				send = child.SignalKey
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
