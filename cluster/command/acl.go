package command

import "github.com/pannier/pannier/cluster/acl"

// MaxPolicies bounds the items of PutACLPolicies, which have the rules with them.
const MaxPolicies = 32

// BootstrapACL makes the first management token, once. It is refused afterwards
// (*acl.BootstrappedError) unless ResetIndex is the one that the refusal names.
type BootstrapACL struct {
	Stamp
	Token      acl.Token `json:"token"`
	ResetIndex uint64    `json:"reset_index,omitempty"`
}

// BootstrapACLResult answers BootstrapACL.
type BootstrapACLResult struct {
	Token acl.Token
}

// PutACLPolicies inserts or replaces policies: all items or none.
type PutACLPolicies struct {
	Stamp
	Policies []acl.Policy `json:"policies"` // at most MaxPolicies
}

// PutACLPoliciesResult answers PutACLPolicies with what stands now.
type PutACLPoliciesResult struct {
	Policies []acl.Policy
}

// DeleteACLPolicies removes policies; roles and tokens that name them lose what they granted.
// Those that are not there count as done.
type DeleteACLPolicies struct {
	Stamp
	Names []string `json:"names"` // at most MaxItems
}

// DeleteACLPoliciesResult answers DeleteACLPolicies with those that were there.
type DeleteACLPoliciesResult struct {
	Deleted []string
}

// PutACLRoles inserts or replaces roles: all items or none. A policy that is not there is
// acl.ErrPolicyNotFound.
type PutACLRoles struct {
	Stamp
	Roles []acl.Role `json:"roles"` // at most MaxItems
}

// PutACLRolesResult answers PutACLRoles with what stands now.
type PutACLRolesResult struct {
	Roles []acl.Role
}

// DeleteACLRoles removes roles. Those that are not there count as done.
type DeleteACLRoles struct {
	Stamp
	Names []string `json:"names"` // at most MaxItems
}

// DeleteACLRolesResult answers DeleteACLRoles with those that were there.
type DeleteACLRolesResult struct {
	Deleted []string
}

// PutACLTokens inserts tokens, or changes the name, the policies and the roles of those that
// stand: all items or none. A policy or role that is not there is acl.ErrPolicyNotFound or
// acl.ErrRoleNotFound; another secret, type or expiry of a token that stands is
// claim.ErrConflict, and so is the secret of another token.
type PutACLTokens struct {
	Stamp
	Tokens []acl.Token `json:"tokens"` // at most MaxItems
}

// PutACLTokensResult answers PutACLTokens with what stands now.
type PutACLTokensResult struct {
	Tokens []acl.Token
}

// DeleteACLTokens removes tokens. Those that are not there count as done.
type DeleteACLTokens struct {
	Stamp
	Accessors []string `json:"accessors"` // at most MaxItems
}

// DeleteACLTokensResult answers DeleteACLTokens with those that were there.
type DeleteACLTokensResult struct {
	Deleted []acl.Token
}

// ExpireACLTokens removes tokens that have ended, the oldest MaxItems of them.
type ExpireACLTokens struct {
	Stamp
}

// ExpireACLTokensResult answers ExpireACLTokens. More says that there may be more.
type ExpireACLTokensResult struct {
	Deleted []acl.Token
	More    bool
}
