package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
)

// Process is a child, and then the program that it has become.
type Process struct {
	cmd     *exec.Cmd
	orders  *os.File
	reports *json.Decoder
	pipe    *os.File
	done    chan struct{}
	waitErr error
	// leads is true if the program leads a process group of its own.
	leads bool
}

// Start runs a child in a new mount namespace and returns when it has bound the volumes. The child has the caller's
// standard streams and working directory, and its process group unless the plan has a user. An *Error names what could
// not be bound.
func Start(plan child.Plan) (*Process, error) {
	return start(plan, &exec.Cmd{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS},
	})
}

// startIn runs a child in an existing mount namespace, in its own session and without standard input. Its output goes
// to standard error. It returns when the child is in the namespace.
func startIn(namespace *os.File, plan child.Plan) (*Process, *output, error) {
	plan.Join = true
	out, pipe, err := newOutput(plan.User)
	if err != nil {
		return nil, nil, err
	}
	defer pipe.Close() // the child has it
	p, err := start(plan, &exec.Cmd{
		Stdout: pipe, Stderr: pipe, ExtraFiles: []*os.File{namespace},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	})
	return p, out, err
}

// Look returns an *Error if the program of a plan is not there, or its user may not execute it. It runs nothing.
func Look(plan child.Plan) error {
	plan.Look = true
	p, err := start(plan, &exec.Cmd{Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{}})
	if err == nil {
		err = p.Go()
	}
	return err
}

// start runs a child and sends it its plan. cmd has what differs between children.
func start(plan child.Plan, cmd *exec.Cmd) (*Process, error) {
	plan.Parent = os.Getpid()
	// Orphans of the program become children of this process, so that EndLeftovers finds them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become the parent of orphans: %w", err)
	}
	ordersOut, ordersIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	reportsOut, reportsIn, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ordersOut.Close(), ordersIn.Close())
	}

	cmd.Path, cmd.Args = "/proc/self/exe", []string{os.Args[0], child.Arg}
	cmd.ExtraFiles = append([]*os.File{ordersOut, reportsIn}, cmd.ExtraFiles...)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p := &Process{
		cmd: cmd, orders: ordersIn, reports: json.NewDecoder(reportsOut), pipe: reportsOut,
		done: make(chan struct{}), leads: plan.User != nil,
	}
	err = p.start()
	// Close our copies, so that the reports end when the child dies.
	err = errors.Join(err, reportsIn.Close(), ordersOut.Close())
	if err != nil {
		p.close()
		return nil, &child.Error{Code: child.CodeNotRun, Text: fmt.Sprintf("start in a mount namespace: %v", err)}
	}
	err = json.NewEncoder(ordersIn).Encode(plan)
	if err == nil || errors.Is(err, unix.EPIPE) {
		err = p.await()
	}
	if err != nil {
		p.Abort()
		return nil, err
	}
	return p, nil
}

// start runs the child from a thread that lives as long as the child: the kernel
// sends a parent-death signal when the thread ends, not the process (prctl(2)).
func (p *Process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.waitErr = p.cmd.Wait()
		close(p.done)
	}()
	return <-started
}

// await reads the child's next report: nil when it is ready.
func (p *Process) await() error {
	var r child.Report
	if err := p.reports.Decode(&r); err != nil {
		return &child.Error{Code: child.CodeNotRun, Text: "the child ended before it was ready"}
	}
	if !r.Ready {
		return &child.Error{Code: r.Code, Text: r.Error}
	}
	return nil
}

// close closes this process's ends of the pipes; it may be called more than once.
func (p *Process) close() {
	// Closing a pipe loses nothing.
	_, _ = p.orders.Close(), p.pipe.Close()
}

// PID is the process id of the child, and then of the program.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Go makes the child execute the program; nil means that it has. An *Error explains why it could not; the child has
// then ended.
func (p *Process) Go() error {
	_, err := io.WriteString(p.orders, `{"go":true}`+"\n")
	if err != nil && !errors.Is(err, unix.EPIPE) {
		p.Abort()
		return &child.Error{Code: child.CodeNotRun, Text: fmt.Sprintf("tell the child to go: %v", err)}
	}
	defer p.close()
	// The pipe closes at the exec, or when the child ends, which Wait reports.
	var r child.Report
	if err := p.reports.Decode(&r); err != nil {
		return nil
	}
	<-p.done
	return &child.Error{Code: r.Code, Text: r.Error}
}

// Abort kills a child that shall not execute the program, and waits for it. It may be called more than once.
func (p *Process) Abort() {
	_ = p.cmd.Process.Kill() // It may have ended by itself.
	p.close()
	<-p.done
}

// Signal sends a signal to the program. It is no error if the program has ended.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// SignalKey sends a signal that the terminal has sent to the caller's process group for a key. A program of that group
// has it already.
func (p *Process) SignalKey(sig os.Signal) error {
	number, ok := sig.(syscall.Signal)
	if !ok || !p.leads {
		return nil
	}
	if err := unix.Kill(-p.PID(), number); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %v to process group %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the program and returns its exit code: 128 plus the signal's number if a signal ended it.
func (p *Process) Wait() (int, error) {
	<-p.done
	exit := (*exec.ExitError)(nil)
	if p.waitErr != nil && !errors.As(p.waitErr, &exit) {
		return child.CodeNotRun, fmt.Errorf("wait for process %d: %w", p.PID(), p.waitErr)
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return p.cmd.ProcessState.ExitCode(), nil
}

// how describes how the program ended.
func (p *Process) how() string {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return "ended"
	case status.Signaled():
		return fmt.Sprintf("was ended by signal %d (%v)", int(status.Signal()), status.Signal())
	}
	return fmt.Sprintf("ended with exit code %d", status.ExitStatus())
}
