package bridge

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/plugins/csi-bridge/internal/driver"
	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// everyCode lists the codes that a driver can answer, one that gRPC does not define among them, and whether the policy
// retries the call.
var everyCode = map[codes.Code]bool{
	codes.Unavailable:        true,
	codes.DeadlineExceeded:   true,
	codes.ResourceExhausted:  true,
	codes.Aborted:            true,
	codes.Canceled:           false,
	codes.Unknown:            false,
	codes.InvalidArgument:    false,
	codes.NotFound:           false,
	codes.AlreadyExists:      false,
	codes.PermissionDenied:   false,
	codes.FailedPrecondition: false,
	codes.OutOfRange:         false,
	codes.Unimplemented:      false,
	codes.Internal:           false,
	codes.DataLoss:           false,
	codes.Unauthenticated:    false,
	99:                       false,
}

// fine has the error codes that count as success, by RPC.
var fine = map[string]codes.Code{
	"ControllerUnpublishVolume":  codes.NotFound,
	"NodeUnstageVolume":          codes.NotFound,
	"NodeUnpublishVolume":        codes.NotFound,
	"DeleteVolume":               codes.NotFound,
	"DeleteSnapshot":             codes.NotFound,
	"DeleteVolumeGroupSnapshot":  codes.NotFound,
	"ValidateVolumeCapabilities": codes.Unimplemented,
}

// TestEveryCallByEveryCode answers every RPC once with every code.
func TestEveryCallByEveryCode(t *testing.T) {
	for _, op := range operations {
		t.Run(op.rpc, func(t *testing.T) {
			t.Parallel()
			f := setup(t, brisk, faultydriver.Config{})
			for code, retried := range everyCode {
				if code == codes.Aborted && (op.rpc == "ListVolumes" || op.rpc == "ListSnapshots") {
					retried = false
				}
				before := len(f.faulty.Calls(op.rpc))
				f.faulty.Script(op.rpc, faultydriver.Code(code, "as scripted"))
				err := op.call(t.Context(), f)
				calls := len(f.faulty.Calls(op.rpc)) - before
				switch {
				case retried && (err != nil || calls != 2):
					t.Errorf("%s: %d calls, error %v; want 2 calls and none", code, calls, err)
				case !retried && calls != 1:
					t.Errorf("%s: %d calls, want 1", code, calls)
				case !retried && fine[op.rpc] == code && err != nil:
					t.Errorf("%s: %v, want success", code, err)
				case !retried && fine[op.rpc] != code && status.Code(err) != code:
					t.Errorf("%s: got %s: %v", code, status.Code(err), err)
				case !retried && err != nil && !strings.Contains(err.Error(), op.rpc+" answered "+code.String()+": as scripted"):
					t.Errorf("%s: the message does not contain the driver's answer: %v", code, err)
				case !retried && err != nil && fmt.Sprintf("%T", err) != fmt.Sprintf("%T", sdk.Relayed(err)):
					t.Errorf("%s: it counts as an error of the bridge: a %T", code, err)
				}
			}
		})
	}
}

// TestQuestionsAreAskedOnce answers the RPCs of the fingerprint with every code, and checks that none is
// retried.
func TestQuestionsAreAskedOnce(t *testing.T) {
	for _, rpc := range []string{
		"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities", "GroupControllerGetCapabilities",
		"NodeGetCapabilities", "NodeGetInfo",
	} {
		t.Run(rpc, func(t *testing.T) {
			t.Parallel()
			for code := range everyCode {
				f := setup(t, brisk, faultydriver.Config{})
				f.faulty.Always(rpc, faultydriver.Code(code, "as scripted"))
				fp := firstFingerprint(t, f)
				if n := len(f.faulty.Calls(rpc)); n != 1 {
					t.Errorf("%s: %d calls, want 1", code, n)
				}
				optional := code == codes.Unimplemented && (strings.HasPrefix(rpc, "Node") || strings.HasPrefix(rpc, "Group") ||
					strings.HasPrefix(rpc, "Controller"))
				if fp.Healthy != optional {
					t.Errorf("%s: healthy is %v: %q", code, fp.Healthy, fp.Message)
				}
				if !optional && !strings.Contains(fp.Message, rpc+" answered "+code.String()) {
					t.Errorf("%s: message %q", code, fp.Message)
				}
			}
		})
	}
}

