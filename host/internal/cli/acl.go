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
		Example: "pannier acl bootstrap",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.ACL.BootstrapACL(ctx, &hostv1.BootstrapACLRequest{})
			if err != nil {
				return err
			}
			return a.Print(resp, func() error { return a.showNewToken(resp.GetToken(), resp.GetSecret()) })
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
func (a *App) showNewToken(t *hostv1.ACLToken, secret string) error {
	table := a.aclTokenTable(t)
	table.Row("Secret", secret)
	if err := a.Show(table); err != nil {
		return err
	}
	a.Note("the secret is not shown again; call with it by -token-file FILE or %s", tokenEnv)
	return nil
}

// listed writes names for a table.
func listed(names []string) string { return strings.Join(names, ", ") }

// aclNames completes by what the agent has.
func aclNames[T any](list func(ctx context.Context, client *api.Client) ([]T, error), name func(T) string) lister {
	return func(ctx context.Context, client *api.Client, _ string) (names []string, err error) {
		all, err := list(ctx, client)
		for _, one := range all {
			names = append(names, name(one))
		}
		return names, err
	}
}

// maxPolicy bounds a policy's file, in bytes; the agent takes 64 KiB.
const maxPolicy = 1 << 20

func (a *App) aclPolicyCommand() *cobra.Command {
	return a.Noun("policy", "Policies: what is allowed",
		a.aclPolicyApply(), a.aclPolicyList(), a.aclPolicyRead(), a.aclPolicyDelete())
}

func (a *App) aclPolicyApply() *cobra.Command {
	var description string
	cmd := &cobra.Command{
		Use: "apply NAME FILE", Short: "Add a policy, or replace its rules",
		Long: `Add a policy, or replace its rules. FILE has the rules in HCL or JSON; - is
standard input. The policy "anonymous" applies to calls without a token.`,
		Example: "pannier acl policy apply developers developers.hcl",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			rules, err := readPolicy(args[1])
			if err != nil {
				return err
			}
			resp, err := client.ACL.PutACLPolicy(ctx,
				&hostv1.PutACLPolicyRequest{Name: args[0], Description: description, Rules: rules})
			if err != nil {
				return err
			}
			return a.Print(resp, func() error {
				a.Note("policy %q is applied; give it to a token: pannier acl token create -policy %s", args[0], args[0])
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&description, "description", "", "what the policy is for, as `TEXT`")
	return cmd
}

func readPolicy(path string) (string, error) {
	in := io.Reader(os.Stdin)
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", Usage("read the policy: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPolicy))
	if err != nil {
		return "", Usage("read the policy: %w", err)
	}
	return string(text), nil
}

var policyNames = aclNames(func(ctx context.Context, client *api.Client) ([]*hostv1.ACLPolicy, error) {
	resp, err := client.ACL.ListACLPolicies(ctx, &hostv1.ListACLPoliciesRequest{})
	if err != nil {
		return nil, err
	}
	return resp.GetPolicies(), nil
}, (*hostv1.ACLPolicy).GetName)

func (a *App) aclPolicyList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the policies; without a management token, your own",
		Example: "pannier acl policy list",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.ACL.ListACLPolicies(ctx, &hostv1.ListACLPoliciesRequest{})
			if err != nil {
				return err
			}
			return a.Print(resp, func() error {
				if len(resp.GetPolicies()) == 0 {
					a.Note("no policies; add one: pannier acl policy apply NAME FILE")
					return nil
				}
				t := NewTable("NAME", "DESCRIPTION", "CHANGED")
				for _, p := range resp.GetPolicies() {
					t.Row(p.GetName(), p.GetDescription(), age(p.GetModifiedAt()))
				}
				return a.Show(t)
			})
		}),
	}
}

func (a *App) aclPolicyRead() *cobra.Command {
	return &cobra.Command{
		Use: "read NAME", Short: "Write a policy's rules to standard output",
		Example:           "pannier acl policy read developers",
		ValidArgsFunction: a.CompleteIDs(policyNames),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.ACL.GetACLPolicy(ctx, &hostv1.GetACLPolicyRequest{Name: args[0]})
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl policy list lists the policies")
			}
			return a.Print(resp, func() error {
				for line := range strings.Lines(resp.GetPolicy().GetRules()) {
					fmt.Fprintln(a.Out, printable(strings.TrimSuffix(line, "\n")))
				}
				return nil
			})
		}),
	}
}

