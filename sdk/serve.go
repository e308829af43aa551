package sdk

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/pannier/pannier/sdk/wire"
)

// The variables of a plugin's process that the host's go-plugin sets.
const (
	envVersions  = "PLUGIN_PROTOCOL_VERSIONS"
	envSocketDir = "PLUGIN_UNIX_SOCKET_DIR"
)

// listenAndServe does a plugin's side of go-plugin's handshake, and serves until the server is stopped.
func (s *server) listenAndServe() error {
	config, err := loadTLS()
	if err != nil {
		return err
	}
	dir := os.Getenv(envSocketDir)
	if dir == "" {
		dir = os.TempDir()
	}
	l, err := net.Listen("unix", filepath.Join(dir, "plugin"+rand.Text()[:10]))
	if err != nil {
		return fmt.Errorf("listen for the host: %w", err)
	}
	version := commonVersion(os.Getenv(envVersions))
	srv := s.newServer(grpc.Creds(credentials.NewTLS(config)))
	s.register(srv)
	srv.RegisterService(&controller, srv)
	// SIGINT is for others in the terminal. It is not ignored, since the plugin's children would then ignore it, too.
	signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	if _, err := fmt.Fprintf(os.Stdout, "1|%d|unix|%s|grpc|\n", version, l.Addr()); err != nil {
		return errors.Join(fmt.Errorf("answer the host: %w", err), l.Close())
	}
	if err := keepOutput(); err != nil {
		return errors.Join(err, l.Close())
	}
	if err := srv.Serve(l); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // the end came first
}

// loadTLS reads the bundle that the host made for this process. The host removes the file once the plugin has
// answered.
func loadTLS() (*tls.Config, error) {
	path := os.Getenv(wire.EnvTLSBundle)
	if path == "" {
		return nil, errors.New("the host passed no TLS bundle: " + wire.EnvTLSBundle + " is not set")
	}
	bundle, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the TLS bundle: %w", err)
	}
	defer clear(bundle)
	return wire.ServerTLS(bundle)
}

// keepOutput sends what the plugin prints to the host's log file. Standard output is a pipe for the handshake, whose
// reader ends with the host: a write to it would then end the process.
func keepOutput() error {
	os.Stdout = os.Stderr
	if err := unix.Dup3(2, 1, 0); err != nil {
		return fmt.Errorf("redirect standard output: %w", err)
	}
	return nil
}

// commonVersion returns the newest version of the wire that the host has, too. If there is none it is the oldest, which
// the host refuses.
func commonVersion(hosts string) int {
	known := strings.Split(hosts, ",")
	for version := wire.Version; version > 1; version-- {
		if slices.Contains(known, strconv.Itoa(version)) {
			return version
		}
	}
	return 1
}

// controller is how go-plugin's Client.Kill ends a process, which tests of plugins use. Its messages are empty.
var controller = grpc.ServiceDesc{
	ServiceName: "plugin.GRPCController",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Shutdown",
		Handler: func(srv any, _ context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			srv.(*grpc.Server).Stop() //nolint:forcetypeassert // it was registered with nothing else
			return &emptypb.Empty{}, nil
		},
	}},
}
