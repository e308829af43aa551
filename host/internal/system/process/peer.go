package process

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// AtSocket returns the process, user and group at the other end of a unix socket, as they were when it connected
// (SO_PEERCRED, unix(7)).
func AtSocket(conn syscall.Conn) (cred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err == nil {
		failed := raw.Control(func(fd uintptr) {
			cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		})
		err = errors.Join(failed, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read the peer's credentials: %w", err)
	}
	return cred, nil
}
