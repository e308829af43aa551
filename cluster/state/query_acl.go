package state

import (
	"maps"
	"slices"

	"github.com/pannier/pannier/cluster/acl"
)

// ACLBootstrap reads whether the first management token was made, and how bootstrapping may be repeated; found is
// false if it was not.
func (tx ACL) ACLBootstrap() (b acl.Bootstrap, found bool, err error) {
	return read[acl.Bootstrap](tx.reader, aclBootstrap)
}

// ACLPolicy reads one policy. The error is acl.ErrPolicyNotFound if there is none.
func (tx ACL) ACLPolicy(name string) (acl.Policy, error) {
	return need[acl.Policy](tx.reader, policyKey(name), "policy %q: %w", name, acl.ErrPolicyNotFound)
}

// ACLPolicies lists all policies by name.
func (tx ACL) ACLPolicies() ([]acl.Policy, error) {
	return records[acl.Policy](tx.reader, span{base: aclPolicies})
}

// ACLRole reads one role. The error is acl.ErrRoleNotFound if there is none.
func (tx ACL) ACLRole(name string) (acl.Role, error) {
	return need[acl.Role](tx.reader, roleKey(name), "role %q: %w", name, acl.ErrRoleNotFound)
}

// ACLRoles lists all roles by name.
func (tx ACL) ACLRoles() ([]acl.Role, error) {
	return records[acl.Role](tx.reader, span{base: aclRoles})
}

// ACLToken reads one token by its accessor. The error is acl.ErrTokenNotFound if there is none. It may have
// expired.
func (tx ACL) ACLToken(accessor string) (acl.Token, error) {
	return need[acl.Token](tx.reader, aclTokenKey(accessor), "token %q: %w", accessor, acl.ErrTokenNotFound)
}

// ACLTokens lists all tokens by accessor, including expired ones.
func (tx ACL) ACLTokens() ([]acl.Token, error) {
	return records[acl.Token](tx.reader, span{base: aclTokens})
}

// ACLTokenByHash reads one token by the SHA-256 of its secret, in lower-case hexadecimal. The error is
// acl.ErrTokenNotFound if there is none. It may have expired.
func (tx ACL) ACLTokenByHash(hash string) (acl.Token, error) {
	accessors, err := tx.keys(span{base: aclTokensByHash + hash + "/", limit: 1})
	if err != nil {
		return acl.Token{}, err
	}
	if len(accessors) == 0 {
		return acl.Token{}, acl.ErrTokenNotFound
	}
	return tx.ACLToken(accessors[0])
}

// ACLGranted reads a token by the SHA-256 of its secret, with all its policies. The error is acl.ErrTokenNotFound
// if there is none. It may have expired. An empty hash stands for a call without a token, whose policy is
// acl.Anonymous.
func (tx ACL) ACLGranted(hash string) (acl.Granted, error) {
	if hash == "" {
		p, found, err := read[acl.Policy](tx.reader, policyKey(acl.Anonymous))
		if err != nil || !found {
			return acl.Granted{}, err
		}
		return acl.Granted{Policies: []acl.Policy{p}}, nil
	}
	t, err := tx.ACLTokenByHash(hash)
	if err != nil {
		return acl.Granted{}, err
	}
	names := map[string]bool{}
	for _, name := range t.Policies {
		names[name] = true
	}
	for _, role := range t.Roles {
		r, _, err := read[acl.Role](tx.reader, roleKey(role)) // a deleted role grants nothing
		if err != nil {
			return acl.Granted{}, err
		}
		for _, name := range r.Policies {
			names[name] = true
		}
	}
	granted := acl.Granted{Token: t}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		p, found, err := read[acl.Policy](tx.reader, policyKey(name))
		if err != nil {
			return acl.Granted{}, err
		}
		if found {
			granted.Policies = append(granted.Policies, p)
		}
	}
	return granted, nil
}
