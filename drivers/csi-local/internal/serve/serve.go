// Package serve runs a gRPC server on a unix socket: it refuses a socket on which another process answers,
// replaces an unused one, logs each call without its secrets, turns a panic into an error, and stops gracefully
// within a time limit. It knows nothing about volumes.
package serve

import (
	"context"
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
	"github.com/pannier/pannier/internal/unixsocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// maxPath is the longest path of a unix socket, in bytes (sun_path).
	maxPath = 107
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
// of a dead process, and fails with unixsocket.ErrAnswers if a running one has it. It changes the umask for a moment,
// so it must be called at the start of a program.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := unixsocket.Clear(ctx, path); err != nil {
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
