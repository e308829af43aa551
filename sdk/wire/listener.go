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
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var copyErr error
	err = raw.Control(func(fd uintptr) {
		var n int
		if n, copyErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); copyErr == nil {
			file = os.NewFile(uintptr(n), l.Addr().String())
		}
	})
	return file, errors.Join(err, copyErr)
}
