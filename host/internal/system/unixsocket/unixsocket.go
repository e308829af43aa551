// Package unixsocket makes room for unix sockets that the host listens on.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// ErrAnswers says that another process listens on a socket.
var ErrAnswers = errors.New("another process already answers on the socket")

// Clear removes a socket that nobody listens on, such as that of a process that was killed. Errors: ErrAnswers; that
// what is at path is no socket, which stays.
func Clear(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check the socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is not a socket: remove it, or set another path in the agent's configuration", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("%w %s", ErrAnswers, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("check who listens on the socket: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket of a process that has ended: %w", err)
	}
	return nil
}
