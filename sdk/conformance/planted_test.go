package conformance_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/sdk/storage"
)

// planted are the faults of a plugin that cost data, that a workload notices as wrong data, or that leave an access
// which should have ended, with the check that must find each of them. Other checks may find it too.
var planted = []struct{ mode, kind, check, says string }{
	{"loses-at-unpublish", "storage", "data.kept", "after Unpublish and Publish: the file that was written is not there"},
	{"loses-at-unstage", "storage", "data.kept", "after Unstage and Stage: the file that was written is not there"},
	{"serves-tmpfs", "storage", "data.kept", "after Unpublish and Publish: the file that was written is not there"},
	{"ignores-read-only", "storage", "data.read-only", "through a read-only target"},
	{"stacks", "storage", "work.repeat", "2 mounts are stacked at the target path"},
	{"empties-published", "storage", "mount.once", "published again: the file that was written is not there"},
	{"leaves-target", "storage", "mount.gone", "the target path still exists"},
	{"keeps-staged", "storage", "mount.gone", "still mounted at the staging path"},
	{"keeps-deleted", "storage", "volume.deleted", "after Delete: got success, want NotFound"},
	{"any-size", "storage", "volume.capacity", "at most"},
	{"claims-to-expand", "storage", "volume.expanded", "it was expanded from"},
	{"takes-any", "storage", "volume.same", "got success, want AlreadyExists"},
	{"loses-entries", "storage", "volume.listed", "in pages of one the list lacks"},
	{"follows", "storage", "snapshot.content", "in a volume from the snapshot: the file has another content"},
	{"same-clone", "storage", "clone.content", "in the source, after a write to the clone"},
	{"constant-stats", "storage", "stats.moves", "bytes were used before"},
	{"never-sick", "storage", "fingerprint.follows", "the driver is away: it is not reported"},
	{"races", "storage", "mount.together", "mounts are stacked at the"},
	{"own-revokes-not", "identity", "token.refused", "its issuer still accepts it"},
	{"keeps-registered", "registration", "work.whole", "what was deregistered is still there"},
	{"own-keeps-registered", "registration", "work.whole", "what was deregistered is still there"},
}

// caught counts the planted faults that their check has found.
var caught atomic.Int32

func TestPlanted(t *testing.T) {
	requireRoot(t, "the kit with plugins that lose data")
	for _, tc := range planted {
		one := tc.check
		if *full {
			one = ""
		}
		t.Run(tc.mode, func(t *testing.T) {
			t.Parallel()
			results := check(t, tc.mode, tc.kind, one).Results
			at := slices.IndexFunc(results, func(res conformance.Result) bool { return res.ID == tc.check })
			switch {
			case at < 0:
				t.Errorf("%s was not run", tc.check)
			case results[at].Status != conformance.Failed || !strings.Contains(results[at].Reason, tc.says):
				t.Errorf("%s is %s: %s, want it failed with %q", tc.check, results[at].Status, results[at].Reason, tc.says)
			default:
				caught.Add(1)
			}
		})
	}
}

// TestInterrupted checks that a run which is interrupted while a volume is in use removes it.
func TestInterrupted(t *testing.T) {
	requireRoot(t, "the kit interrupted with a volume in use")
	dir, cfg := fixture(t, "waits", "storage")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		for ctx.Err() == nil { // until the plugin waits in the volume's first Unpublish
			if _, err := os.Stat(filepath.Join(dir, "state", "waiting")); err == nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	report, err := conformance.RunOne(ctx, cfg, "data.kept")
	if !errors.Is(err, context.Canceled) || report == nil {
		t.Fatalf("got %v, %v, want that it was interrupted", report, err)
	}
	if len(report.Left) > 0 {
		t.Errorf("left: %q", report.Left)
	}
	nothingLeft(t, dir)
}

// TestGivenVolume checks that a volume which the kit is given is tested and left as it was.
func TestGivenVolume(t *testing.T) {
	requireRoot(t, "the kit with a volume that it is given")
	dir, cfg := fixture(t, "good", "storage")
	vol := filepath.Join(dir, "state", "vol", "ext-given")
	if err := os.MkdirAll(vol, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("given", vol, "tmpfs", 0, "size=64m"); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{vol + ".json": `{"Capacity":67108864}`, filepath.Join(vol, "mine"): "mine"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Volume = storage.Volume{Name: "given", ExternalID: "ext-given", Capability: storage.Capability{
		AccessMode: storage.SingleNodeWriter, AttachmentMode: storage.FileSystem,
	}}
	report, err := conformance.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var skipped []string
	for _, res := range report.Results {
		switch res.Status {
		case conformance.Failed:
			t.Errorf("%s: %s", res.ID, res.Reason)
		case conformance.Skipped:
			skipped = append(skipped, res.ID)
		case conformance.Passed:
		}
	}
	if want := []string{
		"data.own", "data.block", "volume.capacity", "volume.expanded", "volume.same", "volume.deleted",
		"snapshot.content", "snapshot.same", "snapshot.deleted", "clone.content", "volume.listed",
	}; !slices.Equal(skipped, want) {
		t.Errorf("skipped: %q, want %q", skipped, want)
	}
	left, err := os.ReadDir(vol)
	if err != nil || len(left) != 1 || left[0].Name() != "mine" || len(report.Left) > 0 {
		t.Errorf("the volume has %v, left is %q, %v", left, report.Left, err)
	}
}

// nothingLeft checks that the good fixture's backend has neither volumes nor snapshots.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	for _, kind := range []string{"vol", "snap"} {
		left, err := filepath.Glob(filepath.Join(dir, "state", kind, "*"))
		if err != nil || len(left) > 0 {
			t.Errorf("left of the %s folder: %q, %v", kind, left, err)
		}
	}
}
