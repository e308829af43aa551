package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	ledgeracl "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/consul/services"
	"github.com/pannier/pannier/host/internal/csi/controllers"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/devices"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/leader/watcher"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/secrets"
	"github.com/pannier/pannier/host/internal/secrets/rotation"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/journal"
)

// mapping gives the sentinels of the packages that do the work their codes. The
// first that an error matches counts.
var mapping = []struct {
	code connect.Code
	errs []error
}{
	// What can be tried again comes first: it wraps the reason.
	{connect.CodeUnavailable, []error{
		command.ErrUncertain, command.ErrNotLeader, command.ErrClosed, command.ErrStopped,
		workload.ErrClosed, workload.ErrNotReconciled, lease.ErrNoLease, secrets.ErrNoKey, rotation.ErrNotEverywhere, claim.ErrOldKey, drivers.ErrClosed, drivers.ErrUnhealthy, supervisor.ErrClosed, errStopping,
	}},
	{connect.CodeResourceExhausted, []error{command.ErrDiskFull, journal.ErrDiskFull}},
	{connect.CodeNotFound, []error{
		claim.ErrVolumeNotFound, claim.ErrClaimNotFound, claim.ErrWorkloadNotFound, claim.ErrNodeNotFound, claim.ErrDriverNotFound,
		drivers.ErrNotFound, workload.ErrNotFound, watcher.ErrNoClaims, supervisor.ErrUnknown,
		ledgeracl.ErrPolicyNotFound, ledgeracl.ErrRoleNotFound, ledgeracl.ErrTokenNotFound,
	}},
	{connect.CodeNotFound, []error{discovery.ErrNoMember, cluster.ErrNoPeer, errUnknownKey}},
	{connect.CodeInvalidArgument, []error{
		acl.ErrInvalid, claim.ErrInvalid, command.ErrTooLarge, cluster.ErrBadBackup, drivers.ErrInvalid, workload.ErrInvalid,
	}},
	{connect.CodeUnauthenticated, []error{acl.ErrUnknownToken, acl.ErrExpired}},
	{connect.CodeFailedPrecondition, []error{
		claim.ErrNodeInUse, claim.ErrNodeSecret, command.ErrLevel, cluster.ErrPeerAlive,
		errNodeUp, errAlone, errUsed, errAlive, errLastServer, discovery.ErrNotEncrypted,
	}},
	{connect.CodeAlreadyExists, []error{errDefined}},
	{connect.CodeFailedPrecondition, []error{
		ledgeracl.ErrBootstrapped, devices.ErrTooFew, claim.ErrHeld, claim.ErrModes, claim.ErrReadOnly, claim.ErrUnsupported, claim.ErrConflict, claim.ErrVolumeInUse, claim.ErrBackwards,
		claim.ErrIneligible, claim.ErrCycle, claim.ErrUnreachable, drivers.ErrDeclared, drivers.ErrInUse, workload.ErrConflict, controllers.ErrOffline, services.ErrUnknownConsul,
		supervisor.ErrNoSwap, supervisor.ErrNoCopy, supervisor.ErrPinned,
	}},
}

// withCode gives the error of a call the code that callers see. It is the one
// place for that: an error of a driver keeps its own code.
func withCode(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.As(err, new(*connect.Error)):
		return err
	case codeOf(err) == connect.CodeCanceled && errors.Is(context.Cause(ctx), errStopping):
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("%w: %w", errStopping, err))
	default:
		return connect.NewError(codeOf(err), err)
	}
}

func codeOf(err error) connect.Code {
	for _, m := range mapping {
		if slices.ContainsFunc(m.errs, func(target error) bool { return errors.Is(err, target) }) {
			return m.code
		}
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
		return connect.Code(s.Code()) // the numbers are the same
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	default:
		return connect.CodeUnknown
	}
}

// invalid is a refusal of a request that can never be met.
func invalid(object, field, problem string) error {
	return &claim.FieldError{Object: object, Field: field, Problem: problem}
}
