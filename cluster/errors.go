package cluster

import (
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

// What can go wrong on the way to the ledger.
var (
	// ErrNotLeader: another server leads, or none. Nothing was changed.
	ErrNotLeader = command.ErrNotLeader
	// ErrUncertain: the command may or may not be applied, now or in a moment: the
	// caller gave up waiting, or leadership was lost. Commands may be repeated.
	ErrUncertain = command.ErrUncertain
	// ErrClosed: the node is closed.
	ErrClosed = state.ErrClosed
	// ErrStopped: a fault of this server's disk, or an entry of a newer version,
	// stopped the ledger here. Its cause is in the text; a restart tries again.
	ErrStopped = state.ErrStopped
	// ErrDiskFull: the ledger's disk is nearly full. Nothing was changed.
	ErrDiskFull = command.ErrDiskFull
	// ErrLevel: a server of the cluster is too old for the command. Nothing was changed.
	ErrLevel = command.ErrLevel
	// ErrTooLarge: the command is bigger than command.MaxSize.
	ErrTooLarge = command.ErrTooLarge
)

// What the ledger refuses: those of cluster/claim, under the name that callers of
// this package look for.
var (
	// ErrHeld: other claims stand in the way (*claim.Refusal names them).
	ErrHeld = claim.ErrHeld
	// ErrModes: the volume is in use with other modes (*claim.Refusal).
	ErrModes = claim.ErrModes
	// ErrReadOnly: the access mode never allows a write claim (*claim.Refusal).
	ErrReadOnly = claim.ErrReadOnly
	// ErrUnsupported: the volume was not registered with the modes (*claim.Refusal).
	ErrUnsupported = claim.ErrUnsupported
	// ErrConflict: the same claim or workload is there with other arguments.
	ErrConflict = claim.ErrConflict
	// ErrInvalid: a field is missing or malformed (*claim.FieldError names it).
	ErrInvalid = claim.ErrInvalid
	// ErrBackwards: a claim only moves forward on its way out.
	ErrBackwards = claim.ErrBackwards
	// ErrVolumeNotFound: the volume is not registered.
	ErrVolumeNotFound = claim.ErrVolumeNotFound
	// ErrVolumeInUse: claims stand on the volume (*claim.Refusal names them).
	ErrVolumeInUse = claim.ErrVolumeInUse
	// ErrClaimNotFound: the workload has no claim on the volume.
	ErrClaimNotFound = claim.ErrClaimNotFound
	// ErrWorkloadNotFound: the ledger knows no such workload.
	ErrWorkloadNotFound = claim.ErrWorkloadNotFound
	// ErrNotRunning: the workload does not run on that node, as far as the ledger knows.
	ErrNotRunning = claim.ErrNotRunning
	// ErrNodeInUse: workloads run, or claims stand, on the node.
	ErrNodeInUse = claim.ErrNodeInUse
	// ErrNodeSecret: the node is known with another secret.
	ErrNodeSecret = claim.ErrNodeSecret
	// ErrIneligible: the node takes no workloads now: it is drained, or was made ineligible.
	ErrIneligible = claim.ErrIneligible
	// ErrOldKey: secrets come sealed with a key that does not seal any more.
	ErrOldKey = claim.ErrOldKey
	// ErrCycle: workloads would wait for one another for ever.
	ErrCycle = claim.ErrCycle
	// ErrTokenNotFound: the ledger knows no such token.
	ErrTokenNotFound = claim.ErrTokenNotFound
	// ErrNodeNotFound: the ledger knows no such node.
	ErrNodeNotFound = claim.ErrNodeNotFound
	// ErrDriverNotFound: no node has, or lately had, the driver.
	ErrDriverNotFound = claim.ErrDriverNotFound
)
