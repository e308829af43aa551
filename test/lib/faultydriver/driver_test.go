package faultydriver

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/test/lib/testbin"
)

func connect(t *testing.T, d *Driver) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(d.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestScript runs a script with one fault of each kind.
func TestScript(t *testing.T) {
	d := Start(t, Config{})
	d.AddVolume("v")
	node := csi.NewNodeClient(connect(t, d))
	d.Script("NodeStageVolume", Code(codes.Aborted, "pending"), Panic("oh"), OK(), Drop(),
		Reply(&csi.NodeStageVolumeResponse{}))
	for i, want := range []codes.Code{codes.Aborted, codes.Internal, codes.OK, codes.Unavailable, codes.OK, codes.OK} {
		_, err := node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v"}, grpc.WaitForReady(true))
		if status.Code(err) != want {
			t.Errorf("call %d: %v, want %s", i+1, err, want)
		}
	}
	if n := len(d.Calls("NodeStageVolume")); n != 6 {
		t.Errorf("%d calls recorded, want 6", n)
	}
	d.Always("Probe", Crash())
	if _, err := csi.NewIdentityClient(connect(t, d)).Probe(t.Context(),
		&csi.ProbeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a crash: %v", err)
	}
	if _, err := os.Stat(d.config.Socket); err != nil {
		t.Errorf("a crash leaves the socket's file: %v", err)
	}
}

// TestKill connects to a driver right after its death, as a caller does whose connection was lost with it.
func TestKill(t *testing.T) {
	d := Start(t, Config{})
	for range 100 {
		d.Kill()
		if conn, err := net.Dial("unix", d.config.Socket); err == nil {
			_ = conn.Close()
			t.Fatal("a dead driver accepts connections")
		}
		d.Restart()
	}
}

func TestMounts(t *testing.T) {
	testbin.RequireRoot(t, "the mounts of the faulty driver")
	d := Start(t, Config{Mounts: true})
	d.AddVolume("v")
	node := csi.NewNodeClient(connect(t, d))
	dir := t.TempDir()
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	if err := os.Mkdir(staging, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := node.NodeStageVolume(t.Context(),
			&csi.NodeStageVolumeRequest{VolumeId: "v", StagingTargetPath: staging}); err != nil {
			t.Fatal(err)
		}
		if _, err := node.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: "v", StagingTargetPath: staging, TargetPath: target, Readonly: true,
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(staging, "f"), nil, 0o600); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(target, "g"), nil, 0o600); err == nil {
		t.Error("a read-only target can be written")
	}
	for range 2 {
		if _, err := node.NodeUnpublishVolume(t.Context(),
			&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}); err != nil {
			t.Fatal(err)
		}
		if _, err := node.NodeUnstageVolume(t.Context(),
			&csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: staging}); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir)); err != nil || len(left) != 0 {
		t.Errorf("left mounted: %v, %v", left, err)
	}
}
