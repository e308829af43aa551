package serve

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/internal/unixsocket"
)

func TestParseEndpoint(t *testing.T) {
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{
		"unix:///run/a.sock":           "/run/a.sock",
		"unix:/run/a.sock":             "/run/a.sock",
		"/run/a.sock":                  "/run/a.sock",
		"/run/a:b/c.sock":              "/run/a:b/c.sock",
		"unix:a.sock":                  filepath.Join(wd, "a.sock"),
		"a.sock":                       filepath.Join(wd, "a.sock"),
		"":                             "",
		"unix://":                      "",
		"tcp://localhost:1":            "",
		"/" + strings.Repeat("x", 107): "",
	} {
		got, err := ParseEndpoint(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "a.sock")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", p, info.Mode(), err)
		}
	}
	if _, err := Listen(t.Context(), path); !errors.Is(err, unixsocket.ErrAnswers) {
		t.Errorf("a second one: %v", err)
	}
	// A killed process leaves its socket.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	l, err = Listen(t.Context(), path)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	l.Close()
}

// panicking is a node service with a bug.
type panicking struct{ csi.UnimplementedNodeServer }

func (panicking) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	panic("token=hunter2")
}

func TestPanicIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, l, hclog.New(&hclog.LoggerOptions{Output: &log}), func(s grpc.ServiceRegistrar) {
			csi.RegisterNodeServer(s, panicking{})
		})
	}()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = csi.NewNodeClient(conn).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
	if !strings.Contains(log.String(), "serve_test.go") || strings.Contains(log.String(), "hunter2") {
		t.Errorf("log: %s", log.String())
	}
}

func TestSanitize(t *testing.T) {
	capability := &csi.VolumeCapability{AccessType: &csi.VolumeCapability_Mount{
		Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"password=abc"}},
	}}
	for _, msg := range []any{
		&csi.CreateVolumeRequest{
			Name: "v", Secrets: map[string]string{"k": "abc"},
			VolumeCapabilities: []*csi.VolumeCapability{capability},
		},
		&csi.NodeStageVolumeRequest{VolumeId: "v", Secrets: map[string]string{"k": "abc"}, VolumeCapability: capability},
		&csi.ValidateVolumeCapabilitiesResponse{Message: "v", Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeCapabilities: []*csi.VolumeCapability{capability},
		}},
	} {
		if got := Sanitize(msg); strings.Contains(got, "abc") || !strings.Contains(got, `"v"`) ||
			!strings.Contains(got, "stripped") {
			t.Errorf("got %s", got)
		}
	}
	if capability.GetMount().GetMountFlags()[0] != "password=abc" {
		t.Error("the request itself was changed")
	}
}
