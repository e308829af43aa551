package bench

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/pannier/pannier/test/lib/check"
)

// The floor of a start and a release is what two processes take that do nothing but what Pannier cannot leave out: a
// host, which gets one call, makes the synced writes and the directories of the mounts, and calls the driver through a
// relay, a process that passes the calls on, as a plugin does. There is no TLS, no ledger, no journal, no mount table
// and no search for holders.

// envFloor makes a process of this program one of the two: host or relay. Its arguments are the socket to listen on,
// and the one to call.
const envFloor = "PANNIER_BENCH_FLOOR"

// floorProcess is TestMain of such a process. It ends with its standard input.
func floorProcess(kind, listen, next string) error {
	conn, err := grpc.NewClient("unix://"+next, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	var node csi.NodeServer = relay{next: csi.NewNodeClient(conn)}
	if kind == "host" {
		log, err := os.Create(listen + ".log")
		if err != nil {
			return err
		}
		h := &bareHost{relay: relay{next: csi.NewNodeClient(conn)}, file: log, writes: make(chan chan error, 1000)}
		go h.sync()
		node = h
	}
	l, err := net.Listen("unix", listen)
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	csi.RegisterNodeServer(s, node)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Stop()
	}()
	return s.Serve(l)
}

// relay passes calls on.
type relay struct {
	csi.UnimplementedNodeServer
	next csi.NodeClient
}

func (r relay) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse,
	error,
) {
	return r.next.NodeStageVolume(ctx, req)
}

func (r relay) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	return r.next.NodeUnstageVolume(ctx, req)
}

func (r relay) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	return r.next.NodePublishVolume(ctx, req)
}

func (r relay) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error,
) {
	return r.next.NodeUnpublishVolume(ctx, req)
}

// bareHost makes a start of each publish and a release of each unpublish.
type bareHost struct {
	relay
	file    *os.File
	writes  chan chan error
	staging sync.Map // by target
}

// sync writes for all that wait at one time together, as raft's log does.
func (h *bareHost) sync() {
	block := make([]byte, 4096)
	for first := range h.writes {
		waiting := []chan error{first}
		for len(h.writes) > 0 {
			waiting = append(waiting, <-h.writes)
		}
		_, err := h.file.WriteAt(block, 0)
		if err == nil {
			err = unix.Fdatasync(int(h.file.Fd()))
		}
		for _, w := range waiting {
			w <- err
		}
	}
}

func (h *bareHost) write() <-chan error {
	done := make(chan error, 1)
	h.writes <- done
	return done
}

func (h *bareHost) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (
	*csi.NodePublishVolumeResponse, error,
) {
	if err := <-h.write(); err != nil { // the claim
		return nil, err
	}
	for _, dir := range []string{req.GetStagingTargetPath(), filepath.Dir(req.GetTargetPath())} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	h.staging.Store(req.GetTargetPath(), req.GetStagingTargetPath())
	_, err := h.next.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId: req.GetVolumeId(), StagingTargetPath: req.GetStagingTargetPath(),
		VolumeCapability: req.GetVolumeCapability(),
	})
	if err != nil {
		return nil, err
	}
	return h.next.NodePublishVolume(ctx, req)
}

func (h *bareHost) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (
	*csi.NodeUnpublishVolumeResponse, error,
) {
	at, _ := h.staging.LoadAndDelete(req.GetTargetPath())
	staging, ok := at.(string)
	if !ok {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	ended := h.write()
	if _, err := h.next.NodeUnpublishVolume(ctx, req); err != nil {
		return nil, err
	}
	_, err := h.next.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
		VolumeId: req.GetVolumeId(), StagingTargetPath: staging,
	})
	if err != nil {
		return nil, err
	}
	if err := <-ended; err != nil {
		return nil, err
	}
	gone := h.write()
	for _, path := range []string{filepath.Dir(req.GetTargetPath()), staging} {
		for unix.Rmdir(path) == nil { // and its parents that are empty then
			path = filepath.Dir(path)
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, <-gone
}

// startFloor starts a process of a floor, which ends when its input does.
func startFloor(b *testing.B, kind string, args ...string) *os.Process {
	b.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), envFloor+"="+kind)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = input.Close()
		_ = cmd.Wait()
	})
	return cmd.Process
}

// floor starts the two processes before the driver's socket, and returns a connection to the host.
func floor(b *testing.B, driver string) *grpc.ClientConn {
	b.Helper()
	dir := b.TempDir()
	at := driver
	for _, kind := range []string{"relay", "host"} {
		listen := filepath.Join(dir, kind)
		startFloor(b, kind, listen, at)
		check.Eventually(b, kind+" listens", func() bool {
			_, err := os.Stat(listen)
			return err == nil
		})
		at = listen
	}
	return dial(b, at)
}

// floorDir makes the directory for mounts, and what stays of it while nothing is mounted.
func floorDir(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	for _, kept := range []string{"staging/kept", "per-workload/kept"} {
		if err := os.MkdirAll(filepath.Join(dir, kept), 0o700); err != nil {
			b.Fatal(err)
		}
	}
	return dir
}

// newFloor returns a volume that is started and released through the floor's host, at paths as deep as Pannier's.
func newFloor(b *testing.B, conn *grpc.ClientConn, dir, volume string) *direct {
	b.Helper()
	const usage = "rw-file-system-single-node-writer"
	d := newDirect(b, conn, volume)
	d.staging = filepath.Join(dir, "staging/default", volume, usage)
	d.target = filepath.Join(dir, "per-workload", volume, "default", volume, usage, "data")
	return d
}

func (d *direct) publish(ctx context.Context) (time.Duration, error) {
	at := time.Now()
	_, err := d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: d.volume, StagingTargetPath: d.staging, TargetPath: d.target, VolumeCapability: d.capability,
	})
	return time.Since(at), err
}

func (d *direct) unpublish(ctx context.Context) (time.Duration, error) {
	at := time.Now()
	_, err := d.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: d.volume, TargetPath: d.target})
	return time.Since(at), err
}
