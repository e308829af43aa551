package claim

import (
	"fmt"
	"strings"
	"time"

	"github.com/pannier/pannier/internal/errcode"
)

// The reasons for which the ledger refuses a command. Callers use errors.Is; the text of the whole error is for
// the operator.
var (
	// ErrHeld: other claims are in the way; try again when they are freed.
	ErrHeld = errcode.FailedPrecondition.New("claim is held")
	// ErrModes: the volume is in use with another access or attachment mode.
	ErrModes = errcode.FailedPrecondition.New("volume is in use with other modes")
	// ErrReadOnly: the access mode never allows a write claim.
	ErrReadOnly = errcode.FailedPrecondition.New("access mode is for readers only")
	// ErrUnsupported: the volume was not registered with the wanted modes.
	ErrUnsupported = errcode.FailedPrecondition.New("volume lacks the capability")
	// ErrDuplicate: the driver's volume is registered under another name.
	ErrDuplicate = errcode.AlreadyExists.New("is registered as another volume")
	// ErrConflict: something exists with other arguments, or has changed. Conflict makes the error.
	ErrConflict = errcode.FailedPrecondition.New("exists with other arguments")
	// ErrInvalid: a field is missing or malformed. The error is a *FieldError.
	ErrInvalid = errcode.InvalidArgument.New("invalid")
	// ErrBackwards: a release only moves forward.
	ErrBackwards = errcode.FailedPrecondition.New("claim cannot move backwards")
	// ErrVolumeNotFound: no such volume is registered.
	ErrVolumeNotFound = errcode.NotFound.New("is not registered")
	// ErrVolumeInUse: the volume is claimed, so it cannot be removed or changed in this way.
	ErrVolumeInUse = errcode.FailedPrecondition.New("volume is in use")
	// ErrMarked: something is done that nobody may have the volume during; try again when it has ended.
	ErrMarked = errcode.FailedPrecondition.New("volume is being changed")
	// ErrClaimNotFound: the workload has no claim on the volume.
	ErrClaimNotFound = errcode.NotFound.New("claim not found")
	// ErrWorkloadNotFound: the ledger knows no such workload.
	ErrWorkloadNotFound = errcode.NotFound.New("workload not found")
	// ErrNodeNotFound: the ledger knows no such node.
	ErrNodeNotFound = errcode.NotFound.New("is no node of the ledger")
	// ErrNodeInUse: the node has workloads or claims, so it cannot be removed.
	ErrNodeInUse = errcode.FailedPrecondition.New("node is in use")
	// ErrNotRunning: the workload does not run on that node, as far as the ledger knows.
	ErrNotRunning = errcode.FailedPrecondition.New("workload does not run there")
	// ErrNodeSecret: the node is known with another secret.
	ErrNodeSecret = errcode.FailedPrecondition.New("node is known with another secret")
	// ErrEarlierBoot: the node has claims, and its earlier boot may use them until its lease is over.
	ErrEarlierBoot = errcode.Unavailable.New("an earlier boot of the node may still use its volumes")
	// ErrIneligible: the node takes no new workloads at present.
	ErrIneligible = errcode.FailedPrecondition.New("node takes no workloads")
	// ErrUnbound: an operator has bound the node to other namespaces.
	ErrUnbound = errcode.PermissionDenied.New("the node may have no workloads of the namespace")
	// ErrUnreachable: the volume is not accessible from the node.
	ErrUnreachable = errcode.FailedPrecondition.New("the node cannot reach the volume")
	// ErrOldKey: secrets are encrypted with a key that is no longer active. The caller may encrypt them with the
	// active key and try again.
	ErrOldKey = errcode.Unavailable.New("encrypted with a key that is not the active one")
	// ErrCycle: workloads would wait for one another forever.
	ErrCycle = errcode.FailedPrecondition.New("workloads wait for one another")
	// ErrTokenNotFound: the ledger knows no such token.
	ErrTokenNotFound = errcode.FailedPrecondition.New("token not found")
	// ErrSnapshotExists: another volume's snapshot has the name.
	ErrSnapshotExists = errcode.AlreadyExists.New("exists")
	// ErrSnapshotNotFound: the ledger knows no snapshot of that name.
	ErrSnapshotNotFound = errcode.NotFound.New("is not known")
	// ErrDriverNotFound: no node has, or recently had, such a driver.
	ErrDriverNotFound = errcode.NotFound.New("is on no node")
)

// Conflict returns an ErrConflict whose text is a whole sentence about what is there.
func Conflict(format string, args ...any) error { return conflict(fmt.Sprintf(format, args...)) }

type conflict string

func (c conflict) Error() string { return string(c) }

func (conflict) Unwrap() error { return ErrConflict }

// Refusal explains why a volume was refused and who holds it. It matches its Reason in errors.Is: ErrHeld, ErrModes,
// ErrReadOnly, ErrUnsupported, ErrConflict, ErrVolumeInUse or ErrMarked.
type Refusal struct {
	Reason  error
	Volume  VolumeRef
	Mode    Mode // the wanted mode; empty if no claim was wanted
	Detail  string
	Holders []Claim   // the existing claims, in the order of the ledger
	At      time.Time // when it was refused; ages are relative to it
}

// Error names the volume, what was wanted and each holder.
func (r *Refusal) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "volume %q %s", r.Volume, r.Detail)
	for i, h := range r.Holders {
		if i == 0 {
			b.WriteString(": held by ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(h.describe(r.At))
	}
	return b.String()
}

// Unwrap is the reason.
func (r *Refusal) Unwrap() error { return r.Reason }

// describe returns the text for one holder in a refusal.
func (c *Claim) describe(at time.Time) string {
	node := "an unknown node"
	if c.Node != "" {
		node = fmt.Sprintf("node %q", c.Node)
	}
	return fmt.Sprintf("workload %q on %s (%s, %s, %s)", c.Workload, node, c.Mode, c.State, age(c.TakenAt, at))
}

// age rounds to the unit that matters to a reader: seconds, minutes, hours, days.
func age(from, to time.Time) string {
	if from.IsZero() {
		return "unknown age"
	}
	d := max(to.Sub(from), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// FieldError is an ErrInvalid that names the field.
type FieldError struct {
	Object  string // such as `volume "mysql"`
	Field   string // such as plugin_id
	Problem string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("%s: %s %s", e.Object, e.Field, e.Problem)
}

// Unwrap makes it an ErrInvalid.
func (e *FieldError) Unwrap() error { return ErrInvalid }
