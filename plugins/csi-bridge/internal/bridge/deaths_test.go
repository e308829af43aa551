package bridge

import (
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// restartAfter restarts the driver after each of its deaths in the first n calls of an RPC.
func restartAfter(f *fixture, rpc string, n int) {
	f.t.Helper()
	for i := range n {
		f.faulty.AwaitCalls(rpc, i+1)
		check.Eventually(f.t, "the driver's death", func() bool { return !f.faulty.Running() })
		f.faulty.Restart()
	}
}

// probed makes a connection, as the fingerprint does soon after each restart of a driver.
func probed(f *fixture) {
	f.t.Helper()
	check.Eventually(f.t, "an answer of the driver", func() bool {
		ready, err := f.bridge.Probe(f.t.Context(), f.driver, 0)
		return ready && err == nil
	})
}

// TestDeadlyCallIsNotMadeAThirdTime uses a driver that dies of each ListVolumes, and one that dies of one volume.
func TestDeadlyCallIsNotMadeAThirdTime(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Always("ListVolumes", faultydriver.Crash())
	list := func() error {
		_, err := f.bridge.List(t.Context(), f.driver, storage.Page{})
		return err
	}
	listed := inBackground(list)
	restartAfter(f, "ListVolumes", 2)
	err := await(t, listed)
	for range 3 {
		if status.Code(err) != codes.Internal ||
			!strings.Contains(err.Error(), "the driver died of ListVolumes 2 times") ||
			!strings.Contains(err.Error(), "restart or replace the driver") {
			t.Fatalf("got %v", err)
		}
		probed(f)
		err = list()
	}
	if n := len(f.faulty.Calls("ListVolumes")); n != 2 {
		t.Errorf("it was made %d times, want 2", n)
	}
	check.NoError(t, stage(t.Context(), f)) // other calls are made

	f.faulty.Always("ListVolumes", faultydriver.Fault{})
	f.faulty.Restart() // not because of a call: an operator has replaced it
	probed(f)
	check.NoError(t, list())
}

// TestDeathsInOneVolumesCalls: a volume that kills the driver does not keep others from being used.
func TestDeathsInOneVolumesCalls(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.AddVolume("vol-y")
	f.faulty.ScriptVolume("vol-x", "NodeStageVolume", faultydriver.Crash(), faultydriver.Crash())
	staged := inBackground(func() error { return stage(t.Context(), f) })
	restartAfter(f, "NodeStageVolume", 2)
	if err := await(t, staged); status.Code(err) != codes.Internal ||
		!strings.Contains(err.Error(), "died of NodeStageVolume 2 times") || !strings.Contains(err.Error(), "outcome is unknown") {
		t.Errorf("got %v", err)
	}
	probed(f)
	v := f.volume()
	v.ExternalID = "vol-y"
	check.NoError(t, f.bridge.Stage(t.Context(), f.driver, storage.StageRequest{Volume: v}))
	check.NoError(t, f.bridge.Unstage(t.Context(), f.driver, f.volume(), "/staging")) // the opposite call is made
	if n := len(f.faulty.Calls("NodeStageVolume")); n != 3 {
		t.Errorf("NodeStageVolume was called %d times, want twice for vol-x and once for vol-y", n)
	}
}

// TestInnocentCallBesideADeadlyOne: the call that was in flight when the driver died of another one is repeated,
// without the other one beside it.
func TestInnocentCallBesideADeadlyOne(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Script("NodeStageVolume", faultydriver.Hang(), faultydriver.Delay(time.Second/2))
	f.faulty.Always("ListVolumes", faultydriver.Crash())
	staged := inBackground(func() error { return stage(t.Context(), f) })
	f.faulty.AwaitCalls("NodeStageVolume", 1)
	listed := inBackground(func() error {
		_, err := f.bridge.List(t.Context(), f.driver, storage.Page{})
		return err
	})
	restartAfter(f, "ListVolumes", 2)
	check.NoError(t, await(t, staged))
	if err := await(t, listed); !strings.Contains(err.Error(), "died of ListVolumes 2 times") {
		t.Errorf("got %v", err)
	}
}

// TestSnapshotAfterADeath warns of a snapshot that the driver found after it had died while it took it.
func TestSnapshotAfterADeath(t *testing.T) {
	half := &csi.ListSnapshotsResponse{Entries: []*csi.ListSnapshotsResponse_Entry{{
		Snapshot: &csi.Snapshot{SnapshotId: "s", SourceVolumeId: "vol-x", SizeBytes: 7},
	}}}
	for name, tc := range map[string]struct {
		config faultydriver.Config
		list   proto.Message
		want   string
	}{
		"whole":      {want: "as ready to use"},
		"other size": {list: half, want: "lists it with 7 bytes, and answered 1048576"},
		"gone":       {list: &csi.ListSnapshotsResponse{}, want: "does not list it"},
		"no list":    {config: faultydriver.Config{Without: []string{"LIST_SNAPSHOTS"}}, want: "could not be checked"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, brisk, tc.config)
			f.faulty.Script("CreateSnapshot", faultydriver.Crash())
			if tc.list != nil {
				f.faulty.Always("ListSnapshots", faultydriver.Reply(tc.list))
			}
			req := storage.CreateSnapshotRequest{Name: "nightly", Volume: f.volume()}
			var s storage.Snapshot
			taken := inBackground(func() (err error) {
				s, err = f.bridge.CreateSnapshot(t.Context(), f.driver, req)
				return err
			})
			restartAfter(f, "CreateSnapshot", 1)
			check.NoError(t, await(t, taken))
			if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], tc.want) {
				t.Errorf("got %q", s.Warnings)
			}
			s, err := f.bridge.CreateSnapshot(t.Context(), f.driver, req)
			if err != nil || len(s.Warnings) > 0 {
				t.Errorf("asked again, after an answer: %q, %v", s.Warnings, err)
			}
		})
	}
}
