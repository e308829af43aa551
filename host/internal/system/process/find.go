package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/bounded"
	"github.com/pannier/pannier/internal/procfs"
)

// BootID identifies this boot of the machine (random(4), /proc/sys/kernel/random/boot_id).
func BootID() string { return bootID() }

// MachineID identifies this machine as long as its processes live: the kernel's boot, the PID namespace and the start
// of its PID 1. Two containers of one kernel are two machines, and a container that is started again is another one.
// Mounts outlive a container's processes: what is mounted is recorded by BootID.
func MachineID() (string, error) {
	var ns unix.Stat_t
	if err := unix.Stat(procfs.Root+"/self/ns/pid", &ns); err != nil {
		return "", fmt.Errorf("read the PID namespace: %w", err)
	}
	first, err := procfs.ReadStat(procfs.Dir(1))
	if err != nil {
		return "", fmt.Errorf("read when PID 1 started: %w", err)
	}
	return fmt.Sprintf("%s/%d/%d", bootID(), ns.Ino, first.StartTime), nil
}

// Observe returns a process that somebody else started, to wait for its end and to find it again by its Ref. ErrGone:
// there is none with that PID.
func Observe(pid int) (*Process, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("%w: %d is not a process id", ErrGone, pid)
	}
	return Find(context.Background(), Ref{BootID: bootID(), PID: pid})
}

// Signal sends a signal to this process only, and to no later one with the same PID (pidfd_send_signal(2)). It is no
// error if the process has ended.
func (p *Process) Signal(sig unix.Signal) error {
	conn, err := p.pidfd.SyscallConn()
	if err != nil {
		return fmt.Errorf("signal process %d: %w", p.PID(), err)
	}
	var sendErr error
	if err := conn.Control(func(fd uintptr) { sendErr = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return fmt.Errorf("signal process %d: %w", p.PID(), err)
	}
	if sendErr != nil && !errors.Is(sendErr, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(sig), p.PID(), sendErr)
	}
	return nil
}

// InMountNamespace lists the living processes in a mount namespace.
func InMountNamespace(inode uint64) []int {
	all, _ := procfs.Numbers(procfs.Root)
	return slices.DeleteFunc(all, func(pid int) bool {
		ns, err := procfs.MountNamespace(procfs.Dir(pid))
		if err != nil || ns != inode {
			return true
		}
		s, err := procfs.ReadStat(procfs.Dir(pid))
		return err != nil || s.Ended()
	})
}

// living lists the processes that have not ended.
func living() []procfs.Stat {
	all, err := procfs.Processes()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, procfs.Stat.Ended)
}

var environs bounded.Calls

// hasToken reports whether a process was started with a token. If we may not read its environment, it is not ours.
func hasToken(pid int, token string) bool { return token != "" && tokenOf(pid) == token }

// tokenOf returns the token that a process was started with, or "".
func tokenOf(pid int) string {
	var env []byte
	// The kernel blocks the reader of a process that waits for a file system while it maps a file.
	err := environs.Do(strconv.Itoa(pid), bounded.Patience, func() (err error) {
		env, err = os.ReadFile(procfs.Dir(pid) + "/environ")
		return err
	})
	if err != nil {
		return ""
	}
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if token, is := bytes.CutPrefix(kv, []byte(envToken+"=")); is {
			return string(token)
		}
	}
	return ""
}

// EndUnrecorded kills the processes that Start made of programs below a folder, and whose tokens no record has: those
// of a record that is damaged. Their children go on.
func EndUnrecorded(folder string, recorded map[string]bool) (ended []int) {
	for _, s := range living() {
		exe, err := os.Readlink(procfs.Dir(s.PID) + "/exe")
		if err != nil || s.PID != s.Group || !strings.HasPrefix(exe, folder+"/") {
			continue
		}
		if token := tokenOf(s.PID); token != "" && !recorded[token] && unix.Kill(s.PID, unix.SIGKILL) == nil {
			ended = append(ended, s.PID)
		}
	}
	return ended
}

// leaderWithToken finds the process that Start made with this token: the oldest one that has the token and leads its
// group.
func leaderWithToken(token string) (pid int, ok bool) {
	var oldest procfs.Stat
	for _, s := range living() {
		if s.PID != s.Group || oldest.PID != 0 && s.StartTime >= oldest.StartTime || !hasToken(s.PID, token) {
			continue
		}
		oldest = s
	}
	return oldest.PID, oldest.PID != 0
}

// bootID reads the boot's id once.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
})
