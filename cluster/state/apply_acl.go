package state

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func (tx aclWrites) BootstrapACL(c *command.BootstrapACL) (zero acl.Token, _ error) {
	standing, found, err := tx.ACLBootstrap()
	if err != nil {
		return zero, err
	}
	if found && c.ResetIndex != standing.ResetIndex {
		return zero, &acl.BootstrappedError{ResetIndex: standing.ResetIndex}
	}
	if c.Token.Type != acl.Management {
		return zero, &claim.FieldError{
			Object: fmt.Sprintf("ACL token %q", c.Token.Accessor), Field: "type",
			Problem: fmt.Sprintf("is %q: the first token is of type %q", c.Token.Type, acl.Management),
		}
	}
	next, old, err := tx.checkACLToken(c.Token, c.At)
	if err != nil {
		return zero, err
	}
	if old != nil {
		return zero, claim.Conflict("ACL token %q exists", c.Token.Accessor)
	}
	if err := tx.putACLToken(&next, nil); err != nil {
		return zero, err
	}
	tx.touch(TopicACL)
	return next, write(tx.writeTx, aclBootstrap,
		&acl.Bootstrap{ResetIndex: tx.index, At: c.At}, nil, nil)
}

func (tx aclWrites) PutACLPolicies(c *command.PutACLPolicies) ([]acl.Policy, error) {
	if err := checkCount("ACL policies to put", "items", len(c.Policies), command.MaxPolicies); err != nil {
		return nil, err
	}
	result := make([]acl.Policy, len(c.Policies))
	seen := map[string]bool{}
	for i, next := range c.Policies {
		if err := errors.Join(next.Validate(), once(seen, "ACL policies", next.Name)); err != nil {
			return nil, err
		}
		old, found, err := read[acl.Policy](tx.reader, policyKey(next.Name))
		if err != nil {
			return nil, err
		}
		next.CreateIndex, next.ModifyIndex, next.ModifiedAt = tx.index, tx.index, c.At
		if found {
			next.CreateIndex = old.CreateIndex
		}
		result[i] = next
	}
	for i := range result {
		if err := write(tx.writeTx, policyKey(result[i].Name), &result[i], nil, nil); err != nil {
			return nil, err
		}
	}
	tx.touch(TopicACL)
	return result, nil
}

func (tx aclWrites) DeleteACLPolicies(c *command.DeleteACLPolicies) ([]string, error) {
	return deleteNamed[acl.Policy](tx.writeTx, "policies to delete", c.Names, policyKey)
}

func (tx aclWrites) PutACLRoles(c *command.PutACLRoles) ([]acl.Role, error) {
	if err := checkCount("ACL roles to put", "items", len(c.Roles), command.MaxItems); err != nil {
		return nil, err
	}
	result := make([]acl.Role, len(c.Roles))
	seen := map[string]bool{}
	for i, next := range c.Roles {
		if err := errors.Join(next.Validate(), once(seen, "ACL roles", next.Name)); err != nil {
			return nil, err
		}
		if err := checkExist(fmt.Sprintf("ACL role %q", next.Name), next.Policies, tx.ACLPolicy); err != nil {
			return nil, err
		}
		old, found, err := read[acl.Role](tx.reader, roleKey(next.Name))
		if err != nil {
			return nil, err
		}
		next.CreateIndex, next.ModifyIndex, next.ModifiedAt = tx.index, tx.index, c.At
		if found {
			next.CreateIndex = old.CreateIndex
		}
		result[i] = next
	}
	for i := range result {
		if err := write(tx.writeTx, roleKey(result[i].Name), &result[i], nil, nil); err != nil {
			return nil, err
		}
	}
	tx.touch(TopicACL)
	return result, nil
}

func (tx aclWrites) DeleteACLRoles(c *command.DeleteACLRoles) ([]string, error) {
	return deleteNamed[acl.Role](tx.writeTx, "roles to delete", c.Names, roleKey)
}

// deleteNamed deletes records without index keys, and returns the names of the records that existed.
func deleteNamed[T any](tx *writeTx, object string, names []string,
	key func(string) string,
) (deleted []string, err error) {
	if err := checkCount("ACL "+object, "items", len(names), command.MaxItems); err != nil {
		return nil, err
	}
	for _, name := range names {
		_, found, err := read[T](tx.reader, key(name))
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		if err := write(tx, key(name), (*T)(nil), nil, nil); err != nil {
			return nil, err
		}
		deleted = append(deleted, name)
	}
	if len(deleted) > 0 {
		tx.touch(TopicACL)
	}
	return deleted, nil
}

