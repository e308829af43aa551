package command

import "errors"

// What can go wrong on the way of a command or a query to the ledger. They are defined
// here, since they travel between agents; callers know them by their names in package
// cluster.
var (
	// ErrNotLeader: another server leads, or none. Nothing was changed.
	ErrNotLeader = errors.New("this server does not lead the cluster")
	// ErrUncertain: the command may or may not be applied, now or in a moment.
	ErrUncertain = errors.New("it is not known whether the ledger took it")
	// ErrClosed: the ledger is closed.
	ErrClosed = errors.New("ledger is closed")
	// ErrStopped: a fault of a server's disk, or an entry of a newer version, stopped
	// the ledger there.
	ErrStopped = errors.New("ledger has stopped")
	// ErrDiskFull: the ledger's disk is nearly full. Nothing was changed.
	ErrDiskFull = errors.New("the ledger's disk is nearly full")
	// ErrLevel: a server of the cluster does not know the command yet. Nothing was changed.
	ErrLevel = errors.New("a server of the cluster is too old for the command")
)
