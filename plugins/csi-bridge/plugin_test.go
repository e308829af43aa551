package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/sdk/wire"
	"github.com/pannier/pannier/test/faultydriver"
	"github.com/pannier/pannier/test/testbin"
)

// startPlugin runs the built plugin as a host does and returns the host's side
// of it, and what the process writes into its log.
func startPlugin(t *testing.T) (storage.Client, *output) {
	t.Helper()
	bin := testbin.Build(t, "plugins/csi-bridge")
	authority, err := wire.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := authority.Issue("csi-bridge")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tls")
	if err := os.WriteFile(file, bundle, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin)
	cmd.Env = append(os.Environ(), wire.EnvTLSBundle+"="+file, wire.EnvLogLevel+"=trace")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := &output{}
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.Plugins(nil),
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		Cmd:              cmd,
		TLSConfig:        authority.ClientTLS("csi-bridge"),
		Stderr:           log,
		Logger:           hclog.NewNullLogger(),
	})
	t.Cleanup(client.Kill)
	protocol, err := client.Client()
	if err != nil {
		t.Fatalf("start the plugin: %v\n%s", err, log)
	}
	conn, err := protocol.Dispense("pannier")
	if err != nil {
		t.Fatal(err)
	}
	return storage.NewClient(conn.(*grpc.ClientConn)), log
}

// TestPluginProcess sees a retry, a fingerprint, an error and the log through
// the process's border.
func TestPluginProcess(t *testing.T) {
	plugin, log := startPlugin(t)
	faulty := faultydriver.Start(t, faultydriver.Config{})
	faulty.AddVolume("vol-x")
	d := storage.Driver{ID: "faulty", Endpoint: faulty.Endpoint()}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reports := make(chan storage.Fingerprint, 10)
	watched := make(chan struct{})
	watching, stop := context.WithCancel(ctx)
	go func() {
		defer close(watched)
		_ = plugin.Fingerprint(watching, d, storage.FingerprintOptions{}, func(fp storage.Fingerprint) error {
			reports <- fp
			return nil
		})
	}()
	defer func() { stop(); <-watched }()
	select {
	case fp := <-reports:
		if !fp.Healthy || fp.Provider != "faulty.test" || fp.Node.NodeID != "faulty-node" {
			t.Errorf("got %+v", fp)
		}
	case <-ctx.Done():
		t.Fatal("no fingerprint")
	}

	v := storage.Volume{
		Name: "x", ExternalID: "vol-x", Secrets: map[string]string{"password": "hunter2"},
		Capability: storage.Capability{AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem, MountFlags: []string{"s3same"}},
	}
	faulty.Script("NodeStageVolume", faultydriver.Code(codes.Unavailable, "busy"), faultydriver.Drop())
	if err := plugin.Stage(ctx, d, storage.StageRequest{Volume: v, StagingPath: "/staging"}); err != nil {
		t.Error(err)
	}
	if n := len(faulty.Calls("NodeStageVolume")); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
	faulty.Script("NodeStageVolume", faultydriver.Code(codes.Internal, "mount -o s3same with hunter2 failed"))
	err := plugin.Stage(ctx, d, storage.StageRequest{Volume: v, StagingPath: "/staging"})
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "mount -o [REDACTED] with [REDACTED] failed") {
		t.Errorf("got %v", err)
	}
	if said := log.String(); !strings.Contains(said, `"rpc":"NodeStageVolume"`) || strings.Contains(said, "hunter2") || strings.Contains(said, "s3same") {
		t.Errorf("no trace of the calls, or a secret, in the log:\n%s", said)
	}

	stop()
	<-watched
	faulty.Always("NodeStageVolume", faultydriver.Hang())
	short, end := context.WithTimeout(ctx, 100*time.Millisecond)
	defer end()
	if err := plugin.Stage(short, d, storage.StageRequest{Volume: v}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("got %v, want the caller's deadline to end the call", err)
	}
}

// output is the process's log, which may be read while it is written.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