// TestRetriesGoOnWithTheSameArguments uses a driver that is busy several times.
func TestRetriesGoOnWithTheSameArguments(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	busy := faultydriver.Code(codes.Aborted, "an operation is pending")
	f.faulty.Script("CreateVolume", busy, busy, busy, busy, faultydriver.Drop(), faultydriver.Code(codes.Unavailable, ""),
		faultydriver.Crash())
	created := inBackground(func() error {
		_, err := f.bridge.Create(t.Context(), f.driver,
			storage.CreateRequest{Name: "db", CapacityMin: 7, Capabilities: []storage.Capability{fileSystem}})
		return err
	})
	f.faulty.AwaitCalls("CreateVolume", 7)
	f.faulty.Restart()
	check.NoError(t, await(t, created))
	calls := f.faulty.Calls("CreateVolume")
	if len(calls) != 8 {
		t.Errorf("%d calls, want 8", len(calls))
	}
	for _, c := range calls {
		if !proto.Equal(c.Request, calls[0].Request) {
			t.Errorf("a call has other arguments than the first: %v", c.Request)
		}
	}
	if n := len(f.faulty.Volumes()); n != 2 {
		t.Errorf("%d volumes, want vol-x and one new one", n)
	}
}

// TestBackoffGrows checks the times at which a refused call was retried.
func TestBackoffGrows(t *testing.T) {
	timing := brisk
	timing.Backoff, timing.BackoffMax = 20*time.Millisecond, 80*time.Millisecond
	f := setup(t, timing, faultydriver.Config{})
	busy := faultydriver.Code(codes.Unavailable, "busy")
	f.faulty.Script("NodeStageVolume", busy, busy, busy, busy)
	check.NoError(t, stage(t.Context(), f))
	calls := f.faulty.Calls("NodeStageVolume")
	for i, atLeast := range []int64{10, 20, 40, 40} { // half of 20, 40, 80, 80
		if gap := calls[i+1].Began.Sub(calls[i].Began); gap.Milliseconds() < atLeast {
			t.Errorf("wait %d was %s, want %dms or more", i+1, gap, atLeast)
		}
	}
}

// TestDeadlines checks the deadlines of the real policy as the driver receives them.
func TestDeadlines(t *testing.T) {
	f := setup(t, driver.DefaultTiming, faultydriver.Config{})
	for _, op := range operations {
		if err := op.call(t.Context(), f); err != nil {
			t.Fatalf("%s: %v", op.rpc, err)
		}
		if op.rpc == "DeleteVolume" {
			f.faulty.AddVolume("vol-x")
		}
	}
	if _, err := f.bridge.Probe(t.Context(), f.driver, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.bridge.Probe(t.Context(), f.driver, 11*time.Second); err != nil {
		t.Fatal(err)
	}
	firstFingerprint(t, f)
	probes := []time.Duration{5 * time.Second, 11 * time.Second, 30 * time.Second}
	for _, c := range f.faulty.Calls("") {
		want := 30 * time.Second
		switch c.RPC {
		case "NodeStageVolume", "NodePublishVolume":
			want = 2 * time.Minute
		case "Probe":
			want, probes = probes[0], probes[1:]
		case "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities", "GroupControllerGetCapabilities",
			"NodeGetCapabilities", "NodeGetInfo":
			want = 5 * time.Second
		}
		// Part of the time may be over when the call arrives.
		if got := c.Deadline.Sub(c.Began); got > want || got <= want-5*time.Second {
			t.Errorf("%s had %s to answer, want %s", c.RPC, got, want)
		}
	}
}

// TestHungAttemptIsRepeated uses a driver that hangs once. The next attempt may take all the remaining time.
func TestHungAttemptIsRepeated(t *testing.T) {
	timing := brisk
	timing.Attempt = 300 * time.Millisecond
	f := setup(t, timing, faultydriver.Config{})
	f.faulty.Script("NodeUnstageVolume", faultydriver.Hang(), faultydriver.Delay(2*timing.Attempt))
	check.NoError(t, f.bridge.Unstage(t.Context(), f.driver, f.volume(), "/staging"))
	calls := f.faulty.Calls("NodeUnstageVolume")
	if len(calls) != 2 {
		t.Fatalf("%d calls, want 2", len(calls))
	}
	if got := calls[1].Deadline.Sub(calls[0].Began); got < timing.Budget/2 || got > timing.Budget+timing.Budget/2 {
		t.Errorf("the second attempt ends %s after the first began, want about %s", got, timing.Budget)
	}
}

// TestCallThatMountsIsNotCutOff uses a driver that needs longer than an attempt, and than the budget of other calls,
// but not longer than its caller waits. A call that is cut off may go on in the driver, and mount when nobody expects
// it.
func TestCallThatMountsIsNotCutOff(t *testing.T) {
	timing := brisk
	timing.Attempt, timing.Budget = 100*time.Millisecond, 200*time.Millisecond
	f := setup(t, timing, faultydriver.Config{})
	f.faulty.Script("NodeStageVolume", faultydriver.Delay(2*timing.Budget))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	check.NoError(t, stage(ctx, f))
	calls := f.faulty.Calls("NodeStageVolume")
	if len(calls) != 1 {
		t.Fatalf("%d calls, want one", len(calls))
	}
	deadline, _ := ctx.Deadline()
	if left := deadline.Sub(calls[0].Deadline); left <= 0 || left > patience/4 {
		t.Errorf("the call ends %s before its caller does", left)
	}
}

// TestBudgetIsSpent uses a driver that never succeeds. The call ends with the budget and returns the driver's
// code, unless the driver may have done the work.
func TestBudgetIsSpent(t *testing.T) {
	for name, tc := range map[string]struct {
		fault faultydriver.Fault
		rpc   string
		code  codes.Code
		text  string
	}{
		"busy": {
			faultydriver.Code(codes.Aborted, "pending"), "NodeStageVolume", codes.Aborted,
			"another operation pending",
		},
		"full": {
			faultydriver.Code(codes.ResourceExhausted, "full"), "CreateVolume", codes.ResourceExhausted,
			"has run out of space",
		},
		"away": {faultydriver.Code(codes.Unavailable, "not now"), "NodeStageVolume", codes.Unavailable, "not now"},
		"hung": {faultydriver.Hang(), "NodeUnstageVolume", codes.DeadlineExceeded, "the outcome is unknown"},
		"late": {
			faultydriver.Code(codes.DeadlineExceeded, "late"), "NodeStageVolume", codes.DeadlineExceeded,
			"the outcome is unknown",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timing := brisk
			timing.Budget, timing.Attempt = 750*time.Millisecond, 200*time.Millisecond
			f := setup(t, timing, faultydriver.Config{})
			f.faulty.Always(tc.rpc, tc.fault)
			i := slices.IndexFunc(operations, func(o operation) bool { return o.rpc == tc.rpc })
			// On a slow machine, one attempt may use up the whole budget, or the budget may end during an
			// attempt or during an earlier request. The test is repeated then.
			for tries, exact := 0, false; !exact || len(f.faulty.Calls(tc.rpc)) <= tries; tries++ {
				if tries == 10 {
					t.Fatalf("%d calls with %d budgets, want retries, and %s with %q", len(f.faulty.Calls(tc.rpc)), tries, tc.code,
						tc.text)
				}
				started := time.Now()
				err := operations[i].call(t.Context(), f)
				if took := time.Since(started); took > timing.Budget+patience {
					t.Errorf("took %s with a budget of %s", took, timing.Budget)
				}
				exact = status.Code(err) == tc.code && strings.Contains(err.Error(), tc.text)
				cut := status.Code(err) == codes.DeadlineExceeded && (strings.Contains(err.Error(), " was not answered in time") ||
					strings.Contains(err.Error(), " answered DeadlineExceeded: context deadline exceeded") ||
					strings.Contains(err.Error(), "the outcome is unknown"))
				if !exact && !cut {
					t.Fatalf("got %v, want %s with %q", err, tc.code, tc.text)
				}
			}
		})
	}
}

