package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func aclNoun() noun {
	return nounOf("acl", "Access control: policies, roles and tokens", []verb{{
		use: "bootstrap", short: "Make the first management token, once",
		long: `Make the first management token, once. Run it as root on a server, or with a
certificate of the role cli. The secret is shown only once: keep it where only operators can
read it. When all management tokens are lost, the error says how to make another.`,
		run: func(ctx context.Context, c *call) error {
			resp, err := c.ACL.BootstrapACL(ctx, &hostv1.BootstrapACLRequest{})
			return newToken(c, resp, err)
		},
	}},
		nounOf("policy", "Policies: what is allowed", policyVerbs()),
		nounOf("role", "Roles: sets of policies", roleVerbs()),
		nounOf("token", "Tokens of callers, with their policies and roles", aclTokenVerbs()))
}

// tokenEnv is the variable with the secret of the token to call with.
const tokenEnv = "PANNIER_TOKEN"

// token is the secret to call with, from the file or the environment. No flag takes one: an argument list can be read
// by every user of the machine.
func (a *App) token() (string, error) {
	if a.tokenFile == "" {
		return cleanToken(os.Getenv(tokenEnv), tokenEnv)
	}
	info, err := os.Stat(a.tokenFile)
	if err != nil {
		return "", fmt.Errorf("-token-file: %w", err)
	}
	if info.Mode().Perm()&0o004 != 0 {
		return "", fmt.Errorf("-token-file %s: every user can read it; run: chmod 600 %s", a.tokenFile, a.tokenFile)
	}
	text, err := os.ReadFile(a.tokenFile)
	if err != nil {
		return "", fmt.Errorf("-token-file: %w", err)
	}
	secret, err := cleanToken(string(text), "-token-file "+a.tokenFile)
	if err == nil && secret == "" {
		err = fmt.Errorf("-token-file %s: is empty", a.tokenFile)
	}
	return secret, err
}

// cleanToken checks that a secret can be sent; it is never told.
func cleanToken(text, from string) (string, error) {
	secret := strings.TrimSpace(text)
	if strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s: is no token's secret, which is one word", from)
	}
	return secret, nil
}

// listed writes names for a table.
func listed(names []string) string { return strings.Join(names, ", ") }

// maxPolicy bounds a policy's file, in bytes; the agent takes 64 KiB.
const maxPolicy = 1 << 20

// readFile reads a text of at most so many bytes; - is standard input.
func readFile(path string, most int64) (string, error) {
	in := os.Stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, most))
	return string(text), err
}

func policyVerbs() []verb {
	put := &hostv1.PutACLPolicyRequest{}
	return []verb{
		{
			use: "apply NAME FILE", short: "Add a policy, or replace its rules", example: "developers developers.hcl",
			long: `Add a policy, or replace its rules. FILE has the rules in HCL or JSON; - is
standard input. The policy "anonymous" applies to calls without a token.`,
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&put.Description, "description", "", "what the policy is for, as `TEXT`")
			},
			run: order("policy %q is applied; give it to a token: pannier acl token create -policy %[1]s",
				func(ctx context.Context, c *call) (any, error) {
					rules, err := readFile(c.args[1], maxPolicy)
					if err != nil {
						return nil, Usage("read the policy: %w", err)
					}
					put.Name, put.Rules = c.args[0], rules
					return c.ACL.PutACLPolicy(ctx, put)
				}),
		},
		{
			use: "list", short: "List the policies; without a management token, your own",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.ACL.ListACLPolicies(ctx, &hostv1.ListACLPoliciesRequest{})
				return list(c.Printer, resp, err, resp.GetPolicies(), columns[*hostv1.ACLPolicy]{
					[]string{"NAME", "DESCRIPTION", "CHANGED"},
					func(t *Table, p *hostv1.ACLPolicy) { t.Row(p.GetName(), p.GetDescription(), age(p.GetModifiedAt())) },
					"no policies; add one: pannier acl policy apply NAME FILE",
				})
			},
		},
		{
			use: "read NAME", short: "Write a policy's rules to standard output", example: "developers",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.ACL.GetACLPolicy(ctx, &hostv1.GetACLPolicyRequest{Name: c.args[0]})
				return c.Print(resp, err, func() {
					for line := range strings.Lines(resp.GetPolicy().GetRules()) {
						c.Say("%s", strings.TrimSuffix(line, "\n"))
					}
				})
			},
		},
		{
			use: "delete NAME", short: "Delete a policy; tokens and roles that have it lose what it allowed",
			example: "developers",
			run: order("policy %q is deleted", func(ctx context.Context, c *call) (any, error) {
				return c.ACL.DeleteACLPolicy(ctx, &hostv1.DeleteACLPolicyRequest{Name: c.args[0]})
			}),
		},
	}
}

