package hostpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/test/lib/testbin"
)

const (
	// NodeID is the node id of every driver that Start runs.
	NodeID = "hostpath-node"

	// startTimeout bounds the wait for the first answer to Probe.
	startTimeout = 30 * time.Second
	// maxSocketPath is the size of sun_path without the terminating zero (unix(7)).
	maxSocketPath = 107
)

// Binary returns the path of the driver's program, built once into the test cache.
func Binary(t testing.TB) string {
	t.Helper()
	return binary(t, newest)
}

// FirstBinary is Binary for the first version.
func FirstBinary(t testing.TB) string {
	t.Helper()
	return binary(t, first)
}

func binary(t testing.TB, r release) string {
	t.Helper()
	bin, err := r.build(t.Context(), testbin.CacheDir(t))
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Start runs the driver on the socket csi.sock below dir, with its state in the directory state below dir and the
// node id NodeID, and returns its endpoint ("unix://...") once it answers Probe. args are further arguments of the
// driver, such as "-enable-attach".
//
// At the test's end the driver's process group is killed, and mounts below dir and loop devices of files below dir
// are removed. A test cleans up its mounts elsewhere itself.
func Start(t testing.TB, dir string, args ...string) (endpoint string) {
	t.Helper()
	testbin.RequireRoot(t, "the foreign CSI driver")
	dir, err := filepath.EvalSymlinks(dir) // mountinfo has real paths
	if err != nil {
		t.Fatalf("find the driver's folder: %v", err)
	}
	socket := filepath.Join(dir, "csi.sock")
	if len(socket) > maxSocketPath {
		t.Fatalf("socket path %s is %d bytes long, a unix socket allows %d: give a shorter folder", socket, len(socket),
			maxSocketPath)
	}
	endpoint = "unix://" + socket
	t.Cleanup(func() {
		if err := cleanUp(dir); err != nil {
			t.Errorf("clean up after the hostpath driver: %v", err)
		}
	})
	exited := launch(t, dir, append([]string{
		"-endpoint", endpoint, "-nodeid", NodeID, "-statedir", filepath.Join(dir, "state"),
	}, args...))
	if err := awaitReady(t.Context(), endpoint, exited); err != nil {
		t.Fatal(err)
	}
	return endpoint
}

// launch starts the driver in its own process group and returns a channel that is closed when it has ended. Its
// output is shown if the test fails.
func launch(t testing.TB, dir string, args []string) (exited <-chan struct{}) {
	t.Helper()
	output, err := os.OpenFile(filepath.Join(dir, "hostpath.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatalf("open the driver's log: %v", err)
	}
	cmd := exec.Command(Binary(t), args...)
	cmd.Stdout, cmd.Stderr = output, output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the hostpath driver: %v", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // it is killed, or awaitReady reports that it ended
	}()
	t.Cleanup(func() {
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Errorf("kill the hostpath driver: %v", err)
		}
		<-done
		_ = output.Close()
		if t.Failed() {
			log, err := os.ReadFile(output.Name())
			t.Logf("hostpath driver said (read: %v):\n%s", err, log)
		}
	})
	return done
}

// awaitReady returns when the driver answers Probe, and fails if the driver has ended.
func awaitReady(ctx context.Context, endpoint string, exited <-chan struct{}) error {
	conn, err := grpc.NewClient(endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond},
		}))
	if err != nil {
		return fmt.Errorf("connect to the hostpath driver: %w", err)
	}
	defer func() { _ = conn.Close() }()

	ctx, stop := context.WithTimeout(ctx, startTimeout)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-exited:
			cancel(errors.New("it has ended"))
		case <-ctx.Done():
		}
	}()
	defer func() { cancel(nil); <-ended }()

	for {
		// WaitForReady makes grpc connect again until the socket is there.
		_, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{}, grpc.WaitForReady(true))
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for the hostpath driver to answer Probe: %w: %w", context.Cause(ctx), err)
		}
	}
}
