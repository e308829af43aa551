// Package unixsocket makes room for unix sockets that the host and its drivers listen on.
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

// ErrAnswers means that another process listens on a socket.
var ErrAnswers = errors.New("another process already answers on the socket")

// patience is how long a socket must accept connections to count as in use: a process that was killed may leave it, for
// a moment, to a child that it was just about to start.
const patience = time.Second

// Clear removes a socket that nobody listens on, such as a killed process's. Errors: ErrAnswers; that what is at path
// is no socket, which stays.
func Clear(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check the socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is not a socket: remove it, or configure another path", path)
	}
	for deadline := time.Now().Add(patience); ; {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED):
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove the socket of a process that has ended: %w", err)
			}
			return nil
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil:
			_ = conn.Close() // it was only a test
		case !errors.Is(err, syscall.EAGAIN): // its queue is full
			return fmt.Errorf("check who listens on the socket: %w", err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w %s", ErrAnswers, path)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
