package bridge

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait.
const patience = time.Minute

// brisk is the policy with short pauses, but enough time for a busy machine.
var brisk = driver.Timing{
	Ask:        patience,
	Budget:     2 * patience,
	Attempt:    patience,
	Backoff:    time.Millisecond,
	BackoffMax: 20 * time.Millisecond,
}

// fixture is a bridge with a faulty driver that has the volume vol-x and the snapshot snap-x.
type fixture struct {
	t      *testing.T
	bridge *Bridge
	faulty *faultydriver.Driver
	driver storage.Driver
	target string
	log    *syncBuffer
}

func setup(t *testing.T, timing driver.Timing, config faultydriver.Config) *fixture {
	t.Helper()
	faulty := faultydriver.Start(t, config)
	faulty.AddVolume("vol-x")
	faulty.AddSnapshot("snap-x", "vol-x")
	log := &syncBuffer{}
	b := newBridge(hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: log}), timing)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fixture{
		t: t, bridge: b, faulty: faulty, log: log,
		driver: storage.Driver{ID: "faulty", Endpoint: faulty.Endpoint()},
		target: filepath.Join(t.TempDir(), "target"),
	}
}

// volume is vol-x with secrets and mount flags that must not leak.
func (f *fixture) volume() storage.Volume {
	return storage.Volume{
		Name:       "x",
		ExternalID: "vol-x",
		Context:    map[string]string{"context": "c"},
		Secrets:    map[string]string{"password": secretValue, "pin": "77"},
		Capability: fileSystem,
	}
}

const (
	secretValue = `hunter2 "quoted"&`
	secretFlag  = "password=s3same"
)

var fileSystem = storage.Capability{
	AccessMode:     storage.SingleNodeWriter,
	AttachmentMode: storage.FileSystem,
	FSType:         "ext4",
	MountFlags:     []string{"noatime", secretFlag},
}

var secretsOnly = map[string]string{"password": secretValue, "pin": "77"}

// operation is one method of the bridge and its RPC.
type operation struct {
	rpc  string
	call func(ctx context.Context, f *fixture) error
}

