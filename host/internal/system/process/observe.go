package process

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// BootID names this boot of the machine (random(4), /proc/sys/kernel/random/boot_id).
func BootID() string { return bootID() }

// Observe gives a process that somebody else started, to wait for its end and to
// find it again by its Ref. ErrGone: there is none with that pid.
func Observe(pid int) (*Process, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("%w: %d is no process id", ErrGone, pid)
	}
	return Find(context.Background(), Ref{BootID: bootID(), PID: pid})
}

// Signal sends a signal to the process alone, and to no other that has got its
// pid (pidfd_send_signal(2)). One that has ended is no error.
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
	var pids []int
	for _, s := range living() {
		if ns, err := procfs.MountNamespace(procfs.Dir(s.PID)); err == nil && ns == inode {
			pids = append(pids, s.PID)
		}
	}
	return pids
}
