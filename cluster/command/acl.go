package command

import "github.com/pannier/pannier/cluster/acl"

// MaxPolicies bounds the items of PutACLPolicies, which contain their rules.
const MaxPolicies = 32

// BootstrapACL makes the first management token, once. Later it is refused (*acl.BootstrappedError) unless
// ResetIndex is the one that the refusal names.
type BootstrapACL struct {
	Stamp
	Token      acl.Token `json:"token"`
	ResetIndex uint64    `json:"reset_index,omitempty"`
}

// PutACLPolicies inserts or replaces policies: all items or none.
type PutACLPolicies struct {
	Stamp
	Policies []acl.Policy `json:"policies"` // at most MaxPolicies
}

// DeleteACLPolicies removes policies; roles and tokens that name them lose what they granted. Unknown names are
// ignored.
type DeleteACLPolicies struct {
	Stamp
	Names []string `json:"names"` // at most MaxItems
}

// PutACLRoles inserts or replaces roles: all items or none. An unknown policy is acl.ErrPolicyNotFound.
type PutACLRoles struct {
	Stamp
	Roles []acl.Role `json:"roles"` // at most MaxItems
}

// DeleteACLRoles removes roles. Unknown names are ignored.
type DeleteACLRoles struct {
	Stamp
	Names []string `json:"names"` // at most MaxItems
}

// PutACLTokens inserts tokens, or changes the name, policies and roles of existing ones: all items or none. An
// unknown policy or role is acl.ErrPolicyNotFound or acl.ErrRoleNotFound; changing the secret, type or expiry of
// an existing token is claim.ErrConflict, and so is the secret of another token.
type PutACLTokens struct {
	Stamp
	Tokens []acl.Token `json:"tokens"` // at most MaxItems
}

// DeleteACLTokens removes tokens. Unknown accessors are ignored.
type DeleteACLTokens struct {
	Stamp
	Accessors []string `json:"accessors"` // at most MaxItems
}

// ExpireACLTokens removes expired tokens, the oldest MaxItems of them.
type ExpireACLTokens struct {
	Stamp
}

// ExpireACLTokensResult answers ExpireACLTokens. More says that there may be more.
type ExpireACLTokensResult struct {
	Deleted []acl.Token
	More    bool
}
