package acl

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/pannier/pannier/internal/errcode"
)

var (
	// ErrUnknownToken is returned if no token has the secret.
	ErrUnknownToken = errcode.Unauthenticated.New(
		"the ACL token is not known here: it was deleted, or its secret is not right")
	// ErrExpired is returned for a token that has expired.
	ErrExpired = errcode.Unauthenticated.New("the ACL token has expired")
)

// Hash returns the form in which the ledger has a secret.
func Hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}