func roleVerbs() []verb {
	put := &hostv1.PutACLRoleRequest{}
	return []verb{
		{
			use: "apply NAME", short: "Add a role, or replace its policies",
			example: "on-call -policy developers -policy operators",
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&put.Description, "description", "", "what the role is for, as `TEXT`")
				f.StringArrayVar(&put.Policies, "policy", nil, "a policy's `NAME`; may be given more than once")
			},
			needs: []string{"policy"},
			run: order("role %q is applied; give it to a token: pannier acl token create -role %[1]s",
				func(ctx context.Context, c *call) (any, error) {
					put.Name = c.args[0]
					return c.ACL.PutACLRole(ctx, put)
				}),
		},
		{
			use: "list", short: "List the roles",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.ACL.ListACLRoles(ctx, &hostv1.ListACLRolesRequest{})
				return list(c.Printer, resp, err, resp.GetRoles(), columns[*hostv1.ACLRole]{
					[]string{"NAME", "POLICIES", "DESCRIPTION", "CHANGED"},
					func(t *Table, r *hostv1.ACLRole) {
						t.Row(r.GetName(), listed(r.GetPolicies()), r.GetDescription(), age(r.GetModifiedAt()))
					},
					"no roles; add one: pannier acl role apply NAME -policy POLICY",
				})
			},
		},
		{
			use: "read NAME", short: "Show a role", example: "on-call",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.ACL.GetACLRole(ctx, &hostv1.GetACLRoleRequest{Name: c.args[0]})
				r, t := resp.GetRole(), NewTable()
				t.Row("Name", r.GetName())
				t.Row("Description", r.GetDescription())
				t.Row("Policies", listed(r.GetPolicies()))
				t.Row("Changed", age(r.GetModifiedAt()))
				return c.Tables(resp, err, t)
			},
		},
		{
			use: "delete NAME", short: "Delete a role; tokens that have it lose what it allowed", example: "on-call",
			run: order("role %q is deleted", func(ctx context.Context, c *call) (any, error) {
				return c.ACL.DeleteACLRole(ctx, &hostv1.DeleteACLRoleRequest{Name: c.args[0]})
			}),
		},
	}
}

