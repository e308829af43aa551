package acl

import (
	"fmt"

	"github.com/pannier/pannier/internal/errcode"
)

// The reasons for which the ledger refuses something. A caller asks with errors.Is.
var (
	// ErrBootstrapped: the first management token was made before. The error is a
	// *BootstrappedError.
	ErrBootstrapped = errcode.FailedPrecondition.New("ACL was bootstrapped before")
	// ErrPolicyNotFound: the ledger has no such policy.
	ErrPolicyNotFound = errcode.NotFound.New("ACL policy not found")
	// ErrRoleNotFound: the ledger has no such role.
	ErrRoleNotFound = errcode.NotFound.New("ACL role not found")
	// ErrTokenNotFound: the ledger has no such token.
	ErrTokenNotFound = errcode.NotFound.New("ACL token not found")
)

// BootstrappedError is an ErrBootstrapped that says how to do it again.
type BootstrappedError struct {
	ResetIndex uint64
}

func (e *BootstrappedError) Error() string {
	return fmt.Sprintf("%v (reset index: %d)", ErrBootstrapped, e.ResetIndex)
}

// Unwrap makes it an ErrBootstrapped.
func (e *BootstrappedError) Unwrap() error { return ErrBootstrapped }