func (a *App) aclPolicyDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a policy; tokens and roles that have it lose what it allowed",
		Example:           "pannier acl policy delete developers",
		ValidArgsFunction: a.CompleteIDs(policyNames),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.ACL.DeleteACLPolicy(ctx, &hostv1.DeleteACLPolicyRequest{Name: args[0]})
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl policy list lists the policies")
			}
			return a.Print(resp, func() error { a.Note("policy %q is deleted", args[0]); return nil })
		}),
	}
}

func (a *App) aclRoleCommand() *cobra.Command {
	return a.Noun("role", "Roles: sets of policies",
		a.aclRoleApply(), a.aclRoleList(), a.aclRoleRead(), a.aclRoleDelete())
}

func (a *App) aclRoleApply() *cobra.Command {
	var description string
	var policies []string
	cmd := &cobra.Command{
		Use: "apply NAME", Short: "Add a role, or replace its policies",
		Example:           "pannier acl role apply on-call -policy developers -policy operators",
		ValidArgsFunction: a.CompleteIDs(roleNames),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.ACL.PutACLRole(ctx, &hostv1.PutACLRoleRequest{
				Name: args[0], Description: description, Policies: policies,
			})
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl policy list lists the policies")
			}
			return a.Print(resp, func() error {
				a.Note("role %q is applied; give it to a token: pannier acl token create -role %s", args[0], args[0])
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&description, "description", "", "what the role is for, as `TEXT`")
	cmd.Flags().StringArrayVar(&policies, "policy", nil, "a policy's `NAME`; may be given more than once")
	completeFlag(cmd, "policy", a.CompleteIDs(policyNames))
	require(cmd, "policy")
	return cmd
}

var roleNames = aclNames(func(ctx context.Context, client *api.Client) ([]*hostv1.ACLRole, error) {
	resp, err := client.ACL.ListACLRoles(ctx, &hostv1.ListACLRolesRequest{})
	if err != nil {
		return nil, err
	}
	return resp.GetRoles(), nil
}, (*hostv1.ACLRole).GetName)

func (a *App) aclRoleList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the roles",
		Example: "pannier acl role list",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.ACL.ListACLRoles(ctx, &hostv1.ListACLRolesRequest{})
			if err != nil {
				return err
			}
			return a.Print(resp, func() error {
				if len(resp.GetRoles()) == 0 {
					a.Note("no roles; add one: pannier acl role apply NAME -policy POLICY")
					return nil
				}
				t := NewTable("NAME", "POLICIES", "DESCRIPTION", "CHANGED")
				for _, r := range resp.GetRoles() {
					t.Row(r.GetName(), listed(r.GetPolicies()), r.GetDescription(), age(r.GetModifiedAt()))
				}
				return a.Show(t)
			})
		}),
	}
}

func (a *App) aclRoleRead() *cobra.Command {
	return &cobra.Command{
		Use: "read NAME", Short: "Show a role",
		Example:           "pannier acl role read on-call",
		ValidArgsFunction: a.CompleteIDs(roleNames),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.ACL.GetACLRole(ctx, &hostv1.GetACLRoleRequest{Name: args[0]})
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl role list lists the roles")
			}
			return a.Print(resp, func() error {
				r, t := resp.GetRole(), NewTable()
				t.Row("Name", r.GetName())
				t.Row("Description", r.GetDescription())
				t.Row("Policies", listed(r.GetPolicies()))
				t.Row("Changed", age(r.GetModifiedAt()))
				return a.Show(t)
			})
		}),
	}
}

func (a *App) aclRoleDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a role; tokens that have it lose what it allowed",
		Example:           "pannier acl role delete on-call",
		ValidArgsFunction: a.CompleteIDs(roleNames),
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.ACL.DeleteACLRole(ctx, &hostv1.DeleteACLRoleRequest{Name: args[0]})
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl role list lists the roles")
			}
			return a.Print(resp, func() error { a.Note("role %q is deleted", args[0]); return nil })
		}),
	}
}
