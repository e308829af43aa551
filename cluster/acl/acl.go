// Package acl defines what the ledger keeps for access control: policies, roles and tokens. The rules of a policy
// are text here; another package interprets them.
//
// It reads no clock, draws no random number and does no I/O: every server must come to the same result from the
// same log.
package acl

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/internal/errcode"
)

// Bounds of one record.
const (
	// MaxRules bounds a policy's rules, in bytes.
	MaxRules = 64 << 10
	// MaxText bounds a description and a token's name, in bytes.
	MaxText = 512
	// MaxNames bounds the policies of a role, and the policies and the roles of a token.
	MaxNames = 32
)

// Policy is a named set of rules.
type Policy struct {
	Name        string    `json:"name"`
	Description string    `json:"description,omitempty"`
	Rules       string    `json:"rules"` // HCL
	CreateIndex uint64    `json:"create_index"`
	ModifyIndex uint64    `json:"modify_index"`
	ModifiedAt  time.Time `json:"modified_at"`
}

// Anonymous is the name of the policy for calls without a token.
const Anonymous = "anonymous"

// Role is a named set of policies.
type Role struct {
	Name        string    `json:"name"`
	Description string    `json:"description,omitempty"`
	Policies    []string  `json:"policies"`
	CreateIndex uint64    `json:"create_index"`
	ModifyIndex uint64    `json:"modify_index"`
	ModifiedAt  time.Time `json:"modified_at"`
}

// TokenType is what limits a token.
type TokenType string

// The types.
const (
	Client     TokenType = "client"     // limited by its policies and roles
	Management TokenType = "management" // not limited
	// A host joins the cluster with a token of one of these. It allows nothing else, and expires.
	JoinServer TokenType = "join-server"
	JoinNode   TokenType = "join-node"
)

// Joins reports whether a token is for a host that joins the cluster.
func (t TokenType) Joins() bool { return t == JoinServer || t == JoinNode }

// Token is the record of a token, without its secret.
type Token struct {
	// Accessor names the token; it grants nothing.
	Accessor string `json:"accessor"`
	// SecretHash is the SHA-256 of the secret, in lower-case hexadecimal.
	SecretHash string    `json:"secret_hash"`
	Name       string    `json:"name,omitempty"` // display
	Type       TokenType `json:"type"`
	Policies   []string  `json:"policies,omitempty"`
	Roles      []string  `json:"roles,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	// ExpiresAt is when it expires; zero: never. From then on it grants nothing, whether or not it has been
	// deleted.
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	CreateIndex uint64    `json:"create_index"`
	ModifyIndex uint64    `json:"modify_index"`
}

// Expired reports whether the token has expired at a time.
func (t *Token) Expired(at time.Time) bool {
	return !t.ExpiresAt.IsZero() && !t.ExpiresAt.After(at)
}

// Bootstrap records that the first management token was made, and how bootstrapping may be repeated.
type Bootstrap struct {
	// ResetIndex must be given to bootstrap again.
	ResetIndex uint64    `json:"reset_index"`
	At         time.Time `json:"at"`
}

// Granted is a token with its policies, including its roles' policies, each once, by name. Deleted policies are left
// out.
type Granted struct {
	Token    Token    `json:"token"`
	Policies []Policy `json:"policies,omitempty"`
}

// Validate checks a policy before it is stored, but not its rules. The error is a *claim.FieldError.
func (p *Policy) Validate() error {
	c := checker{object: fmt.Sprintf("ACL policy %q", p.Name)}
	c.id("name", p.Name)
	c.atMost("description", len(p.Description), MaxText, "bytes")
	c.atMost("rules", len(p.Rules), MaxRules, "bytes")
	return c.err
}

// Validate checks a role before it is stored. The error is a *claim.FieldError.
func (r *Role) Validate() error {
	c := checker{object: fmt.Sprintf("ACL role %q", r.Name)}
	c.id("name", r.Name)
	c.atMost("description", len(r.Description), MaxText, "bytes")
	c.names("policies", r.Policies)
	if len(r.Policies) == 0 {
		c.fail("policies", "are missing: at least one is needed")
	}
	return c.err
}

var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Validate checks a token before it is stored at a time. The error is a *claim.FieldError.
func (t *Token) Validate(at time.Time) error {
	c := checker{object: fmt.Sprintf("ACL token %q", t.Accessor)}
	c.id("accessor", t.Accessor)
	if !sha256Hex.MatchString(t.SecretHash) {
		c.fail("secret_hash", "is no SHA-256 in lower-case hexadecimal")
	}
	c.atMost("name", len(t.Name), MaxText, "bytes")
	c.names("policies", t.Policies)
	c.names("roles", t.Roles)
	granted := len(t.Policies) + len(t.Roles)
	switch {
	case t.Type != Client && t.Type != Management && !t.Type.Joins():
		c.fail("type", fmt.Sprintf("%q is none of %q, %q, %q and %q", t.Type, Client, Management, JoinServer, JoinNode))
	case t.Type == Client && granted == 0:
		c.fail("policies, roles", "are missing: a client token needs at least one")
	case t.Type == Management && granted > 0:
		c.fail("policies, roles", "are set: a management token may do everything and has none")
	case t.Type.Joins() && granted > 0:
		c.fail("policies, roles", "are set: a token to join allows nothing else and has none")
	case t.Type.Joins() && t.ExpiresAt.IsZero():
		c.fail("expires_at", "is missing: a token to join expires")
	}
	if t.Expired(at) {
		c.fail("expires_at", fmt.Sprintf("(%s) is in the past", t.ExpiresAt.Format(time.RFC3339)))
	}
	return c.err
}

// checker collects the first problem of one object's fields.
type checker struct {
	object string
	err    error
}

func (c *checker) fail(field, problem string) {
	if c.err == nil {
		c.err = &claim.FieldError{Object: c.object, Field: field, Problem: problem}
	}
}

func (c *checker) id(field, id string) {
	if err := claim.CheckID(id); err != nil {
		c.fail(field, err.Error())
	}
}

func (c *checker) atMost(field string, have, limit int, of string) {
	if have > limit {
		c.fail(field, fmt.Sprintf("has %d %s: at most %d are allowed", have, of, limit))
	}
}

func (c *checker) names(field string, names []string) {
	c.atMost(field, len(names), MaxNames, "names")
	for i, name := range names {
		c.id(field, name)
		if slices.Contains(names[:i], name) {
			c.fail(field, fmt.Sprintf("have %q twice", name))
		}
	}
}

// The reasons for which the ledger refuses a command. Callers use errors.Is.
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

// BootstrappedError is an ErrBootstrapped with the command that resets the bootstrap.
type BootstrappedError struct {
	ResetIndex uint64
}

func (e *BootstrappedError) Error() string {
	return fmt.Sprintf("%v (reset index: %d)", ErrBootstrapped, e.ResetIndex)
}

// Unwrap makes it an ErrBootstrapped.
func (e *BootstrappedError) Unwrap() error { return ErrBootstrapped }
