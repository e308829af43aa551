package process

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// Peer is who is at the other end of a unix socket.
type Peer struct {
	// Ucred is as it was when the peer connected (SO_PEERCRED, unix(7)). Its PID may be another process's by now.
	unix.Ucred
	// Process is the one that connected. Find does not take a later one with its PID for it. Without a PID: it has ended,
	// or is in a PID namespace that this process does not see.
	Process Ref
}

// AtSocket returns who is at the other end of a unix socket. Before Linux 6.5 the process is that which has the PID
// now: call it when the connection is accepted.
func AtSocket(conn syscall.Conn) (p Peer, err error) {
	raw, err := conn.SyscallConn()
	if err == nil {
		failed := raw.Control(func(fd uintptr) {
			var cred *unix.Ucred
			if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				p.Ucred, p.Process = *cred, connected(int(fd), int(cred.Pid))
			}
		})
		err = errors.Join(failed, err)
	}
	if err != nil {
		return p, fmt.Errorf("read the peer's credentials: %w", err)
	}
	return p, nil
}

// connected returns the process that connected a socket. It has not ended after its start was read, so that start is
// its own.
func connected(socket, pid int) Ref {
	pidfd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err == nil {
		defer unix.Close(pidfd)
	}
	st, statErr := procfs.ReadStat(procfs.Dir(pid))
	switch {
	case pid == 0, statErr != nil, st.Ended(), err == nil && readable(pidfd), err != nil && err != unix.ENOPROTOOPT:
		return Ref{}
	}
	return Ref{BootID: bootID(), PID: pid, StartTime: st.StartTime}
}

// Lives reports whether the process of a Ref has not ended.
func (r Ref) Lives() bool {
	st, err := procfs.ReadStat(procfs.Dir(r.PID))
	return err == nil && st.StartTime == r.StartTime && !st.Ended()
}