func (tx aclWrites) PutACLTokens(c *command.PutACLTokens) ([]acl.Token, error) {
	if err := checkCount("ACL tokens to put", "items", len(c.Tokens), command.MaxItems); err != nil {
		return nil, err
	}
	result := make([]acl.Token, len(c.Tokens))
	before := make([]*acl.Token, len(c.Tokens))
	accessors, secrets := map[string]bool{}, map[string]bool{}
	for i, want := range c.Tokens {
		next, old, err := tx.checkACLToken(want, c.At)
		if err != nil {
			return nil, err
		}
		if err := once(accessors, "ACL tokens", next.Accessor); err != nil {
			return nil, err
		}
		if secrets[next.SecretHash] {
			return nil, claim.Conflict("ACL token %q: another token of the command has its secret", next.Accessor)
		}
		secrets[next.SecretHash] = true
		result[i], before[i] = next, old
	}
	for i := range result {
		if err := tx.putACLToken(&result[i], before[i]); err != nil {
			return nil, err
		}
	}
	tx.touch(TopicACL)
	return result, nil
}

// checkACLToken decides whether a token may be stored, sets the fields that the ledger keeps, and returns the
// record that it replaces; nil: none.
func (tx aclWrites) checkACLToken(next acl.Token, at time.Time) (acl.Token, *acl.Token, error) {
	object := fmt.Sprintf("ACL token %q", next.Accessor)
	old, found, err := read[acl.Token](tx.reader, aclTokenKey(next.Accessor))
	if err != nil {
		return next, nil, err
	}
	next.CreatedAt, next.CreateIndex, next.ModifyIndex = at, tx.index, tx.index
	if found {
		if next.SecretHash != old.SecretHash || next.Type != old.Type || !next.ExpiresAt.Equal(old.ExpiresAt) {
			return next, nil, claim.Conflict("%s: its secret, type and expiry cannot change", object)
		}
		next.CreatedAt, next.CreateIndex = old.CreatedAt, old.CreateIndex
	}
	if err := next.Validate(at); err != nil {
		return next, nil, err
	}
	if !found {
		taken, err := tx.any(aclTokensByHash + next.SecretHash + "/")
		if err != nil {
			return next, nil, err
		}
		if taken {
			return next, nil, claim.Conflict("%s: another token has its secret", object)
		}
	}
	if err := checkExist(object, next.Policies, tx.ACLPolicy); err != nil {
		return next, nil, err
	}
	if err := checkExist(object, next.Roles, tx.ACLRole); err != nil || !found {
		return next, nil, err
	}
	return next, &old, nil
}

// checkExist refuses names of policies or roles that do not exist.
func checkExist[T any](object string, names []string, read func(name string) (T, error)) error {
	for _, name := range names {
		if _, err := read(name); err != nil {
			return fmt.Errorf("%s: %w", object, err)
		}
	}
	return nil
}

// putACLToken stores a token and replaces the previous record; nil: there is none.
func (tx aclWrites) putACLToken(t, before *acl.Token) error {
	var keys []string
	if before != nil {
		keys = aclTokenIndexKeys(before)
	}
	return write(tx.writeTx, aclTokenKey(t.Accessor), t, keys, aclTokenIndexKeys(t))
}

func (tx aclWrites) DeleteACLTokens(c *command.DeleteACLTokens) ([]acl.Token, error) {
	if err := checkCount("ACL tokens to delete", "items", len(c.Accessors), command.MaxItems); err != nil {
		return nil, err
	}
	var result []acl.Token
	for _, accessor := range c.Accessors {
		t, found, err := read[acl.Token](tx.reader, aclTokenKey(accessor))
		if err != nil {
			return nil, err
		}
		if !found {
			continue
		}
		if err := tx.deleteACLToken(&t); err != nil {
			return nil, err
		}
		result = append(result, t)
	}
	return result, nil
}

func (tx aclWrites) ExpireACLTokens(c *command.ExpireACLTokens) (zero command.ExpireACLTokensResult, _ error) {
	var result command.ExpireACLTokensResult
	parts, err := tx.keys(span{base: aclTokensByExpiry, limit: command.MaxItems + 1})
	if err != nil {
		return zero, err
	}
	for _, part := range parts {
		_, accessor, _ := strings.Cut(part, "/")
		t, found, err := read[acl.Token](tx.reader, aclTokenKey(accessor))
		switch {
		case err != nil:
			return zero, err
		case !found:
			return zero, fault("index key %q leads to no record", aclTokensByExpiry+part)
		case !t.Expired(c.At):
			return result, nil
		case len(result.Deleted) == command.MaxItems:
			result.More = true
			return result, nil
		}
		if err := tx.deleteACLToken(&t); err != nil {
			return zero, err
		}
		result.Deleted = append(result.Deleted, t)
	}
	return result, nil
}

func (tx aclWrites) deleteACLToken(t *acl.Token) error {
	tx.touch(TopicACL)
	return write(tx.writeTx, aclTokenKey(t.Accessor), (*acl.Token)(nil), aclTokenIndexKeys(t), nil)
}

// once refuses a name that a command lists twice.
func once(seen map[string]bool, object, name string) error {
	if seen[name] {
		return &claim.FieldError{Object: object, Field: "items", Problem: fmt.Sprintf("name %q twice", name)}
	}
	seen[name] = true
	return nil
}