// TestDriverPanics lets a handler panic. The driver survives, and the call is not retried.
func TestDriverPanics(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Script("NodeStageVolume", faultydriver.Panic("index out of range"))
	err := stage(t.Context(), f)
	if status.Code(err) != codes.Internal ||
		!strings.Contains(err.Error(), "panic: index out of range; the driver's log has more") {
		t.Errorf("got %v", err)
	}
	if err := stage(t.Context(), f); err != nil {
		t.Error(err)
	}
}

// TestOneCallPerVolume runs calls on two volumes in parallel.
func TestOneCallPerVolume(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	var all []<-chan error
	for _, op := range operations {
		f.faulty.Always(op.rpc, faultydriver.Delay(3*time.Millisecond))
		if op.rpc != "DeleteVolume" {
			for range 3 {
				all = append(all, inBackground(func() error { return op.call(t.Context(), f) }))
			}
		}
	}
	for _, done := range all {
		if err := await(t, done); err != nil {
			t.Error(err)
		}
	}
	for _, key := range []string{"vol-x", "new"} {
		if n := f.faulty.MostInFlight(key); n != 1 {
			t.Errorf("%d calls on %s at one time", n, key)
		}
	}

	f.faulty.AddVolume("vol-y")
	release := make(chan struct{})
	f.faulty.Script("NodeStageVolume", faultydriver.Until(release), faultydriver.Until(release))
	before := len(f.faulty.Calls("NodeStageVolume"))
	first := inBackground(func() error { return stage(t.Context(), f) })
	second := inBackground(func() error {
		v := f.volume()
		v.ExternalID = "vol-y"
		return f.bridge.Stage(t.Context(), f.driver, storage.StageRequest{Volume: v})
	})
	f.faulty.AwaitCalls("NodeStageVolume", before+2) // neither call waits for the other
	close(release)
	for _, done := range []<-chan error{first, second} {
		if err := await(t, done); err != nil {
			t.Error(err)
		}
	}
}
