package bridge

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// TestCallerStops cancels a call in each state in which it can wait.
func TestCallerStops(t *testing.T) {
	patient := driver.DefaultTiming
	patient.Backoff, patient.BackoffMax = time.Hour, time.Hour
	t.Run("the driver hangs", func(t *testing.T) {
		f := setup(t, patient, faultydriver.Config{})
		f.faulty.Always("NodeStageVolume", faultydriver.Hang())
		err := stopAfterFirst(t, f)
		if !strings.Contains(err.Error(), "stopped by the caller") ||
			!strings.Contains(err.Error(), "the outcome is unknown") {
			t.Error(err)
		}
	})
	t.Run("between two attempts", func(t *testing.T) {
		f := setup(t, patient, faultydriver.Config{})
		f.faulty.Always("NodeStageVolume", faultydriver.Code(codes.Unavailable, "busy"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := inBackground(func() error { return stage(ctx, f) })
		f.log.await(t, "rpc=NodeStageVolume code=Unavailable")
		cancel()
		err := await(t, done)
		if status.Code(err) != codes.Canceled ||
			!strings.Contains(err.Error(), "NodeStageVolume answered Unavailable: busy") {
			t.Error(err)
		}
	})
	t.Run("behind another call on the volume", func(t *testing.T) {
		f := setup(t, patient, faultydriver.Config{})
		f.faulty.Always("NodeStageVolume", faultydriver.Hang())
		other, stopOther := context.WithCancel(t.Context())
		first := inBackground(func() error { return stage(other, f) })
		f.faulty.AwaitCalls("NodeStageVolume", 1)
		err := stopAfterFirst(t, f)
		if !strings.Contains(err.Error(), "the driver was not called") {
			t.Error(err)
		}
		stopOther()
		_ = await(t, first)
	})
	t.Run("the caller's deadline", func(t *testing.T) {
		f := setup(t, patient, faultydriver.Config{})
		f.faulty.Always("NodeStageVolume", faultydriver.Hang())
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := await(t, inBackground(func() error { return stage(ctx, f) })); status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
	})
}

// TestOppositeCallWaitsForACancelledOne cancels a staging that the driver goes on with. If the driver were asked to
// unstage meanwhile, it might be done with that first, and then stage after all.
func TestOppositeCallWaitsForACancelledOne(t *testing.T) {
	f := setup(t, driver.DefaultTiming, faultydriver.Config{})
	release := make(chan struct{})
	f.faulty.Script("NodeStageVolume", faultydriver.Watched(func() { <-release }, func() {}))
	_ = stopAfterFirst(t, f)
	unstage := func(ctx context.Context) error {
		return f.bridge.Unstage(ctx, f.driver, f.volume(), "/staging")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := unstage(ctx); err == nil || !strings.Contains(err.Error(), "the driver was not called") {
		t.Errorf("while it stages: %v", err)
	}
	close(release)
	check.NoError(t, unstage(t.Context()))
}

// stopAfterFirst cancels a staging once a stage call has arrived. It must return at once with Canceled, without a
// further call.
func stopAfterFirst(t *testing.T, f *fixture) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := inBackground(func() error { return stage(ctx, f) })
	f.faulty.AwaitCalls("NodeStageVolume", 1)
	cancel()
	err := await(t, done)
	if status.Code(err) != codes.Canceled {
		t.Errorf("got %v, want Canceled", err)
	}
	if n := len(f.faulty.Calls("NodeStageVolume")); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
	return err
}

// TestDriverRestarts stops the driver before a call and during one.
func TestDriverRestarts(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	check.NoError(t, stage(t.Context(), f))
	f.faulty.Stop()
	done := inBackground(func() error { return stage(t.Context(), f) })
	f.faulty.Restart()
	if err := await(t, done); err != nil {
		t.Fatalf("over a restart: %v", err)
	}
	f.faulty.Script("NodeStageVolume", faultydriver.Crash())
	done = inBackground(func() error { return stage(t.Context(), f) })
	f.faulty.AwaitCalls("NodeStageVolume", 3)
	f.faulty.Restart()
	if err := await(t, done); err != nil {
		t.Fatalf("over a crash: %v", err)
	}
}

// TestNoSuchSocket checks that the message tells an operator what to do.
func TestNoSuchSocket(t *testing.T) {
	timing := brisk
	timing.Budget = 100 * time.Millisecond
	f := setup(t, timing, faultydriver.Config{})
	f.faulty.Stop()
	err := stage(t.Context(), f)
	want := `stage volume "x" (external id "vol-x") on driver "faulty": the driver cannot be reached at ` +
		f.driver.Endpoint + `: dial unix `
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "no such file or directory") ||
		!strings.Contains(err.Error(), `see "pannier driver status faulty"`) {
		t.Errorf("got %v", err)
	}
}

// TestEndpoints checks the forms of an endpoint.
func TestEndpoints(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	path := strings.TrimPrefix(f.driver.Endpoint, "unix://")
	for endpoint, code := range map[string]codes.Code{
		"unix://" + path:               codes.OK,
		"unix:" + path:                 codes.OK,
		path:                           codes.OK,
		"":                             codes.InvalidArgument,
		"csi.sock":                     codes.InvalidArgument,
		"tcp://[::1]:1":                codes.InvalidArgument,
		"unix://x/y":                   codes.InvalidArgument,
		"/" + strings.Repeat("x", 107): codes.InvalidArgument,
	} {
		if _, err := f.bridge.Probe(t.Context(), storage.Driver{ID: "d", Endpoint: endpoint}, 0); status.Code(err) != code {
			t.Errorf("%q: got %v, want %s", endpoint, err, code)
		}
	}
}

func TestClosedBridge(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Always("NodeStageVolume", faultydriver.Hang())
	done := inBackground(func() error { return stage(t.Context(), f) })
	f.faulty.AwaitCalls("NodeStageVolume", 1)
	check.NoError(t, f.bridge.Close())
	if err := await(t, done); err == nil {
		t.Error("a call in flight survived Close")
	}
	if err := stage(t.Context(), f); status.Code(err) != codes.Unavailable {
		t.Errorf("after Close: %v", err)
	}
}
