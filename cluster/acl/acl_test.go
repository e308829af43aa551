package acl_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func names(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint("n", i))
	}
	return out
}

func TestValidate(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	client := func(with func(*acl.Token)) error {
		token := acl.Token{
			Accessor: "a", SecretHash: hash, Type: acl.Client, Policies: []string{"p"},
			ExpiresAt: now.Add(time.Second),
		}
		with(&token)
		return token.Validate(now)
	}
	policy := func(p acl.Policy) error { return p.Validate() }
	role := func(r acl.Role) error { return r.Validate() }
	for name, row := range map[string]struct {
		err   error
		field string // empty: the value is valid
	}{
		"policy": {policy(acl.Policy{
			Name: "p", Rules: strings.Repeat("x", acl.MaxRules),
			Description: strings.Repeat("x", acl.MaxText),
		}), ""},
		"no name":            {policy(acl.Policy{}), "name"},
		"a path":             {policy(acl.Policy{Name: "a/b"}), "name"},
		"long rules":         {policy(acl.Policy{Name: "p", Rules: strings.Repeat("x", acl.MaxRules+1)}), "rules"},
		"long description":   {policy(acl.Policy{Name: "p", Description: strings.Repeat("x", acl.MaxText+1)}), "description"},
		"role":               {role(acl.Role{Name: "r", Policies: names(acl.MaxNames)}), ""},
		"role of nothing":    {role(acl.Role{Name: "r"}), "policies"},
		"role of too many":   {role(acl.Role{Name: "r", Policies: names(acl.MaxNames + 1)}), "policies"},
		"role of one twice":  {role(acl.Role{Name: "r", Policies: []string{"p", "p"}}), "policies"},
		"token":              {client(func(*acl.Token) {}), ""},
		"token that stays":   {client(func(t *acl.Token) { t.ExpiresAt = time.Time{} }), ""},
		"token by role":      {client(func(t *acl.Token) { t.Policies, t.Roles = nil, []string{"r"} }), ""},
		"management":         {client(func(t *acl.Token) { t.Type, t.Policies = acl.Management, nil }), ""},
		"no accessor":        {client(func(t *acl.Token) { t.Accessor = "" }), "accessor"},
		"a secret":           {client(func(t *acl.Token) { t.SecretHash = "secret" }), "secret_hash"},
		"capitals":           {client(func(t *acl.Token) { t.SecretHash = strings.ToUpper(hash) }), "secret_hash"},
		"long name":          {client(func(t *acl.Token) { t.Name = strings.Repeat("x", acl.MaxText+1) }), "name"},
		"no type":            {client(func(t *acl.Token) { t.Type = "" }), "type"},
		"nothing granted":    {client(func(t *acl.Token) { t.Policies = nil }), "policies, roles"},
		"bounded management": {client(func(t *acl.Token) { t.Type = acl.Management }), "policies, roles"},
		"role is a path":     {client(func(t *acl.Token) { t.Roles = []string{".."} }), "roles"},
		"over already":       {client(func(t *acl.Token) { t.ExpiresAt = now }), "expires_at"},
	} {
		var wrong *claim.FieldError
		switch {
		case row.field == "" && row.err != nil:
			t.Errorf("%s: %v", name, row.err)
		case row.field != "" && (!errors.As(row.err, &wrong) || wrong.Field != row.field):
			t.Errorf("%s: %v, want one of %s", name, row.err, row.field)
		case row.err != nil && strings.Contains(row.err.Error(), "secret\""):
			t.Errorf("the error of %s contains the secret: %v", name, row.err)
		}
	}
}
