package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The variables of sd_listen_fds(3).
const (
	envListenPID   = "LISTEN_PID"
	envListenFDs   = "LISTEN_FDS"
	envListenNames = "LISTEN_FDNAMES"
	firstActivated = 3
)

// Activate takes the unix sockets that the service manager listens on for this process (sd_listen_fds(3)), and removes
// them from the environment. Listen finds them by their paths.
func (s *Sockets) Activate() error {
	pid, count := os.Getenv(envListenPID), os.Getenv(envListenFDs)
	for _, key := range []string{envListenPID, envListenFDs, envListenNames} {
		if err := os.Unsetenv(key); err != nil {
			return err
		}
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("the service manager's %s=%q is not a number", envListenFDs, count)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for fd := firstActivated; fd < firstActivated+n; fd++ {
		file := own(fd)
		address, err := unix.Getsockname(fd)
		if err != nil {
			return errors.Join(fmt.Errorf("descriptor %d of the service manager is no socket: %w", fd, err), file.Close())
		}
		path, ok := address.(*unix.SockaddrUnix)
		if !ok {
			return errors.Join(fmt.Errorf("descriptor %d of the service manager is not a unix socket", fd), file.Close())
		}
		s.inherited = append(s.inherited, inherited{passed: passed{Address: path.Name, Activated: true}, fd: file})
	}
	return nil
}

// Unused returns the addresses of the service manager's sockets that nothing listens on.
func (s *Sockets) Unused() (addresses []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.inherited {
		if i.Activated {
			addresses = append(addresses, i.Address)
		}
	}
	return addresses
}

// keepPath makes a listener that is closed leave its socket's file, or not.
func keepPath(l net.Listener, keep bool) {
	if socket, ok := l.(*net.UnixListener); ok {
		socket.SetUnlinkOnClose(!keep)
	}
}
