package clusterbench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/host/internal/peer/pki"
	"github.com/pannier/pannier/host/internal/peer/pki/pkitest"
)

// relayOf is the variable that makes this program a relay, with the socket of the next one or of the driver; relayAt
// has its own socket, or its port of loopback. There it uses TLS, with the files of a certificate and a key.
const (
	relayOf, relayAt    = "CLUSTERBENCH_RELAY_OF", "CLUSTERBENCH_RELAY_AT"
	relayCert, relayKey = "CLUSTERBENCH_RELAY_CERT", "CLUSTERBENCH_RELAY_KEY"
)

// startRelay starts a process that passes calls on to a driver, and returns its socket. It is what csi-bridge is at
// the least.
func startRelay(b *testing.B, driver string) (socket string) {
	b.Helper()
	socket = filepath.Join(b.TempDir(), "relay.sock")
	runRelay(b, relayOf+"="+driver, relayAt+"="+socket)
	for late := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			return socket
		} else if time.Now().After(late) {
			b.Fatal(err)
		}
	}
}

// startPeer starts a process that passes calls on to a socket, and returns a connection to it over TLS. It is what a
// node is to the leader at the least.
func startPeer(b *testing.B, ca pkitest.Authority, next string) *grpc.ClientConn {
	b.Helper()
	files := ca.Files(b, pki.Server, "relay")
	at := fmt.Sprint("127.0.0.1:", freePorts(b, 1)[0])
	runRelay(b, relayOf+"="+next, relayAt+"="+at, relayCert+"="+files.Cert, relayKey+"="+files.Key)
	secured := credentials.NewTLS(&tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it is this program's own process
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(secured),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return conn
}

// runRelay runs this program as a relay until the end.
func runRelay(b *testing.B, env ...string) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(cmd.Process.Kill(), cmd.Wait()); err != nil && cmd.ProcessState == nil {
			b.Error(err)
		}
	})
}

// relay passes calls on until the process is killed.
func relay(next string) {
	conn, err := grpc.NewClient("unix://"+next, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	network, at := "unix", os.Getenv(relayAt)
	var options []grpc.ServerOption
	if cert := os.Getenv(relayCert); cert != "" {
		network = "tcp"
		secured, err := credentials.NewServerTLSFromFile(cert, os.Getenv(relayKey))
		if err != nil {
			log.Fatal(err)
		}
		options = append(options, grpc.Creds(secured))
	}
	l, err := net.Listen(network, at)
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer(options...)
	csi.RegisterControllerServer(s, relayed{next: csi.NewControllerClient(conn)})
	log.Fatal(s.Serve(l))
}

// relayed are the calls that detachAlone makes.
type relayed struct {
	csi.UnimplementedControllerServer
	next csi.ControllerClient
}

func (r relayed) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return r.next.CreateVolume(ctx, req)
}

func (r relayed) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	return r.next.ControllerPublishVolume(ctx, req)
}

func (r relayed) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	return r.next.ControllerUnpublishVolume(ctx, req)
}
