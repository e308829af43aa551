package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) aclCommand() *cobra.Command {
	return a.Noun("acl", "Access control: policies, roles and tokens",
		a.aclBootstrap(), a.aclPolicyCommand(), a.aclRoleCommand(), a.aclTokenCommand())
}

func (a *App) aclBootstrap() *cobra.Command {
	return &cobra.Command{
		Use: "bootstrap", Short: "Make the first management token, once",
		Long: `Make the first management token, once. Run it as root on a server, or with a
certificate of the role cli. The secret is shown only once: keep it where only operators can
read it. When all management tokens are lost, the error says how to make another.`,
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.ACL.BootstrapACL(ctx, &hostv1.BootstrapACLRequest{})
			return a.Print(resp, err, func() { a.showNewToken(resp.GetToken(), resp.GetSecret()) })
		}),
	}
}

// tokenEnv is the variable with the secret of the token to call with.
const tokenEnv = "PANNIER_TOKEN"

// token is the secret to call with: that of the file, or of the environment. No flag takes
// one: an argument list can be read by every user of the machine.
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

// showNewToken shows a token with its secret, for the only time.
func (a *App) showNewToken(t *hostv1.ACLToken, secret string) {
	table := aclTokenTable(t)
	table.Row("Secret", secret)
	a.Note("the secret is not shown again; call with it by -token-file FILE or %s", tokenEnv)
	a.Show(table)
}

// listed writes names for a table.
func listed(names []string) string { return strings.Join(names, ", ") }

// maxPolicy bounds a policy's file, in bytes; the agent takes 64 KiB.
const maxPolicy = 1 << 20

func (a *App) aclPolicyCommand() *cobra.Command {
	return a.Noun("policy", "Policies: what is allowed",
		a.aclPolicyApply(),
		&cobra.Command{
			Use: "list", Short: "List the policies; without a management token, your own",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
				resp, err := client.ACL.ListACLPolicies(ctx, &hostv1.ListACLPoliciesRequest{})
				return a.Print(resp, err, func() {
					t := NewTable("NAME", "DESCRIPTION", "CHANGED")
					for _, p := range resp.GetPolicies() {
						t.Row(p.GetName(), p.GetDescription(), age(p.GetModifiedAt()))
					}
					a.List(t, "no policies; add one: pannier acl policy apply NAME FILE")
				})
			}),
		},
		&cobra.Command{
			Use: "read NAME", Short: "Write a policy's rules to standard output",
			Example: "pannier acl policy read developers",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.ACL.GetACLPolicy(ctx, &hostv1.GetACLPolicyRequest{Name: args[0]})
				return a.Print(resp, err, func() {
					for line := range strings.Lines(resp.GetPolicy().GetRules()) {
						a.Say("%s", strings.TrimSuffix(line, "\n"))
					}
				})
			}),
		},
		&cobra.Command{
			Use: "delete NAME", Short: "Delete a policy; tokens and roles that have it lose what it allowed",
			Example: "pannier acl policy delete developers",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.ACL.DeleteACLPolicy(ctx, &hostv1.DeleteACLPolicyRequest{Name: args[0]})
				return a.Done(resp, err, "policy %q is deleted", args[0])
			}),
		})
}

func (a *App) aclPolicyApply() *cobra.Command {
	req := &hostv1.PutACLPolicyRequest{}
	cmd := &cobra.Command{
		Use: "apply NAME FILE", Short: "Add a policy, or replace its rules",
		Long: `Add a policy, or replace its rules. FILE has the rules in HCL or JSON; - is
standard input. The policy "anonymous" applies to calls without a token.`,
		Example: "pannier acl policy apply developers developers.hcl",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			rules, err := readFile(args[1], maxPolicy)
			if err != nil {
				return Usage("read the policy: %w", err)
			}
			req.Name, req.Rules = args[0], rules
			resp, err := client.ACL.PutACLPolicy(ctx, req)
			return a.Done(resp, err, "policy %q is applied; give it to a token: pannier acl token create -policy %s", args[0],
				args[0])
		}),
	}
	cmd.Flags().StringVar(&req.Description, "description", "", "what the policy is for, as `TEXT`")
	return cmd
}

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

func (a *App) aclRoleCommand() *cobra.Command {
	return a.Noun("role", "Roles: sets of policies",
		a.aclRoleApply(),
		&cobra.Command{
			Use: "list", Short: "List the roles",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
				resp, err := client.ACL.ListACLRoles(ctx, &hostv1.ListACLRolesRequest{})
				return a.Print(resp, err, func() {
					t := NewTable("NAME", "POLICIES", "DESCRIPTION", "CHANGED")
					for _, r := range resp.GetRoles() {
						t.Row(r.GetName(), listed(r.GetPolicies()), r.GetDescription(), age(r.GetModifiedAt()))
					}
					a.List(t, "no roles; add one: pannier acl role apply NAME -policy POLICY")
				})
			}),
		},
		&cobra.Command{
			Use: "read NAME", Short: "Show a role",
			Example: "pannier acl role read on-call",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.ACL.GetACLRole(ctx, &hostv1.GetACLRoleRequest{Name: args[0]})
				return a.Print(resp, err, func() {
					r, t := resp.GetRole(), NewTable()
					t.Row("Name", r.GetName())
					t.Row("Description", r.GetDescription())
					t.Row("Policies", listed(r.GetPolicies()))
					t.Row("Changed", age(r.GetModifiedAt()))
					a.Show(t)
				})
			}),
		},
		&cobra.Command{
			Use: "delete NAME", Short: "Delete a role; tokens that have it lose what it allowed",
			Example: "pannier acl role delete on-call",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.ACL.DeleteACLRole(ctx, &hostv1.DeleteACLRoleRequest{Name: args[0]})
				return a.Done(resp, err, "role %q is deleted", args[0])
			}),
		})
}

func (a *App) aclRoleApply() *cobra.Command {
	req := &hostv1.PutACLRoleRequest{}
	cmd := &cobra.Command{
		Use: "apply NAME", Short: "Add a role, or replace its policies",
		Example: "pannier acl role apply on-call -policy developers -policy operators",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			req.Name = args[0]
			resp, err := client.ACL.PutACLRole(ctx, req)
			return a.Done(resp, err,
				"role %q is applied; give it to a token: pannier acl token create -role %s", args[0], args[0])
		}),
	}
	cmd.Flags().StringVar(&req.Description, "description", "", "what the role is for, as `TEXT`")
	cmd.Flags().StringArrayVar(&req.Policies, "policy", nil, "a policy's `NAME`; may be given more than once")
	require(cmd, "policy")
	return cmd
}
