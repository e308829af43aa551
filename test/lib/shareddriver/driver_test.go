package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 0) }

// serve runs a driver until the end of the test and returns its endpoint.
func serve(t *testing.T, dir, node string, more ...string) string {
	t.Helper()
	endpoint := "unix://" + filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, append([]string{"-endpoint", endpoint, "-node-id", node, "-dir", dir}, more...))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return endpoint
}

func dial(t *testing.T, endpoint string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestTwoNodes checks that a volume is published on one node at a time, and that both nodes see its content.
func TestTwoNodes(t *testing.T) {
	testbin.RequireRoot(t, "volumes of several hosts, mounted by the tests' driver")
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	mode := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	a, b := dial(t, serve(t, dir, "a", "-topology", "rack=R1")), dial(t, serve(t, dir, "b", "-topology", "rack=R2"))
	made, err := csi.NewControllerClient(a).CreateVolume(ctx,
		&csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{mode}})
	if err != nil || made.GetVolume().GetAccessibleTopology()[0].GetSegments()["rack"] != "R1" {
		t.Fatal(made, err)
	}
	attach := func(by *grpc.ClientConn, node string) error {
		_, err := csi.NewControllerClient(by).ControllerPublishVolume(ctx,
			&csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: node, VolumeCapability: mode})
		return err
	}
	target := func(node string) string { return filepath.Join(dir, "."+node) }
	publish := func(on *grpc.ClientConn, node string) error {
		_, err := csi.NewNodeClient(on).NodePublishVolume(ctx,
			&csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: target(node), VolumeCapability: mode})
		return err
	}
	leave := func(on *grpc.ClientConn, node string) {
		t.Helper()
		if _, err := csi.NewNodeClient(on).NodeUnpublishVolume(ctx,
			&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target(node)}); err != nil {
			t.Error(err)
		}
		if _, err := csi.NewControllerClient(a).ControllerUnpublishVolume(ctx,
			&csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: node}); err != nil {
			t.Error(err)
		}
	}
	if err := attach(b, "a"); err != nil {
		t.Fatal(err)
	}
	if err := publish(a, "a"); err != nil {
		t.Fatal(err)
	}
	if err := attach(a, "b"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("attached to a second node: %v", err)
	}
	if err := publish(b, "b"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("published where it is not attached: %v", err)
	}
	if err := os.WriteFile(target("a")+"/f", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	leave(a, "a")
	if err := attach(a, "b"); err != nil {
		t.Fatal(err)
	}
	if err := publish(b, "b"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(target("b") + "/f"); string(text) != "x" {
		t.Errorf("node b reads %q, %v", text, err)
	}
	leave(b, "b")
	if _, err := csi.NewControllerClient(a).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "v"}); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, ".log"))
	var did []string
	for line := range strings.Lines(string(log)) {
		words := strings.Fields(line)
		did = append(did, words[1]+" "+words[2])
	}
	if got := strings.Join(did, ", "); err != nil ||
		got != "a attach, a publish, a unpublish, a detach, b attach, b publish, b unpublish, b detach, a delete" {
		t.Errorf("the log has %s, %v", got, err)
	}
}
