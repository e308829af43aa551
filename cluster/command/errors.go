package command

import (
	"github.com/pannier/pannier/internal/errcode"
)

// Errors of a command or a query that the ledger did not get to decide on. They travel between agents
// (EncodeOutcome). The reasons for which the ledger refuses a command are cluster/claim's.
var (
	// ErrNotLeader: another server leads, or none. Nothing was changed.
	ErrNotLeader = errcode.Unavailable.New("this server does not lead the cluster")
	// ErrUncertain: the command may or may not be applied, now or in a moment: the caller stopped waiting, or the
	// leadership was lost. Commands may be repeated.
	ErrUncertain = errcode.Unavailable.New("it is not known whether the ledger took it")
	// ErrClosed: the ledger is closed.
	ErrClosed = errcode.Unavailable.New("ledger is closed")
	// ErrStopped: a fault of a server's disk, or a log entry of a newer version, stopped the ledger there. The cause is
	// in the text; a restart tries again.
	ErrStopped = errcode.Unavailable.New("ledger has stopped")
	// ErrDiskFull: the ledger's disk is nearly full. Nothing was changed.
	ErrDiskFull = errcode.ResourceExhausted.New("the ledger's disk is nearly full")
	// ErrLevel: a server of the cluster does not know the command yet. Nothing was changed.
	ErrLevel = errcode.FailedPrecondition.New("a server of the cluster is too old for the command")
)
