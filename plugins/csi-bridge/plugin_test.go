package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testplugin"
)

// TestPluginProcess checks a retry, a fingerprint, an error and the log of a real plugin process.
func TestPluginProcess(t *testing.T) {
	process := testplugin.Start(t, "csi-bridge")
	plugin, log := storage.NewClient(process.Conn), process.Log
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
		Capability: storage.Capability{
			AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem,
			MountFlags: []string{"s3same"},
		},
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
	log.Await(t, `"code":"Internal"`)
	if said := log.String(); !strings.Contains(said, `"rpc":"NodeStageVolume"`) || strings.Contains(said, "hunter2") ||
		strings.Contains(said, "s3same") {
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
