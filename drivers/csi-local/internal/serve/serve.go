// Package serve runs a gRPC server on a unix socket: it refuses a socket on which another process answers,
// replaces an unused one, logs each call without its secrets, turns a panic into an error, and stops gracefully
// within a time limit. It knows nothing about volumes.
package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ErrInUse says that another process answers on the socket.
var ErrInUse = errors.New("another process serves this socket")

const (
	// maxPath is the longest path of a unix socket, in bytes (sun_path).
	maxPath = 107
	// answerWait is how long a socket must accept connections to count as in use: a killed process may leave it,
	// for a moment, to a child that it was just about to start.
	answerWait = time.Second
	// stopWait is how long calls in flight may continue after the server was asked to stop. Their contexts
	// are then cancelled.
	stopWait = 10 * time.Second
)

// ParseEndpoint returns the absolute path of a unix socket that is written as
// unix:///path, unix:path or a path.
func ParseEndpoint(endpoint string) (path string, err error) {
	path = endpoint
	if scheme, rest, ok := strings.Cut(endpoint, ":"); ok && !strings.Contains(scheme, "/") {
		if scheme != "unix" {
			return "", fmt.Errorf("endpoint %q: the driver serves unix sockets only, such as unix:///run/csi/csi.sock", endpoint)
		}
		path = strings.TrimPrefix(rest, "//")
	}
	if path == "" {
		return "", fmt.Errorf("endpoint %q names no socket: use one such as unix:///run/csi/csi.sock", endpoint)
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	if len(path) > maxPath {
		return "", fmt.Errorf("endpoint %q: the path has %d bytes, a unix socket's can have %d", endpoint, len(path), maxPath)
	}
	return path, nil
}

// Listen makes the socket, with mode 0600, and its directory, with mode 0700, if necessary. It removes the socket
// of a dead process, and fails with ErrInUse if a running one answers. It changes the umask for a moment, so it
// must be called at the start of a program.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	old := syscall.Umask(0o177)
	defer syscall.Umask(old)
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket: move it away or choose another endpoint", path)
	}
	if err := Answers(ctx, path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the stale socket: %w", err)
	}
	return nil
}

// Answers fails with ErrInUse if a process accepts connections on path.
func Answers(ctx context.Context, path string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(answerWait); ; {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		switch {
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
			return nil // no process listens on it
		case err == nil:
			_ = conn.Close() // it was only a test
		case !errors.Is(err, syscall.EAGAIN): // the queue is full
			return fmt.Errorf("ask who serves %s: %w", path, err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: %w: stop it or choose another endpoint", path, ErrInUse)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// Run serves what register adds until ctx ends, and returns when the last call has ended. Mounts stay.
func Run(ctx context.Context, l net.Listener, log hclog.Logger, register func(grpc.ServiceRegistrar)) error {
	server := grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(logCalls(log), recoverPanics(log)),
	)
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	log.Info("stopping", "reason", context.Cause(ctx))
	hurry := time.AfterFunc(stopWait, server.Stop)
	defer hurry.Stop()
	server.GracefulStop()
	return <-served
}

// quiet are the prefixes of methods that are polled; they are logged at debug level only, unless they fail.
var quiet = []string{"Probe", "Get", "List", "NodeGet", "ControllerGet"}

// logCalls logs each call with its method, duration and code, and at debug level the request and the response,
// without secrets and mount flags.
func logCalls(log hclog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		start := time.Now()
		resp, err := next(ctx, req)
		method := info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:]
		args := []any{"method", method, "duration", time.Since(start).String(), "code", status.Code(err).String()}
		if v, ok := req.(interface{ GetVolumeId() string }); ok {
			args = append(args, "volume_id", v.GetVolumeId())
		}
		if log.IsDebug() {
			args = append(args, "request", Sanitize(req), "response", Sanitize(resp))
		}
		log.Log(level(method, err), "call", appendError(args, err)...)
		return resp, err
	}
}

func appendError(args []any, err error) []any {
	if err == nil {
		return args
	}
	return append(args, "error", status.Convert(err).Message())
}

func level(method string, err error) hclog.Level {
	if err != nil {
		return hclog.Warn
	}
	for _, prefix := range quiet {
		if strings.HasPrefix(method, prefix) {
			return hclog.Debug
		}
	}
	return hclog.Info
}

// Sanitize returns a printable form of a message without secrets (fields that CSI marks csi_secret) and without
// mount flags, which may contain secrets too.
func Sanitize(msg any) string {
	m, ok := msg.(proto.Message)
	if !ok {
		return ""
	}
	m = proto.Clone(m)
	for _, c := range capabilities(m) {
		if mount := c.GetMount(); len(mount.GetMountFlags()) > 0 {
			mount.MountFlags = []string{"***stripped***"}
		}
	}
	return protosanitizer.StripSecrets(m).String()
}

// capabilities returns the volume capabilities in a request or a response.
func capabilities(msg any) []*csi.VolumeCapability {
	switch m := msg.(type) {
	case interface{ GetVolumeCapability() *csi.VolumeCapability }:
		return []*csi.VolumeCapability{m.GetVolumeCapability()}
	case interface {
		GetVolumeCapabilities() []*csi.VolumeCapability
	}:
		return m.GetVolumeCapabilities()
	case *csi.ValidateVolumeCapabilitiesResponse:
		return m.GetConfirmed().GetVolumeCapabilities()
	}
	return nil
}

// recoverPanics answers a call that panicked with Internal. The stack is logged; the panic's value is not, because
// it may contain a secret.
func recoverPanics(log hclog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("panic", "method", info.FullMethod, "type", fmt.Sprintf("%T", p), "stack", string(debug.Stack()))
				resp, err = nil, status.Errorf(codes.Internal, "%s: the driver has a bug, see its log", info.FullMethod)
			}
		}()
		return next(ctx, req)
	}
}
