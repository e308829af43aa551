package clusterbench

import (
	"context"
	"errors"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// relayOf is the variable that makes this program a relay, with the driver's socket; relayAt has its own socket.
const relayOf, relayAt = "CLUSTERBENCH_RELAY_OF", "CLUSTERBENCH_RELAY_AT"

// startRelay starts a process that passes calls on to a driver, and returns its socket. It is what csi-bridge is at
// the least.
func startRelay(b *testing.B, driver string) (socket string) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	socket = filepath.Join(b.TempDir(), "relay.sock")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), relayOf+"="+driver, relayAt+"="+socket)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(cmd.Process.Kill(), cmd.Wait()); err != nil && cmd.ProcessState == nil {
			b.Error(err)
		}
	})
	for late := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			return socket
		} else if time.Now().After(late) {
			b.Fatal(err)
		}
	}
}

// relay passes calls on until the process is killed.
func relay(driver string) {
	conn, err := grpc.NewClient("unix://"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("unix", os.Getenv(relayAt))
	if err != nil {
		log.Fatal(err)
	}
	s := grpc.NewServer()
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
