package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// answers are one code after which a call is repeated at once, one that is the success of an undo, and one that gRPC
// does not define. What csi-bridge makes of every code is in its own tests.
var answers = []codes.Code{codes.Unavailable, codes.NotFound, undefined}

const undefined codes.Code = 99

// passes reports whether a call is repeated at once after a code (docs/drivers.md).
func passes(code codes.Code) bool { return code == codes.Unavailable }

// The calls of a start and of a stop, and those calls of a stop for which NotFound counts as success.
var (
	startCalls = []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"}
	stopCalls  = []string{"NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"}
)

// Each call of a start and of a stop returns three codes once. Codes that are retried at once are not visible.
// Any other code fails a start, which is undone, and delays a stop, which finishes by itself. After that a
// start and a stop work.
func TestCodesAtEachCallOfAWorkload(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t)
	caller, all := h.Client(), cases{t: t}
	for _, rpc := range append(slices.Clone(startCalls), stopCalls...) {
		for _, code := range answers {
			id := fmt.Sprintf("%s-%d", rpc, code)
			all.run(rpc+" answers "+code.String(), func() error {
				if err := register(t.Context(), caller, d, id, "single-node-writer"); err != nil {
					return err
				}
				return codeAt(t.Context(), d, rpc, code, id, func(ctx context.Context) error { return start(ctx, caller, id, id) },
					func(ctx context.Context) error { return stop(ctx, caller, id) })
			})
		}
	}
	all.wg.Wait()
	h.NothingInUse()
	lawful(t, d)
}

// codeAt makes one call of a volume's workload fail, twice if it is repeated.
func codeAt(ctx context.Context, d *faultydriver.Driver, rpc string, code codes.Code, volume string, start,
	stop func(context.Context) error,
) error {
	starting := slices.Contains(startCalls, rpc)
	calls, fails := 3, false
	switch {
	case starting && !passes(code):
		calls, fails = 1, true
	case !starting && code == codes.NotFound:
		calls = 1
	}
	d.ScriptVolume(volume, rpc, slices.Repeat([]faultydriver.Fault{faultydriver.Code(code, "as it was told")},
		max(calls-1, 1))...)
	err := start(ctx)
	switch {
	case fails && connect.CodeOf(err) != shownCode(code):
		return fmt.Errorf("the start returned code %s (%w), want %s", connect.CodeOf(err), err, shownCode(code))
	case !fails && err != nil:
		return fmt.Errorf("the start: %w", err)
	case !fails:
		if err := stop(ctx); err != nil {
			return fmt.Errorf("the stop: %w", err)
		}
	}
	if n := callsOn(d, rpc, volume); n != calls {
		return fmt.Errorf("it was called %d times, want %d", n, calls)
	}
	if err := start(ctx); err != nil {
		return fmt.Errorf("a start afterwards: %w", err)
	}
	return stop(ctx)
}

// shownCode is the API's code for a driver's code.
func shownCode(code codes.Code) connect.Code {
	if code == undefined {
		return connect.CodeUnknown
	}
	return connect.Code(code)
}

// Each call that creates, changes or removes a volume or a snapshot returns three codes once. The caller gets
// the code unless the call was retried; the volume is then unchanged, and repeating the call works.
func TestCodesAtEachCallOfAVolume(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t)
	c, all := h.Client(), cases{t: t}
	ops := []operation{
		{"CreateVolume", func(ctx context.Context, volume string) error {
			s := spec(volume+"-made", "single-node-writer")
			s.ExternalId = ""
			_, err := c.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: s})
			return err
		}},
		{"ValidateVolumeCapabilities", func(ctx context.Context, volume string) error {
			return register(ctx, c, d, volume+"-too", "single-node-writer")
		}},
		{"DeleteVolume", func(ctx context.Context, volume string) error {
			_, err := c.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{Id: volume})
			return err
		}},
		{"ControllerExpandVolume", func(ctx context.Context, volume string) error { return expand(ctx, c.Volumes, volume) }},
		{"CreateSnapshot", func(ctx context.Context, volume string) error {
			_, err := c.Volumes.CreateSnapshot(ctx, &hostv1.CreateSnapshotRequest{VolumeId: volume, Name: volume})
			return err
		}},
		{"DeleteSnapshot", func(ctx context.Context, volume string) error {
			_, err := c.Volumes.DeleteSnapshot(ctx, &hostv1.DeleteSnapshotRequest{PluginId: "faulty", SnapshotId: volume})
			return err
		}},
	}
	mounted := operation{"NodeExpandVolume", func(ctx context.Context, volume string) error {
		if err := start(ctx, c, volume, volume); err != nil {
			return err
		}
		return errors.Join(expand(ctx, c.Volumes, volume), stop(ctx, c, volume))
	}}
	for _, op := range append(ops, mounted) { // before any call fails
		for _, code := range answers {
			id := fmt.Sprintf("%s-%d", op.rpc, code)
			if op.rpc == "DeleteSnapshot" {
				d.AddSnapshot(id, id)
			}
			all.run("register "+id, func() error { return register(t.Context(), c, d, id, "single-node-writer") })
		}
	}
	all.wg.Wait()
	for _, op := range ops {
		all.run(op.rpc, func() error { return op.withEachCode(t.Context(), d) })
	}
	all.wg.Wait()
	// calls ControllerExpandVolume too
	all.run(mounted.rpc, func() error { return mounted.withEachCode(t.Context(), d) })
	all.wg.Wait()
	h.NothingInUse()
	lawful(t, d)
}

// operation is a call of the API that makes an RPC for a volume.
type operation struct {
	rpc  string
	call func(ctx context.Context, volume string) error
}

func (op operation) withEachCode(ctx context.Context, d *faultydriver.Driver) error {
	var errs []error
	for _, code := range answers {
		if err := op.answered(ctx, d, code); err != nil {
			errs = append(errs, fmt.Errorf("answers %s: %w", code, err))
		}
	}
	return errors.Join(errs...)
}

// succeeds reports whether a code is not visible to the caller.
func (op operation) succeeds(code codes.Code) bool {
	switch op.rpc {
	case "DeleteVolume", "DeleteSnapshot":
		return passes(code) || code == codes.NotFound
	default:
		return passes(code)
	}
}

func expand(ctx context.Context, c hostv1connect.VolumeServiceClient, volume string) error {
	_, err := c.ExpandVolume(ctx, &hostv1.ExpandVolumeRequest{Id: volume, CapacityMin: 1 << 20})
	return err
}

// answered makes the call while the RPC fails once, or twice if it is retried.
func (op operation) answered(ctx context.Context, d *faultydriver.Driver, code codes.Code) error {
	volume := fmt.Sprintf("%s-%d", op.rpc, code)
	fails, calls := 1, 1
	if passes(code) {
		fails, calls = 2, 3
	}
	before := len(d.Calls(op.rpc))
	d.Script(op.rpc, slices.Repeat([]faultydriver.Fault{faultydriver.Code(code, "as it was told")}, fails)...)
	err := op.call(ctx, volume)
	if n := len(d.Calls(op.rpc)) - before; n != calls {
		return fmt.Errorf("it was called %d times, want %d", n, calls)
	}
	if op.succeeds(code) {
		return err
	}
	if connect.CodeOf(err) != shownCode(code) {
		return fmt.Errorf("the call returned code %s (%w), want %s", connect.CodeOf(err), err, shownCode(code))
	}
	if err := op.call(ctx, volume); err != nil {
		return fmt.Errorf("the same call afterwards: %w", err)
	}
	return nil
}
