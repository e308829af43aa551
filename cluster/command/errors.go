package command

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
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
	// ErrDiskHangs: the disk of the ledger does not finish a write, so commands wait.
	ErrDiskHangs = errcode.Unavailable.New("the ledger's disk hangs")
)

var (
	// ErrUnknownCommand means that the entry was written by a newer program. A server that finds one in its log must stop
	// there and be upgraded.
	ErrUnknownCommand = errcode.Unimplemented.New("unknown command in the log (written by a newer version)")
	// ErrMalformed means that the entry is not a command of any version.
	ErrMalformed = errcode.InvalidArgument.New("malformed command")
	// ErrTooLarge means that the command is bigger than MaxSize.
	ErrTooLarge = errcode.InvalidArgument.New("command is too large")
)

// reasons are the errors that callers distinguish with errors.Is, by the name under which they are sent. A name is
// never used again for another error.
var reasons = map[string]error{
	"held":               claim.ErrHeld,
	"modes":              claim.ErrModes,
	"read-only":          claim.ErrReadOnly,
	"unsupported":        claim.ErrUnsupported,
	"conflict":           claim.ErrConflict,
	"duplicate":          claim.ErrDuplicate,
	"invalid":            claim.ErrInvalid,
	"backwards":          claim.ErrBackwards,
	"volume-not-found":   claim.ErrVolumeNotFound,
	"volume-in-use":      claim.ErrVolumeInUse,
	"marked":             claim.ErrMarked,
	"claim-not-found":    claim.ErrClaimNotFound,
	"workload-not-found": claim.ErrWorkloadNotFound,
	"node-not-found":     claim.ErrNodeNotFound,
	"node-in-use":        claim.ErrNodeInUse,
	"not-running":        claim.ErrNotRunning,
	"node-secret":        claim.ErrNodeSecret,
	"earlier-boot":       claim.ErrEarlierBoot,
	"ineligible":         claim.ErrIneligible,
	"unbound":            claim.ErrUnbound,
	"cycle":              claim.ErrCycle,
	"unreachable":        claim.ErrUnreachable,
	"old_secrets_key":    claim.ErrOldKey,
	"token-not-found":    claim.ErrTokenNotFound,
	"driver-not-found":   claim.ErrDriverNotFound,
	"snapshot-exists":    claim.ErrSnapshotExists,
	"snapshot-not-found": claim.ErrSnapshotNotFound,

	"acl-bootstrapped":     acl.ErrBootstrapped,
	"acl-policy-not-found": acl.ErrPolicyNotFound,
	"acl-role-not-found":   acl.ErrRoleNotFound,
	"acl-token-not-found":  acl.ErrTokenNotFound,

	"unknown-command": ErrUnknownCommand,
	"malformed":       ErrMalformed,
	"too-large":       ErrTooLarge,
	"not-leader":      ErrNotLeader,
	"uncertain":       ErrUncertain,
	"closed":          ErrClosed,
	"stopped":         ErrStopped,
	"disk-full":       ErrDiskFull,
	"disk-hangs":      ErrDiskHangs,
}

// failure is an error as it is sent between agents: its text, and what errors.Is and errors.As need.
type failure struct {
	Text    string            `json:"text"`
	Reasons []string          `json:"reasons,omitempty"`
	Refusal *refusal          `json:"refusal,omitempty"`
	Field   *claim.FieldError `json:"field,omitempty"`

	Bootstrapped *acl.BootstrappedError `json:"bootstrapped,omitempty"`
}

// refusal is a claim.Refusal with its reason by name.
type refusal struct {
	Reason  string          `json:"reason"`
	Volume  claim.VolumeRef `json:"volume"`
	Mode    claim.Mode      `json:"mode,omitempty"`
	Detail  string          `json:"detail"`
	Holders []claim.Claim   `json:"holders,omitempty"`
	At      time.Time       `json:"at,omitzero"`
}

func failureOf(err error) *failure {
	f := &failure{Text: err.Error()}
	for _, name := range slices.Sorted(maps.Keys(reasons)) {
		if errors.Is(err, reasons[name]) {
			f.Reasons = append(f.Reasons, name)
		}
	}
	var refused *claim.Refusal
	if errors.As(err, &refused) {
		f.Refusal = &refusal{
			nameOf(refused.Reason), refused.Volume, refused.Mode, refused.Detail, refused.Holders,
			refused.At,
		}
	}
	errors.As(err, &f.Field)
	errors.As(err, &f.Bootstrapped)
	return f
}

func nameOf(reason error) string {
	for name, r := range reasons {
		if errors.Is(reason, r) {
			return name
		}
	}
	return ""
}

// err rebuilds the error. Reasons that only a newer program knows are ignored.
func (f *failure) err() error {
	failed := &remoteError{text: f.Text}
	for _, name := range f.Reasons {
		if reason, known := reasons[name]; known {
			failed.is = append(failed.is, reason)
		}
	}
	if r := f.Refusal; r != nil {
		failed.is = append(failed.is, &claim.Refusal{
			Reason: reasons[r.Reason], Volume: r.Volume, Mode: r.Mode,
			Detail: r.Detail, Holders: r.Holders, At: r.At,
		})
	}
	if f.Field != nil {
		failed.is = append(failed.is, f.Field)
	}
	if f.Bootstrapped != nil {
		failed.is = append(failed.is, f.Bootstrapped)
	}
	return failed
}

// remoteError is an error that another agent returned.
type remoteError struct {
	text string
	is   []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }
