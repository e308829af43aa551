package bridge

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// watch runs Fingerprint until the test ends.
func watch(t *testing.T, f *fixture, opts storage.FingerprintOptions) <-chan storage.Fingerprint {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reports := make(chan storage.Fingerprint, 100)
	done := inBackground(func() error {
		return f.bridge.Fingerprint(ctx, f.driver, opts, func(fp storage.Fingerprint) error {
			reports <- fp
			return nil
		})
	})
	t.Cleanup(func() {
		cancel()
		if err := await(t, done); !errors.Is(err, context.Canceled) {
			t.Errorf("Fingerprint ended with %v", err)
		}
	})
	return reports
}

func nextReport(t *testing.T, reports <-chan storage.Fingerprint) storage.Fingerprint {
	t.Helper()
	select {
	case fp := <-reports:
		return fp
	case <-time.After(patience):
		t.Fatalf("no report within %s", patience)
		return storage.Fingerprint{}
	}
}

// firstFingerprint waits for one report.
func firstFingerprint(t *testing.T, f *fixture) storage.Fingerprint {
	t.Helper()
	var got storage.Fingerprint
	enough := errors.New("enough")
	err := f.bridge.Fingerprint(t.Context(), f.driver, storage.FingerprintOptions{}, func(fp storage.Fingerprint) error {
		got = fp
		return enough
	})
	if !errors.Is(err, enough) {
		t.Fatalf("Fingerprint ended with %v, want the report's own error", err)
	}
	return got
}

func TestFingerprintSaysWhatTheDriverIs(t *testing.T) {
	all := storage.Fingerprint{
		Healthy: true, Provider: "faulty.test", Version: "1.0.0",
		Controller: &storage.ControllerCapabilities{
			CreateDelete: true, AttachDetach: true, AttachReadOnly: true, ListVolumes: true, GetCapacity: true,
			CreateDeleteSnapshot: true, ListSnapshots: true, Clone: true, Expand: true, OnlineExpand: true,
			VolumeCondition: true, SingleNodeMultiWriter: true, Topology: true,
		},
		Node: &storage.NodeCapabilities{
			NodeID: "faulty-node", MaxVolumes: 16, AccessibleTopology: storage.Topology{"rack": "R1"},
			StageUnstage: true, VolumeStats: true, Expand: true, VolumeCondition: true,
			SingleNodeMultiWriter: true, VolumeMountGroup: true,
		},
	}
	nodeOnly, controllerOnly := all, all
	nodeOnly.Controller, controllerOnly.Node = nil, nil
	health := []string{"GET_VOLUME_HEALTH", "LIST_VOLUME_HEALTH"}
	for name, tc := range map[string]struct {
		config faultydriver.Config
		want   storage.Fingerprint
	}{
		"monolith":          {faultydriver.Config{}, all},
		"node":              {faultydriver.Config{NoController: true}, nodeOnly},
		"controller":        {faultydriver.Config{NoNode: true}, controllerOnly},
		"the old condition": {faultydriver.Config{Without: health, RawController: []int32{11}, RawNode: []int32{4}}, all},
		"unknown additions": {faultydriver.Config{RawController: []int32{999}, RawNode: []int32{999}}, all},
	} {
		t.Run(name, func(t *testing.T) {
			tc.config.MaxVolumes = 16
			if got := firstFingerprint(t, setup(t, brisk, tc.config)); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got\n%+v %+v %+v", got, got.Controller, got.Node)
			}
		})
	}
}

// TestExpansionInUse: volumes in use may be expanded unless the driver declares OFFLINE alone.
func TestExpansionInUse(t *testing.T) {
	for _, tc := range []struct{ online, offline, want bool }{
		{true, false, true}, {true, true, true}, {false, false, true}, {false, true, false},
	} {
		config := faultydriver.Config{Offline: tc.offline}
		if !tc.online {
			config.Without = []string{"ONLINE"}
		}
		if fp := firstFingerprint(t, setup(t, brisk, config)); fp.Controller.OnlineExpand != tc.want {
			t.Errorf("%+v: got %v", tc, fp.Controller.OnlineExpand)
		}
	}
}

// TestDeathIsSeenAtOnce uses an interval that is longer than any test, so that only the lost connection
// reveals the driver's death.
func TestDeathIsSeenAtOnce(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	reports := watch(t, f, storage.FingerprintOptions{Interval: time.Hour})
	if fp := nextReport(t, reports); !fp.Healthy {
		t.Fatalf("unhealthy: %s", fp.Message)
	}
	f.faulty.Stop()
	fp := nextReport(t, reports)
	if fp.Healthy || !strings.Contains(fp.Message, "the driver cannot be reached") {
		t.Errorf("after the driver's death: %+v", fp)
	}
	if fp.Provider != "faulty.test" || fp.Node == nil || fp.Controller == nil {
		t.Errorf("the last known values are gone: %+v", fp)
	}
	f.faulty.Reconfigure(func(c *faultydriver.Config) { c.Without = []string{"EXPAND_VOLUME"} })
	f.faulty.Restart()
	fp = nextReport(t, reports)
	if !fp.Healthy || fp.Controller.Expand || fp.Node.Expand {
		t.Errorf("after the driver's return: %+v %+v %+v", fp, fp.Controller, fp.Node)
	}
}

// TestOnlyChangesAreReported polls often, and counts the reports.
func TestOnlyChangesAreReported(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	reports := watch(t, f, storage.FingerprintOptions{Interval: 10 * time.Millisecond})
	nextReport(t, reports)
	f.faulty.AwaitCalls("NodeGetInfo", 10)
	if n := len(reports); n != 0 {
		t.Errorf("%d reports without a change", n)
	}
	f.faulty.Always("NodeGetInfo", faultydriver.Code(codes.Internal, "no id"))
	if fp := nextReport(t, reports); fp.Healthy || !strings.Contains(fp.Message, "no id") {
		t.Errorf("got %+v", fp)
	}
	f.faulty.Always("NodeGetInfo", faultydriver.Fault{})
	if fp := nextReport(t, reports); !fp.Healthy || fp.Message != "" {
		t.Errorf("got %+v", fp)
	}
}

// TestReadiness follows a driver that needs time to become ready.
func TestReadiness(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Always("Probe", faultydriver.Reply(&csi.ProbeResponse{Ready: wrapperspb.Bool(false)}))
	if ready, err := f.bridge.Probe(t.Context(), f.driver, 0); err != nil || ready {
		t.Errorf("got %v, %v; want not ready", ready, err)
	}
	reports := watch(t, f, storage.FingerprintOptions{Interval: time.Hour})
	if fp := nextReport(t, reports); fp.Healthy || !strings.Contains(fp.Message, "not ready yet") {
		t.Errorf("got %+v", fp)
	}
	f.faulty.Always("Probe", faultydriver.Reply(&csi.ProbeResponse{Ready: wrapperspb.Bool(true)}))
	if fp := nextReport(t, reports); !fp.Healthy {
		t.Errorf("got %+v", fp)
	}
}

// TestFirstProbeHasItsOwnTimeout uses a driver that hangs from the start.
func TestFirstProbeHasItsOwnTimeout(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Always("Probe", faultydriver.Hang())
	reports := watch(t, f, storage.FingerprintOptions{Interval: time.Hour, ProbeTimeout: 100 * time.Millisecond})
	if fp := nextReport(t, reports); fp.Healthy || !strings.Contains(fp.Message, "Probe ") {
		t.Errorf("got %+v", fp)
	}
}