func aclTokenVerbs() []verb {
	req := &hostv1.CreateACLTokenRequest{}
	var ttl time.Duration
	const accessor = "2fa9d2ab-9707-4bbe-8a11-c7dc30fc76d8"
	return []verb{
		{
			use: "create", short: "Make a token, and show its secret once", example: "-name alice -policy developers -ttl 720h",
			flags: func(f *pflag.FlagSet) {
				f.StringVar(&req.Name, "name", "", "what or whom the token is for, as `TEXT`")
				f.StringVar(&req.Type, "type", "client", "the `TYPE`: client, or management, which may do everything")
				f.StringArrayVar(&req.Policies, "policy", nil, "a policy's `NAME`; may be given more than once")
				f.StringArrayVar(&req.Roles, "role", nil, "a role's `NAME`; may be given more than once")
				f.DurationVar(&ttl, "ttl", 0, "the `TIME` after which it expires, such as 8h (default: never)")
			},
			run: func(ctx context.Context, c *call) error {
				if ttl < 0 {
					return Usage("-ttl %s is not above 0", ttl)
				}
				if ttl > 0 {
					req.Ttl = durationpb.New(ttl)
				}
				resp, err := c.ACL.CreateACLToken(ctx, req)
				err = hint(err, ExitNotFound, "pannier acl policy list and pannier acl role list list what there is")
				return newToken(c, resp, err)
			},
		},
		{
			use: "list", short: "List the tokens, without their secrets",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.ACL.ListACLTokens(ctx, &hostv1.ListACLTokensRequest{})
				return list(c.Printer, resp, err, resp.GetTokens(), columns[*hostv1.ACLToken]{
					[]string{"ACCESSOR", "NAME", "TYPE", "POLICIES", "ROLES", "AGE", "EXPIRES"},
					func(t *Table, k *hostv1.ACLToken) {
						t.Row(k.GetAccessor(), k.GetName(), k.GetType(), listed(k.GetPolicies()), listed(k.GetRoles()),
							age(k.GetCreatedAt()), expires(k))
					},
					"no tokens; make the first: pannier acl bootstrap",
				})
			},
		},
		{
			use: "read ACCESSOR", short: "Show a token, without its secret", example: accessor,
			run: func(ctx context.Context, c *call) error {
				resp, err := c.ACL.GetACLToken(ctx, &hostv1.GetACLTokenRequest{Accessor: c.args[0]})
				return c.Tables(resp, err, aclTokenTable(resp.GetToken()))
			},
		},
		{
			use: "delete ACCESSOR", short: "Delete a token; it is refused at once", example: accessor,
			run: order("token %s is deleted", func(ctx context.Context, c *call) (any, error) {
				return c.ACL.DeleteACLToken(ctx, &hostv1.DeleteACLTokenRequest{Accessor: c.args[0]})
			}),
		},
		{
			use: "self", short: "Show the token of this call, and what it allows",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.ACL.GetACLSelf(ctx, &hostv1.GetACLSelfRequest{})
				return c.Tables(resp, err, selfTable(resp))
			},
		},
	}
}

// newToken shows a token with its secret, for the only time.
func newToken(c *call, m interface {
	GetToken() *hostv1.ACLToken
	GetSecret() string
}, err error,
) error {
	return c.Print(m, err, func() {
		t := aclTokenTable(m.GetToken())
		t.Row("Secret", m.GetSecret())
		c.Note("the secret is not shown again; call with it by -token-file FILE or %s", tokenEnv)
		c.Show(t)
	})
}

// expires is a cell with the time until a token expires.
func expires(t *hostv1.ACLToken) Cell {
	if at := t.GetExpiresAt(); at != nil && !at.AsTime().After(time.Now()) {
		return Cell{"expired", Red}
	}
	return Cell{ahead(t.GetExpiresAt()), ""}
}

func selfTable(m *hostv1.GetACLSelfResponse) *Table {
	t := NewTable()
	t.Row("Accessor", "")
	if m.GetToken() != nil {
		t = aclTokenTable(m.GetToken())
	}
	may := "what these policies allow: " + listed(names(m.GetPolicies(), (*hostv1.ACLPolicy).GetName))
	switch {
	case m.GetManagement():
		may = "everything"
	case len(m.GetPolicies()) == 0:
		may = "nothing"
	}
	t.Row("May do", may)
	return t
}

func aclTokenTable(t *hostv1.ACLToken) *Table {
	out := NewTable()
	out.Row("Accessor", t.GetAccessor())
	out.Row("Name", t.GetName())
	out.Row("Type", t.GetType())
	out.Row("Policies", listed(t.GetPolicies()))
	out.Row("Roles", listed(t.GetRoles()))
	out.Row("Created", age(t.GetCreatedAt()))
	out.Row("Expires", expires(t))
	return out
}
