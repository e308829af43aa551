package command

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
)

// reasons are the errors that a caller may ask for with errors.Is, by the name under which
// they travel. A name is never used again for another one.
var reasons = map[string]error{
	"held":               claim.ErrHeld,
	"modes":              claim.ErrModes,
	"read-only":          claim.ErrReadOnly,
	"unsupported":        claim.ErrUnsupported,
	"conflict":           claim.ErrConflict,
	"invalid":            claim.ErrInvalid,
	"backwards":          claim.ErrBackwards,
	"volume-not-found":   claim.ErrVolumeNotFound,
	"volume-in-use":      claim.ErrVolumeInUse,
	"claim-not-found":    claim.ErrClaimNotFound,
	"workload-not-found": claim.ErrWorkloadNotFound,
	"node-not-found":     claim.ErrNodeNotFound,
	"node-in-use":        claim.ErrNodeInUse,
	"not-running":        claim.ErrNotRunning,
	"node-secret":        claim.ErrNodeSecret,
	"ineligible":         claim.ErrIneligible,
	"cycle":              claim.ErrCycle,
	"unreachable":        claim.ErrUnreachable,
	"old_secrets_key":    claim.ErrOldKey,
	"token-not-found":    claim.ErrTokenNotFound,
	"driver-not-found":   claim.ErrDriverNotFound,

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
	"level":           ErrLevel,
}

// failure is an error as it travels between agents: its text, and what may be asked of it.
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
		f.Refusal = &refusal{nameOf(refused.Reason), refused.Volume, refused.Mode, refused.Detail, refused.Holders, refused.At}
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

// err makes the error again. A reason that a newer program named is passed over.
func (f *failure) err() error {
	failed := &remoteError{text: f.Text}
	for _, name := range f.Reasons {
		if reason, known := reasons[name]; known {
			failed.is = append(failed.is, reason)
		}
	}
	if r := f.Refusal; r != nil {
		failed.is = append(failed.is, &claim.Refusal{Reason: reasons[r.Reason], Volume: r.Volume, Mode: r.Mode, Detail: r.Detail, Holders: r.Holders, At: r.At})
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
