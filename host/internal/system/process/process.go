package process

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// ErrGone means that the process of a Ref does not run any more, or never did.
var ErrGone = errors.New("the process is gone")

// Spec is a program to run.
type Spec struct {
	// Token identifies this run, see NewToken. The process and its descendants have it in their environment.
	Token string
	Path  string   // absolute
	Name  string   // what the program is told that it is (argv[0]); default: Path
	Args  []string // without the program's name
	Env   []string // the whole environment, as KEY=value: nothing is inherited
	Dir   string   // working directory; default "/"
	User  string   // a user's name or number; default: the host's
	Group string   // a group's name or number; default: the user's
	// NoNewPrivs keeps the process and its descendants from gaining rights that the user does not have, such as by
	// set-user-id programs (prctl(2), PR_SET_NO_NEW_PRIVS).
	NoNewPrivs bool
	Limits     Limits
	// LogPath is the file (0600) for standard error, and for standard output if Stdout is nil. Output is appended.
	// Tail reads it and keeps it small.
	LogPath string
	// Stdout is for standard output instead. The caller closes its own copy.
	Stdout *os.File
	// Files are the process's descriptors from 3 on.
	Files []*os.File
	// DieWithHost kills the process, but not its descendants, when the host ends for any reason.
	DieWithHost bool
}

// envToken is the environment variable with Spec.Token.
const envToken = "PANNIER_PROCESS_ID"

// NewToken makes a random token for one run of a program.
func NewToken() string { return rand.Text() }

// Ref identifies a process, so that it can be found after a restart of the host. It is persisted as JSON.
type Ref struct {
	Token   string `json:"token"`
	LogPath string `json:"log_path"`
	BootID  string `json:"boot_id"`
	// PID is 0 in an intent: the process is then found by its token.
	PID int `json:"pid,omitempty"`
	// StartTime is the start time in clock ticks since boot (proc(5), /proc/PID/stat, field 22).
	StartTime uint64 `json:"start_time,omitempty"`
	// Cgroup and PidsCgroup are the directories of the process's control groups, in cgroup v2 and in the pids
	// hierarchy of v1. Empty: it has none.
	Cgroup     string `json:"cgroup,omitempty"`
	PidsCgroup string `json:"pids_cgroup,omitempty"`
}

// Intent is the Ref to persist before Start.
func (s Spec) Intent() Ref {
	ref := Ref{Token: s.Token, LogPath: s.LogPath, BootID: bootID()}
	ref.Cgroup, ref.PidsCgroup = s.cgroups()
	return ref
}

// Process is a process that runs or has ended. Call Stop or Release in the end.
type Process struct {
	ref   Ref
	child *os.Process // nil when an earlier host started it
	pidfd *os.File
	done  chan struct{} // closed when the process has ended
	ended sync.WaitGroup
	exit  string // why it ended; set before done is closed

	release  sync.Once
	released chan struct{}
}

// Start runs a program. It continues to run when the host ends, unless DieWithHost is set.
func Start(spec Spec) (*Process, error) {
	p, err := start(spec)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, err)
	}
	return p, nil
}

func start(spec Spec) (*Process, error) {
	if spec.Token == "" || spec.LogPath == "" || !filepath.IsAbs(spec.Path) {
		return nil, errors.New("a token, a log path and an absolute path are required")
	}
	cred, err := credential(spec.User, spec.Group)
	if err != nil {
		return nil, err
	}
	setCloseOnExec()
	log, err := openLog(spec.LogPath)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own copy, which holds the lock
	p := &Process{done: make(chan struct{}), released: make(chan struct{})}
	if p.child, err = p.fork(spec, log, cred); err == nil {
		err = errors.Join(p.watch(spec.Intent(), p.child.Pid), spec.Limits.apply(p.child.Pid))
		if err != nil { // it could not be found again, or is not limited
			_ = unix.Kill(-p.child.Pid, unix.SIGKILL)
			_, _ = p.child.Wait()
		}
	}
	if err != nil {
		p.Release()
		removeCgroups(spec.Intent())
		return nil, err
	}
	return p, nil
}

// setCloseOnExec keeps the process from inheriting file descriptors. Go opens all with the flag; those that the host
// was started with may lack it.
func setCloseOnExec() {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, f := range open {
		if fd, err := strconv.Atoi(f.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd) // it may have been closed meanwhile
		}
	}
}

// fork starts the program, in control groups of its own if they can be made. If the program's file has just been
// written, another child that is between fork and exec may still have it open for writing (ETXTBSY, execve(2)), so
// that is retried.
func (p *Process) fork(spec Spec, log *os.File, cred *syscall.Credential) (*os.Process, error) {
	groups := makeCgroups(spec)
	defer func() { groups.close() }()
	for try := 0; ; try++ {
		cmd := command(spec, log, cred)
		groups.into(cmd.SysProcAttr)
		err := p.startApart(cmd, spec, groups)
		switch {
		case err == nil:
			return cmd.Process, nil
		case errors.Is(err, unix.ETXTBSY) && try < 100:
			time.Sleep(5 * time.Millisecond)
		case groups != nil: // the control groups may be the reason
			groups.close()
			groups = nil
		default:
			return nil, err
		}
	}
}

func command(spec Spec, log *os.File, cred *syscall.Credential) *exec.Cmd {
	cmd := &exec.Cmd{
		Path:        spec.Path,
		Args:        append([]string{cmp.Or(spec.Name, spec.Path)}, spec.Args...),
		Env:         append(append([]string(nil), spec.Env...), envToken+"="+spec.Token),
		Dir:         "/",
		Stdout:      log,
		Stderr:      log,
		ExtraFiles:  spec.Files,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Credential: cred},
	}
	if spec.Dir != "" {
		cmd.Dir = spec.Dir
	}
	if spec.Stdout != nil {
		cmd.Stdout = spec.Stdout
	}
	return cmd
}

