package acl

import (
	"time"

	"github.com/pannier/pannier/internal/errcode"
)

// Identity is a caller as far as its token says who that is.
type Identity struct {
	// Accessor and Name of the token; empty: none was given.
	Accessor, Name string
	// Policies that count for it, by name: its own and its roles'.
	Policies []string
	// ExpiresAt is when it ends; zero: never.
	ExpiresAt time.Time
	*Rules
}

// What keeps a secret from being taken.
var (
	// ErrUnknownToken: there is no token with that secret, or not any more.
	ErrUnknownToken = errcode.Unauthenticated.New("the ACL token is not known here: it was deleted, or its secret is not right")
	// ErrExpired: the token's time is over.
	ErrExpired = errcode.Unauthenticated.New("the ACL token has expired")
)
