package process

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone says that the process of a Ref does not run any more, or never did.
var ErrGone = errors.New("the process is gone")

// Spec is a program to run.
type Spec struct {
	// Token names this one run, see NewToken. The process and its descendants
	// carry it in their environment.
	Token string
	Path  string   // absolute
	Args  []string // without the program's name
	Env   []string // all of it, as KEY=value: nothing is inherited from the host
	Dir   string   // working directory; default "/"
	User  string   // a user's name or number; default: the host's own
	// LogPath is the file (0600) that takes standard error, and standard output
	// where Stdout is nil. It is appended to. Tail reads it and keeps it small.
	LogPath string
	// Stdout takes standard output instead. The caller closes its own copy.
	Stdout *os.File
	// DieWithHost ends the process, though not its descendants, with the host,
	// however that ends.
	DieWithHost bool
}

// envToken is the variable that carries Spec.Token.
const envToken = "PANNIER_PROCESS_ID"

// NewToken makes a name for one run of a program.
func NewToken() string { return rand.Text() }

// Ref finds a process again after a restart of the host. It is to be persisted
// as JSON.
type Ref struct {
	Token   string `json:"token"`
	LogPath string `json:"log_path"`
	BootID  string `json:"boot_id"`
	// PID is 0 in an intent: the process is then found by its token.
	PID int `json:"pid,omitempty"`
	// StartTime is the process's start in clock ticks since boot (proc(5),
	// /proc/PID/stat, field 22).
	StartTime uint64 `json:"start_time,omitempty"`
}

// Intent is the Ref to persist before Start.
func (s Spec) Intent() Ref {
	return Ref{Token: s.Token, LogPath: s.LogPath, BootID: bootID()}
}

// Process is a running process, or one that has ended. Stop or Release must be
// called in the end.
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

// Start runs a program. The program runs on when the host ends, unless
// DieWithHost says otherwise.
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
	log, err := openLog(spec.LogPath)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own copy, and with it the lock

	var cred *syscall.Credential
	if spec.User != "" {
		if cred, err = credential(spec.User); err != nil {
			return nil, err
		}
	}
	p := &Process{done: make(chan struct{}), released: make(chan struct{})}
	if p.child, err = p.fork(spec, log, cred); err == nil {
		err = p.watch(spec.Intent(), p.child.Pid)
		if err != nil { // nobody could find it again
			_ = unix.Kill(-p.child.Pid, unix.SIGKILL)
			_, _ = p.child.Wait()
		}
	}
	if err != nil {
		p.Release()
		return nil, err
	}
	return p, nil
}

// fork starts the program. Where the program's file was only just written, a
// child of ours that is between fork and exec at this moment may still have it
// open for writing (ETXTBSY, execve(2)): that passes.
func (p *Process) fork(spec Spec, log *os.File, cred *syscall.Credential) (*os.Process, error) {
	for try := 0; ; try++ {
		cmd := command(spec, log, cred)
		start := cmd.Start
		if spec.DieWithHost {
			start = func() error { return p.startBound(cmd) }
		}
		err := start()
		if err == nil {
			return cmd.Process, nil
		}
		if !errors.Is(err, unix.ETXTBSY) || try == 100 {
			return nil, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func command(spec Spec, log *os.File, cred *syscall.Credential) *exec.Cmd {
	cmd := &exec.Cmd{
		Path:        spec.Path,
		Args:        append([]string{spec.Path}, spec.Args...),
		Env:         append(append([]string(nil), spec.Env...), envToken+"="+spec.Token),
		Dir:         "/",
		Stdout:      log,
		Stderr:      log,
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

// startBound starts cmd so that it is killed when the host ends. The kernel
// sends that signal when the *thread* ends that forked, so a thread is kept for
// as long as the process lives.
func (p *Process) startBound(cmd *exec.Cmd) error {
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	started := make(chan error, 1)
	p.ended.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		select {
		case <-p.done:
		case <-p.released:
		}
	})
	return <-started
}

// watch makes p stand for the running process pid.
func (p *Process) watch(ref Ref, pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	pidfd := os.NewFile(uintptr(fd), "pidfd")
	// Read after the descriptor is open: from here on they are the same process,
	// or this one has another start time.
	st, err := readStat(pid)
	if err != nil {
		_ = pidfd.Close()
		return fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	if ref.StartTime != 0 && ref.StartTime != st.start {
		_ = pidfd.Close()
		return fmt.Errorf("%w: process %d is another one now", ErrGone, pid)
	}
	ref.PID, ref.StartTime = pid, st.start
	p.ref, p.pidfd = ref, pidfd
	p.ended.Go(p.wait)
	return nil
}

// wait sees the process end, or returns when p is released.
func (p *Process) wait() {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return // closed before we ran
	}
	// A pidfd becomes readable when its process ends (pidfd_open(2)).
	if err := conn.Read(func(fd uintptr) bool { return readable(int(fd)) }); err != nil {
		return
	}
	p.exit = "ended (how is unknown: an earlier host started it)"
	if p.child != nil {
		if st, err := p.child.Wait(); err == nil {
			p.exit = st.String()
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

// Find gives the process of a Ref that this or an earlier host persisted, or
// ErrGone. For an intent it waits, within ctx, for a process that the earlier
// host was just starting when it died.
func Find(ctx context.Context, ref Ref) (*Process, error) {
	if ref.BootID != bootID() {
		return nil, fmt.Errorf("%w: the machine was started anew", ErrGone)
	}
	if ref.PID == 0 {
		pid, err := findToken(ctx, ref)
		if err != nil {
			return nil, err
		}
		ref.PID = pid
	}
	st, err := readStat(ref.PID)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || err == nil && st.dead() {
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
// Between fork and exec a child has its parent's environment, so it cannot be
// found by its token. But it holds the lock on its log from the fork on: while
// the log is locked and no process has the token, one is about to have it.
func findToken(ctx context.Context, ref Ref) (int, error) {
	// A descendant that dropped the token may hold the lock for ever.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for {
		locked := logLocked(ref.LogPath) // before the scan, or the exec slips in between
		if pid, ok := leaderWithToken(ref.Token); ok {
			return pid, nil
		}
		if !locked {
			return 0, fmt.Errorf("%w: it was never started", ErrGone)
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%w: no process carries its token", ErrGone)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// Ref is what finds the process again. It is to be persisted before anything
// depends on the process.
func (p *Process) Ref() Ref { return p.ref }

// PID of the process.
func (p *Process) PID() int { return p.ref.PID }

// Done is closed when the process has ended, whoever started it.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit tells how the process ended. It is valid once Done is closed.
func (p *Process) Exit() string {
	select {
	case <-p.done:
		return p.exit
	default:
		return "running"
	}
}

// Release gives the process up and leaves it running. Done is then no longer
// closed. It is safe to call it again, and after Stop.
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

// credential looks a user up, with its groups.
func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("look up user %q: %w", name, err)
		}
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("look up the groups of user %q: %w", name, err)
	}
	cred := &syscall.Credential{}
	if cred.Uid, err = number(u.Uid); err != nil {
		return nil, err
	}
	if cred.Gid, err = number(u.Gid); err != nil {
		return nil, err
	}
	for _, id := range ids {
		gid, err := number(id)
		if err != nil {
			return nil, err
		}
		cred.Groups = append(cred.Groups, gid)
	}
	return cred, nil
}

func number(id string) (uint32, error) {
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read user or group id %q: %w", id, err)
	}
	return uint32(n), nil
}
