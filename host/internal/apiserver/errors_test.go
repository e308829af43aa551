package apiserver

import (
	"context"
	"errors"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/secrets/rotation"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/apiserver/nodes"
	"github.com/pannier/pannier/host/internal/apiserver/volumes"
	"github.com/pannier/pannier/host/internal/consul/services"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/peer/watcher"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/specs"
)

// codesOfErrors are the codes that callers see.
var codesOfErrors = []struct {
	code connect.Code
	errs []error
}{
	// Retryable errors come first: they wrap the reason.
	{connect.CodeUnavailable, []error{
		command.ErrUncertain, command.ErrNotLeader, command.ErrClosed, command.ErrStopped,
		workload.ErrClosed, workload.ErrNotReconciled, lease.ErrNoLease, secrets.ErrNoKey, rotation.ErrNotEverywhere,
		claim.ErrOldKey, drivers.ErrClosed, drivers.ErrUnhealthy, supervisor.ErrClosed, call.ErrStopping,
	}},
	{connect.CodeResourceExhausted, []error{command.ErrDiskFull, journal.ErrDiskFull}},
	{connect.CodeNotFound, []error{
		claim.ErrVolumeNotFound, claim.ErrClaimNotFound, claim.ErrWorkloadNotFound, claim.ErrNodeNotFound,
		claim.ErrDriverNotFound,
		drivers.ErrNotFound, workload.ErrNotFound, watcher.ErrNoClaims, supervisor.ErrUnknown,
		ledger.ErrPolicyNotFound, ledger.ErrRoleNotFound, ledger.ErrTokenNotFound,
	}},
	{connect.CodeNotFound, []error{discovery.ErrNoMember, cluster.ErrNoPeer, nodes.ErrUnknownKey}},
	{connect.CodeInvalidArgument, []error{
		acl.ErrInvalid, claim.ErrInvalid, command.ErrTooLarge, cluster.ErrBadBackup, drivers.ErrInvalid, specs.ErrInvalid,
	}},
	{connect.CodeUnauthenticated, []error{ledger.ErrUnknownToken, ledger.ErrExpired}},
	{connect.CodeFailedPrecondition, []error{
		claim.ErrNodeInUse, claim.ErrNodeSecret, cluster.ErrPeerAlive,
		nodes.ErrNodeUp, call.ErrAlone, nodes.ErrUsed, nodes.ErrAlive, nodes.ErrLastServer, discovery.ErrNotEncrypted,
	}},
	{connect.CodeAlreadyExists, []error{volumes.ErrDefined}},
	{connect.CodeFailedPrecondition, []error{
		ledger.ErrBootstrapped, devices.ErrTooFew, claim.ErrHeld, claim.ErrModes, claim.ErrReadOnly, claim.ErrUnsupported,
		claim.ErrConflict, claim.ErrVolumeInUse, claim.ErrBackwards,
		claim.ErrIneligible, claim.ErrCycle, claim.ErrUnreachable, drivers.ErrDeclared, drivers.ErrInUse,
		workload.ErrConflict, services.ErrUnknownConsul,
		supervisor.ErrNoSwap, supervisor.ErrNoCopy, supervisor.ErrPinned,
	}},
}

func TestErrorCodes(t *testing.T) {
	for _, m := range codesOfErrors {
		for _, err := range m.errs {
			if got := connect.CodeOf(call.WithCode(t.Context(), errors.Join(errors.New("context"), err))); got != m.code {
				t.Errorf("%v has %v, want %v", err, got, m.code)
			}
		}
	}
	stopping, cancel := context.WithCancelCause(t.Context())
	cancel(call.ErrStopping)
	for want, err := range map[connect.Code]error{
		connect.CodeResourceExhausted: driverSays(codes.ResourceExhausted, "full"),
		connect.CodeDeadlineExceeded:  context.DeadlineExceeded,
		connect.CodeUnknown:           errors.New("some error"),
	} {
		if got := connect.CodeOf(call.WithCode(stopping, err)); got != want {
			t.Errorf("%v has %v, want %v", err, got, want)
		}
	}
	if got := connect.CodeOf(call.WithCode(stopping, context.Canceled)); got != connect.CodeUnavailable {
		t.Errorf("cut off by the agent's end: %v", got)
	}
	if got := connect.CodeOf(call.WithCode(t.Context(), context.Canceled)); got != connect.CodeCanceled {
		t.Errorf("cut off by the caller: %v", got)
	}
	if call.WithCode(t.Context(), nil) != nil {
		t.Error("an error out of nothing")
	}
}