// startApart starts cmd on a thread of its own, from which the process inherits per-thread attributes: NoNewPrivs, and
// the control group of cgroup v1. The thread ends after that. With DieWithHost it is kept as long as the process
// lives, because the kernel kills the process when the thread that forked it ends.
func (p *Process) startApart(cmd *exec.Cmd, spec Spec, groups *cgroups) error {
	if spec.DieWithHost {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	started := make(chan error, 1)
	p.ended.Go(func() {
		OnOwnThread(func() {
			err := p.startHere(cmd, spec, groups)
			started <- err
			if err != nil || !spec.DieWithHost {
				return
			}
			select {
			case <-p.done:
			case <-p.released:
			}
		})
	})
	return <-started
}

// startHere sets the attributes of the calling thread, moves it into the groups, and starts the process.
func (p *Process) startHere(cmd *exec.Cmd, spec Spec, groups *cgroups) error {
	groups.enter()
	if spec.NoNewPrivs {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("set no_new_privs: %w", err)
		}
	}
	if spec.DieWithHost {
		defer groups.leave()
	}
	return cmd.Start()
}

// OnOwnThread runs f on a thread of its own, which ends when the calling goroutine ends. So the goroutine must end soon
// after f.
func OnOwnThread(f func()) {
	runtime.LockOSThread() // never unlocked, so the runtime ends the thread
	if unix.Gettid() != unix.Getpid() {
		f()
		return
	}
	// The main thread cannot end. While this goroutine is locked to it, another one runs on another thread.
	var other sync.WaitGroup
	other.Go(func() { OnOwnThread(f) })
	other.Wait()
	runtime.UnlockOSThread()
}

// watch attaches p to the running process pid.
func (p *Process) watch(ref Ref, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	// Read this after opening the descriptor: either it is the same process, or the start time differs.
	st, err := procfs.ReadStat(procfs.Dir(pid))
	if err != nil {
		_ = pidfd.Close()
		return fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	if ref.StartTime != 0 && ref.StartTime != st.StartTime {
		_ = pidfd.Close()
		return fmt.Errorf("%w: process %d is a different one now", ErrGone, pid)
	}
	ref.PID, ref.StartTime = pid, st.StartTime
	p.ref, p.pidfd = ref, pidfd
	p.ended.Go(p.wait)
	return nil
}

// wait returns when the process ends, or when p is released.
func (p *Process) wait() {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return // closed before we ran
	}
	// A pidfd becomes readable when its process ends (pidfd_open(2)).
	if err := conn.Read(func(fd uintptr) bool { return readable(int(fd)) }); err != nil {
		return
	}
	p.exit = "ended (for an unknown reason: an earlier host started it)"
	if p.child != nil {
		if st, err := p.child.Wait(); err == nil {
			p.exit = st.String() + outOfMemory(p.ref)
		}
	}
	close(p.done)
}

func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return n > 0 || err != nil
		}
	}
}

// Find returns the process of a Ref that this or an earlier host persisted, or ErrGone. For an intent it waits, within
// ctx, for a process that the earlier host was just starting when it died.
func Find(ctx context.Context, ref Ref) (*Process, error) {
	if ref.BootID != bootID() {
		return nil, fmt.Errorf("%w: the machine was rebooted", ErrGone)
	}
	if ref.PID == 0 {
		pid, err := findToken(ctx, ref)
		if err != nil {
			return nil, err
		}
		ref.PID = pid
	}
	st, err := procfs.ReadStat(procfs.Dir(ref.PID))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && st.Ended() {
		return nil, fmt.Errorf("%w: there is no process %d", ErrGone, ref.PID)
	}
	if err != nil {
		return nil, fmt.Errorf("look at process %d: %w", ref.PID, err)
	}
	p := &Process{done: make(chan struct{}), released: make(chan struct{})}
	if err := p.watch(ref, ref.PID); err != nil {
		if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: process %d just ended", ErrGone, ref.PID)
		}
		return nil, err
	}
	return p, nil
}

// findToken finds the process of an intent.
//
// Between fork and exec a child has its parent's environment, so it cannot be found by its token. But it holds the
// lock on its log from the fork on: while the log is locked and no process has the token, one is about to have it.
func findToken(ctx context.Context, ref Ref) (int, error) {
	// A descendant without the token may hold the lock forever.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		locked := logLocked(ref.LogPath) // check before the scan, or an exec in between is missed
		if pid, ok := leaderWithToken(ref.Token); ok {
			return pid, nil
		}
		if !locked {
			return 0, fmt.Errorf("%w: it was never started", ErrGone)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: no process has its token", ErrGone)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// Ref returns what identifies the process. Persist it before anything depends on the process.
func (p *Process) Ref() Ref { return p.ref }

// PID returns the process's PID.
func (p *Process) PID() int { return p.ref.PID }

// Done is closed when the process has ended, even if another process started it.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit is how the process ended. It is valid once Done is closed.
func (p *Process) Exit() string {
	select {
	case <-p.done:
		return p.exit
	default:
		return "running"
	}
}

// Release stops watching the process and leaves it running. Done is not closed any more. It may be called again, and
// after Stop.
func (p *Process) Release() {
	p.closeReleased()
	p.ended.Wait()
}

func (p *Process) closeReleased() {
	p.release.Do(func() {
		close(p.released)
		if p.pidfd != nil {
			_ = p.pidfd.Close()
		}
	})
}
