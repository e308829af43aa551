package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) aclTokenCommand() *cobra.Command {
	return a.noun("token", "Tokens of callers, with their policies and roles",
		a.aclTokenCreate(), a.aclTokenList(), a.aclTokenRead(), a.aclTokenDelete(), a.aclTokenSelf())
}

func (a *app) aclTokenCreate() *cobra.Command {
	req := &hostv1.CreateACLTokenRequest{}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "create", Short: "Make a token, and show its secret once",
		Example: "pannier acl token create -name alice -policy developers -ttl 720h",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			if ttl < 0 {
				return &usageError{err: fmt.Errorf("-ttl %s is not above 0", ttl), command: "pannier acl token create"}
			}
			if ttl > 0 {
				req.Ttl = durationpb.New(ttl)
			}
			resp, err := client.ACL.CreateACLToken(ctx, req)
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl policy list and pannier acl role list list what there is")
			}
			return a.print(resp, func() error { return a.showNewToken(resp.GetToken(), resp.GetSecret()) })
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&req.Name, "name", "", "what or whom the token is for, as `TEXT`")
	flags.StringVar(&req.Type, "type", "client", "the `TYPE`: client, or management, which may do everything")
	flags.StringArrayVar(&req.Policies, "policy", nil, "a policy's `NAME`; may be given more than once")
	flags.StringArrayVar(&req.Roles, "role", nil, "a role's `NAME`; may be given more than once")
	flags.DurationVar(&ttl, "ttl", 0, "the `TIME` after which it expires, such as 8h (default: never)")
	complete(cmd, "policy", a.completeIDs(policyNames))
	complete(cmd, "role", a.completeIDs(roleNames))
	return cmd
}

var tokenAccessors = aclNames(func(ctx context.Context, client *api.Client) ([]*hostv1.ACLToken, error) {
	resp, err := client.ACL.ListACLTokens(ctx, &hostv1.ListACLTokensRequest{})
	if err != nil {
		return nil, err
	}
	return resp.GetTokens(), nil
}, (*hostv1.ACLToken).GetAccessor)

func (a *app) aclTokenList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the tokens, without their secrets",
		Example: "pannier acl token list",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.ACL.ListACLTokens(ctx, &hostv1.ListACLTokensRequest{})
			if err != nil {
				return err
			}
			return a.print(resp, func() error {
				if len(resp.GetTokens()) == 0 {
					a.note("no tokens; make the first: pannier acl bootstrap")
					return nil
				}
				t := newTable("ACCESSOR", "NAME", "TYPE", "POLICIES", "ROLES", "AGE", "EXPIRES")
				for _, k := range resp.GetTokens() {
					t.row(k.GetAccessor(), k.GetName(), k.GetType(), listed(k.GetPolicies()), listed(k.GetRoles()),
						age(k.GetCreatedAt()), expires(k))
				}
				return a.show(t)
			})
		}),
	}
}

// expires is a cell with the time until a token expires.
func expires(t *hostv1.ACLToken) cell {
	if at := t.GetExpiresAt(); at != nil && !at.AsTime().After(time.Now()) {
		return cell{"expired", red}
	}
	return cell{ahead(t.GetExpiresAt()), ""}
}

func (a *app) aclTokenRead() *cobra.Command {
	return &cobra.Command{
		Use: "read ACCESSOR", Short: "Show a token, without its secret",
		Example: "pannier acl token read 2fa9d2ab-9707-4bbe-8a11-c7dc30fc76d8",
		Args:    exactly("ACCESSOR"), ValidArgsFunction: a.completeIDs(tokenAccessors),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.ACL.GetACLToken(ctx, &hostv1.GetACLTokenRequest{Accessor: args[0]})
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl token list lists the tokens")
			}
			return a.print(resp, func() error { return a.show(a.aclTokenTable(resp.GetToken())) })
		}),
	}
}

func (a *app) aclTokenDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete ACCESSOR", Short: "Delete a token; it is refused at once",
		Example: "pannier acl token delete 2fa9d2ab-9707-4bbe-8a11-c7dc30fc76d8",
		Args:    exactly("ACCESSOR"), ValidArgsFunction: a.completeIDs(tokenAccessors),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, args []string) error {
			resp, err := client.ACL.DeleteACLToken(ctx, &hostv1.DeleteACLTokenRequest{Accessor: args[0]})
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl token list lists the tokens")
			}
			return a.print(resp, func() error { a.note("token %s is deleted", args[0]); return nil })
		}),
	}
}

func (a *app) aclTokenSelf() *cobra.Command {
	return &cobra.Command{
		Use: "self", Short: "Show the token of this call, and what it allows",
		Example: "pannier acl token self",
		Args:    exactly(),
		RunE: a.withClient(func(ctx context.Context, client *api.Client, _ []string) error {
			resp, err := client.ACL.GetACLSelf(ctx, &hostv1.GetACLSelfRequest{})
			if err != nil {
				return err
			}
			return a.print(resp, func() error { return a.showSelf(resp) })
		}),
	}
}

func (a *app) showSelf(m *hostv1.GetACLSelfResponse) error {
	t := newTable()
	if m.GetToken() != nil {
		t = a.aclTokenTable(m.GetToken())
	} else {
		t.row("Accessor", "")
	}
	may := "what these policies allow: "
	for i, p := range m.GetPolicies() {
		if i > 0 {
			may += ", "
		}
		may += p.GetName()
	}
	switch {
	case m.GetManagement():
		may = "everything"
	case len(m.GetPolicies()) == 0:
		may = "nothing"
	}
	t.row("May do", may)
	return a.show(t)
}

func (a *app) aclTokenTable(t *hostv1.ACLToken) *table {
	out := newTable()
	out.row("Accessor", t.GetAccessor())
	out.row("Name", t.GetName())
	out.row("Type", t.GetType())
	out.row("Policies", listed(t.GetPolicies()))
	out.row("Roles", listed(t.GetRoles()))
	out.row("Created", age(t.GetCreatedAt()))
	out.row("Expires", expires(t))
	return out
}
