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
)

// ChildArg is the first argument by which main knows that it is the child, and
// then calls Child.
const ChildArg = "__exec"

// The exit codes for a program that did not run, as docker has them.
const (
	CodeNotRun        = 125
	CodeNotExecutable = 126
	CodeNotFound      = 127
)

// Error says why the program did not run.
type Error struct {
	// Code is CodeNotRun, CodeNotExecutable or CodeNotFound.
	Code int
	Text string
}

func (e *Error) Error() string { return e.Text }

// report is one message of the child; after the last one the pipe is closed.
type report struct {
	Ready bool   `json:"ready,omitempty"`
	Code  int    `json:"code,omitempty"`
	Error string `json:"error,omitempty"`
}

// Process is a child, and then the program that it has become.
type Process struct {
	cmd     *exec.Cmd
	orders  *os.File
	reports *json.Decoder
	pipe    *os.File
	done    chan struct{}
	waitErr error
}

// Start runs a child in a new mount namespace and returns when it has bound the
// volumes. The standard streams, the working directory and the process group are
// the caller's. An *Error says what could not be bound.
func Start(plan Plan) (*Process, error) {
	return start(plan, &exec.Cmd{
		Stdin: os.Stdin, Stdout: os.Stdout,
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS},
	})
}

// startIn runs a child in a mount namespace that is there, in a session of its own
// and without an input; what it writes goes to the standard error. It returns when
// the child is in the namespace.
func startIn(namespace *os.File, plan Plan) (*Process, error) {
	plan.Join = true
	return start(plan, &exec.Cmd{
		Stdout: os.Stderr, ExtraFiles: []*os.File{namespace},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	})
}

// start runs a child and gives it its plan. cmd says what is not the same for all.
func start(plan Plan, cmd *exec.Cmd) (*Process, error) {
	plan.Parent = os.Getpid()
	// Whatever the program leaves behind becomes a child of this process, for
	// EndLeftovers to find.
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

	cmd.Path, cmd.Args = "/proc/self/exe", []string{os.Args[0], ChildArg}
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = append([]*os.File{ordersOut, reportsIn}, cmd.ExtraFiles...)
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	p := &Process{cmd: cmd, orders: ordersIn, reports: json.NewDecoder(reportsOut), pipe: reportsOut, done: make(chan struct{})}
	err = p.start()
	// Only the child has its ends now: when it dies, its reports end.
	err = errors.Join(err, reportsIn.Close(), ordersOut.Close())
	if err != nil {
		p.close()
		return nil, &Error{CodeNotRun, fmt.Sprintf("start in a mount namespace: %v", err)}
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
	var r report
	if err := p.reports.Decode(&r); err != nil {
		return &Error{CodeNotRun, "the child ended before it was ready"}
	}
	if !r.Ready {
		return &Error{r.Code, r.Error}
	}
	return nil
}

// close closes this process's ends of the pipes; it may be called more than once.
func (p *Process) close() {
	// A pipe's end holds nothing that closing could lose.
	_, _ = p.orders.Close(), p.pipe.Close()
}

// PID is the child's, and then the program's, process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Go lets the child execute the program; nil means that it has. An *Error says why
// it could not; the child has then ended.
func (p *Process) Go() error {
	_, err := io.WriteString(p.orders, `{"go":true}`+"\n")
	if err != nil && !errors.Is(err, unix.EPIPE) {
		p.Abort()
		return &Error{CodeNotRun, fmt.Sprintf("tell the child to go: %v", err)}
	}
	defer p.close()
	// The pipe closes at the exec, or with the child, whose end Wait tells.
	var r report
	if err := p.reports.Decode(&r); err != nil {
		return nil
	}
	<-p.done
	return &Error{r.Code, r.Error}
}

// Abort ends a child that is not to go, and waits for its end. It may be called
// more than once.
func (p *Process) Abort() {
	_ = p.cmd.Process.Kill() // It may have ended by itself.
	p.close()
	<-p.done
}

// Signal sends a signal to the program; one that has ended is no error.
func (p *Process) Signal(sig os.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the program's end and gives its exit code: 128 and the signal's
// number where one ended it.
func (p *Process) Wait() (int, error) {
	<-p.done
	exit := (*exec.ExitError)(nil)
	if p.waitErr != nil && !errors.As(p.waitErr, &exit) {
		return CodeNotRun, fmt.Errorf("wait for process %d: %w", p.PID(), p.waitErr)
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
