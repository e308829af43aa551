package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/pannier/pannier/sdk/api"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// The driver hangs in each call of a start and of a stop. The caller returns at its own deadline;
// the host keeps the claim and the mounts, and finishes the request as soon as the driver answers
// again.
func TestDriverHangs(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t)
	c, all := h.Client(), cases{t: t}
	for _, rpc := range slices.Concat(startCalls, stopCalls) {
		all.run(rpc, func() error {
			if err := register(t.Context(), c, d, rpc, "single-node-writer"); err != nil {
				return err
			}
			asked := start
			if slices.Contains(stopCalls, rpc) {
				asked = func(ctx context.Context, c *api.Client, id string, _ ...string) error { return stop(ctx, c, id) }
				if err := start(t.Context(), c, rpc, rpc); err != nil {
					return err
				}
			}
			d.ScriptVolume(rpc, rpc, faultydriver.Hang())
			// On a machine that stalls, the deadline may pass before the call reaches the driver:
			// the request is repeated, and joins the one in progress.
			const patience, slack = 300 * time.Millisecond, 20 * time.Second
			for called := false; !called; called = callsOn(d, rpc, rpc) > 0 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				began := time.Now()
				err := asked(ctx, c, rpc, rpc)
				cancel()
				if took := time.Since(began); connect.CodeOf(err) != connect.CodeDeadlineExceeded || took > patience+slack {
					return fmt.Errorf("it returned after %s: %w", took, err)
				}
			}
			return nil
		})
	}
	all.wg.Wait()
	s, err := h.Status()
	if err != nil {
		t.Fatal(err)
	}
	if got := s.GetClaims(); got != 6 {
		t.Errorf("%d claims while the driver hangs, want all 6", got)
	}
	d.Restart()
	for _, rpc := range slices.Concat(startCalls, stopCalls) {
		all.run(rpc, func() error {
			if slices.Contains(startCalls, rpc) { // it joins the start in progress
				return startAndStop(t.Context(), c, rpc, rpc)
			}
			return stop(t.Context(), c, rpc)
		})
	}
	all.wg.Wait()
	h.NothingInUse()
	lawful(t, d)
}

// A stop of a start that hangs waits for the driver, as long as a call may take and settle_time: then it is released.
func TestStopOfAStartThatHangs(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t, `settle_time = "2s"`, `timeout {`, `  stage   = "3s"`, `  publish = "3s"`, `}`)
	c, all := h.Client(), cases{t: t}
	for _, rpc := range startCalls {
		all.run(rpc, func() error {
			if err := register(t.Context(), c, d, rpc, "single-node-writer"); err != nil {
				return err
			}
			d.ScriptVolume(rpc, rpc, faultydriver.Hang())
			started := make(chan error, 1)
			go func() { started <- start(t.Context(), c, rpc, rpc) }()
			if err := arrived(d, rpc, rpc, 1); err != nil {
				return err
			}
			began := time.Now()
			if err := stop(t.Context(), c, rpc); err != nil {
				return err
			}
			// An attach is waited for for 30 s.
			if took := time.Since(began); took > 50*time.Second {
				return fmt.Errorf("the stop took %s", took)
			}
			if err := <-started; err == nil || !strings.Contains(err.Error(), "given up") {
				return fmt.Errorf("the start returned %w", err)
			}
			return startAndStop(t.Context(), c, rpc, rpc)
		})
	}
	all.wg.Wait()
	h.NothingInUse()
	lawful(t, d)
}

// The driver performs each call and then drops the connection, or dies. The call is retried, and takes effect
// once.
func TestDriverDropsTheConnection(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t)
	c := h.Client()
	for _, rpc := range slices.Concat(startCalls, stopCalls) {
		if err := register(t.Context(), c, d, rpc, "single-node-writer"); err != nil {
			t.Fatal(err)
		}
		// The faults run one at a time, because dropping the connections affects all calls.
		for _, fault := range []faultydriver.Fault{faultydriver.Drop(), faultydriver.Crash()} {
			d.ScriptVolume(rpc, rpc, fault)
			before := callsOn(d, rpc, rpc)
			done := make(chan error, 1)
			go func() { done <- startAndStop(t.Context(), c, rpc, rpc) }()
			if fault.String() == "crash" {
				h.Eventually("the driver has crashed", func() error {
					if d.Running() { // do not restart before the fault has run; it would take the new driver down
						return errors.New("it runs")
					}
					return nil
				})
				d.Restart()
			}
			if err := <-done; err != nil {
				t.Errorf("%s at %s: %v", fault, rpc, err)
			}
			if n := callsOn(d, rpc, rpc) - before; n != 2 {
				t.Errorf("%s at %s: it was called %d times, want 2", fault, rpc, n)
			}
			if at := d.AttachedTo(rpc); len(at) > 0 {
				t.Errorf("%s at %s: the volume is still attached to %q", fault, rpc, at)
			}
		}
	}
	h.NothingInUse()
	lawful(t, d)
}

// The driver loses its state while its volumes are mounted. It answers NotFound, and unmounts nothing. The
// host unmounts the remaining mounts and releases the claims.
func TestDriverLosesItsState(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(resp proto.Message) faultydriver.Fault{
		"it says that it knows nothing": func(proto.Message) faultydriver.Fault {
			return faultydriver.Code(codes.NotFound, "never heard of it")
		},
		"it says that all is done": faultydriver.Lie,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, d, _ := faulty(t)
			c := h.Client()
			for _, id := range []string{"a", "b"} {
				if err := register(t.Context(), c, d, id, "single-node-multi-writer"); err != nil {
					t.Fatal(err)
				}
			}
			for _, w := range []string{"one", "two"} {
				if err := start(t.Context(), c, w, "a", "b"); err != nil {
					t.Fatal(err)
				}
			}
			d.Stop()
			d.Forget()
			d.Always("NodeUnpublishVolume", fault(&csi.NodeUnpublishVolumeResponse{}))
			d.Always("NodeUnstageVolume", fault(&csi.NodeUnstageVolumeResponse{}))
			d.Always("ControllerUnpublishVolume", fault(&csi.ControllerUnpublishVolumeResponse{}))
			d.Restart()
			for _, w := range []string{"one", "two"} {
				if err := stop(t.Context(), c, w); err != nil {
					t.Errorf("stop %s: %v", w, err)
				}
			}
			h.NothingInUse()
			if err := start(t.Context(), c, "one", "a"); connect.CodeOf(err) != connect.CodeNotFound {
				t.Errorf("a start with a deleted volume returned %v", err)
			}
			for _, rpc := range stopCalls {
				d.Always(rpc, faultydriver.Fault{})
			}
			d.AddVolume("a")
			if err := startAndStop(t.Context(), c, "one", "a"); err != nil {
				t.Error(err)
			}
			h.NothingInUse()
		})
	}
}
