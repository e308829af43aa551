package command

import "github.com/pannier/pannier/cluster/acl"

// MaxPolicies bounds the items of PutACLPolicies, which contain their rules.
const MaxPolicies = 32

// BootstrapACL makes the first management token, once. Later it is refused (*acl.BootstrappedError) unless
// ResetIndex is the one that the refusal names.
type BootstrapACL struct {
	Returns[acl.Token]
	Token      acl.Token `json:"token"`
	ResetIndex uint64    `json:"reset_index,omitempty"`
}

// PutACLPolicies inserts or replaces policies: all items or none.
type PutACLPolicies struct {
	Returns[[]acl.Policy]
	Policies []acl.Policy `json:"policies"` // at most MaxPolicies
}

// DeleteACLPolicies removes policies; roles and tokens that name them lose what they granted. Unknown names are
// ignored.
type DeleteACLPolicies struct {
	Returns[[]string]
	Names []string `json:"names"` // at most MaxItems
}

// PutACLRoles inserts or replaces roles: all items or none. An unknown policy is acl.ErrPolicyNotFound.
type PutACLRoles struct {
	Returns[[]acl.Role]
	Roles []acl.Role `json:"roles"` // at most MaxItems
}

// DeleteACLRoles removes roles. Unknown names are ignored.
type DeleteACLRoles struct {
	Returns[[]string]
	Names []string `json:"names"` // at most MaxItems
}

// PutACLTokens inserts tokens, or changes the name, policies and roles of existing ones: all items or none. An
// unknown policy or role is acl.ErrPolicyNotFound or acl.ErrRoleNotFound; changing the secret, type or expiry of
// an existing token is claim.ErrConflict, and so is the secret of another token.
type PutACLTokens struct {
	Returns[[]acl.Token]
	Tokens []acl.Token `json:"tokens"` // at most MaxItems
}

// DeleteACLTokens removes tokens. Unknown accessors are ignored.
type DeleteACLTokens struct {
	Returns[[]acl.Token]
	Accessors []string `json:"accessors"` // at most MaxItems
}

// ExpireACLTokens removes expired tokens, the oldest MaxItems of them.
type ExpireACLTokens struct {
	Returns[ExpireACLTokensResult]
}

// ExpireACLTokensResult answers ExpireACLTokens. More is true if there may be more.
type ExpireACLTokensResult struct {
	Deleted []acl.Token
	More    bool
}
