package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// listenUnix makes the API's socket, for its owner and one group (-1: the
// owner's). The socket of an agent that was killed is replaced.
func listenUnix(ctx context.Context, path string, group int) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := clearSocket(ctx, path); err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on the API's socket: %w", err)
	}
	// Until both are done the umask decides who can connect; who may call is
	// checked on each call.
	if err = os.Chown(path, -1, group); err == nil {
		err = os.Chmod(path, 0o660)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("set who may use the API's socket: %w", err), l.Close())
	}
	return l, nil
}

// clearSocket removes a socket on which nobody listens.
func clearSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the API's socket: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is there and is not a socket: remove it, or set another socket in the agent's configuration", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("another agent already answers on %s: stop it, or set another socket and data_dir in this one's configuration", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("look who answers on the API's socket: %w", err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket of an agent that has ended: %w", err)
	}
	return nil
}