// operations are all methods except Probe and Fingerprint.
var operations = []operation{
	{"ValidateVolumeCapabilities", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.ValidateVolume(ctx, f.driver,
			storage.ValidateRequest{Volume: f.volume(), Capabilities: []storage.Capability{fileSystem}})
		return err
	}},
	{"ControllerPublishVolume", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.Attach(ctx, f.driver, storage.AttachRequest{Volume: f.volume(), NodeID: "n"})
		return err
	}},
	{"ControllerUnpublishVolume", func(ctx context.Context, f *fixture) error {
		return f.bridge.Detach(ctx, f.driver, f.volume(), "n")
	}},
	{"NodeStageVolume", func(ctx context.Context, f *fixture) error {
		return f.bridge.Stage(ctx, f.driver, storage.StageRequest{Volume: f.volume(), StagingPath: "/staging"})
	}},
	{"NodeUnstageVolume", func(ctx context.Context, f *fixture) error {
		return f.bridge.Unstage(ctx, f.driver, f.volume(), "/staging")
	}},
	{"NodePublishVolume", func(ctx context.Context, f *fixture) error {
		return f.bridge.Publish(ctx, f.driver,
			storage.PublishRequest{Volume: f.volume(), StagingPath: "/staging", TargetPath: f.target})
	}},
	{"NodeUnpublishVolume", func(ctx context.Context, f *fixture) error {
		return f.bridge.Unpublish(ctx, f.driver, f.volume(), f.target)
	}},
	{"CreateVolume", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.Create(ctx, f.driver,
			storage.CreateRequest{Name: "new", Capabilities: []storage.Capability{fileSystem}, Secrets: secretsOnly})
		return err
	}},
	{"DeleteVolume", func(ctx context.Context, f *fixture) error {
		return f.bridge.Delete(ctx, f.driver, f.volume())
	}},
	{"ListVolumes", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.List(ctx, f.driver, storage.Page{})
		return err
	}},
	{"ControllerGetVolume", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.Get(ctx, f.driver, f.volume())
		return err
	}},
	{"ControllerGetVolumeHealth", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.Get(ctx, f.driver, f.volume())
		return err
	}},
	{"ControllerModifyVolume", func(ctx context.Context, f *fixture) error {
		return f.bridge.Modify(ctx, f.driver,
			storage.ModifyRequest{Volume: f.volume(), Parameters: map[string]string{"iops": "7"}})
	}},
	{"GetCapacity", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.Capacity(ctx, f.driver, storage.CapacityRequest{Capabilities: []storage.Capability{fileSystem}})
		return err
	}},
	{"ControllerExpandVolume", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.Expand(ctx, f.driver, storage.ExpandRequest{Volume: f.volume(), CapacityMin: 1})
		return err
	}},
	{"NodeExpandVolume", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.ExpandNode(ctx, f.driver,
			storage.ExpandNodeRequest{Volume: f.volume(), CapacityMin: 1, VolumePath: f.target})
		return err
	}},
	{"CreateSnapshot", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.CreateSnapshot(ctx, f.driver, storage.CreateSnapshotRequest{Name: "s", Volume: f.volume()})
		return err
	}},
	{"DeleteSnapshot", func(ctx context.Context, f *fixture) error {
		return f.bridge.DeleteSnapshot(ctx, f.driver, "snap-x", secretsOnly)
	}},
	{"ListSnapshots", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.ListSnapshots(ctx, f.driver, storage.ListSnapshotsRequest{Secrets: secretsOnly})
		return err
	}},
	{"CreateVolumeGroupSnapshot", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.CreateGroupSnapshot(ctx, f.driver, storage.CreateGroupSnapshotRequest{
			Name: "g", VolumeExternalIDs: []string{"vol-x"}, Secrets: secretsOnly,
		})
		return err
	}},
	{"GetVolumeGroupSnapshot", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.GetGroupSnapshot(ctx, f.driver, storage.GroupSnapshotRequest{ID: "group-x", Secrets: secretsOnly})
		return err
	}},
	{"DeleteVolumeGroupSnapshot", func(ctx context.Context, f *fixture) error {
		return f.bridge.DeleteGroupSnapshot(ctx, f.driver, storage.GroupSnapshotRequest{ID: "group-x", Secrets: secretsOnly})
	}},
	{"NodeGetVolumeStats", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.VolumeStats(ctx, f.driver, storage.StatsRequest{Volume: f.volume(), VolumePath: f.target})
		return err
	}},
	{"NodeGetVolumeHealth", func(ctx context.Context, f *fixture) error {
		_, err := f.bridge.VolumeStats(ctx, f.driver, storage.StatsRequest{Volume: f.volume(), VolumePath: f.target})
		return err
	}},
}

func stage(ctx context.Context, f *fixture) error {
	return f.bridge.Stage(ctx, f.driver, storage.StageRequest{Volume: f.volume(), StagingPath: "/staging"})
}

// inBackground runs fn and passes its error to the test.
func inBackground(fn func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	return done
}

func await(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		t.Fatalf("did not return within %s", patience)
		return nil
	}
}

// syncBuffer is a log's output that can be read while it is written.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// await polls until the log contains the text.
func (b *syncBuffer) await(t *testing.T, text string) {
	t.Helper()
	check.Eventually(t, text+" in the log", func() bool { return strings.Contains(b.String(), text) })
}

// Probe asks the driver once whether it is ready.
func (b *Bridge) Probe(ctx context.Context, d storage.Driver, timeout time.Duration) (bool, error) {
	conn, release, err := b.pool.Acquire(d.Endpoint)
	if err != nil {
		return false, err
	}
	defer release()
	return probe(ctx, conn, d, timeout)
}
