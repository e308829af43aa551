package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ListenerFile returns a listener's socket, to be passed to processes, and closes the listener. The listener's own File
// would not do: its Fd makes the socket blocking, for all processes that have it.
func ListenerFile(l net.Listener) (file *os.File, err error) {
	defer func() { err = errors.Join(err, l.Close()) }()
	conn, ok := l.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a %T has no socket", l)
	}
	return Duplicate(conn, l.Addr().String())
}

// Duplicate returns a second descriptor of a socket or file, which a program that is executed does not inherit. It does
// not change whether the file blocks, as File does.
func Duplicate(of syscall.Conn, name string) (*os.File, error) {
	raw, err := of.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	failed := raw.Control(func(from uintptr) { fd, err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	if err = errors.Join(failed, err); err != nil {
		return nil, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
