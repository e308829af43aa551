package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) aclTokenCommand() *cobra.Command {
	return a.Noun("token", "Tokens of callers, with their policies and roles",
		a.aclTokenCreate(),
		&cobra.Command{
			Use: "list", Short: "List the tokens, without their secrets",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
				resp, err := client.ACL.ListACLTokens(ctx, &hostv1.ListACLTokensRequest{})
				return a.Print(resp, err, func() {
					t := NewTable("ACCESSOR", "NAME", "TYPE", "POLICIES", "ROLES", "AGE", "EXPIRES")
					for _, k := range resp.GetTokens() {
						t.Row(k.GetAccessor(), k.GetName(), k.GetType(), listed(k.GetPolicies()), listed(k.GetRoles()),
							age(k.GetCreatedAt()), expires(k))
					}
					a.List(t, "no tokens; make the first: pannier acl bootstrap")
				})
			}),
		},
		&cobra.Command{
			Use: "read ACCESSOR", Short: "Show a token, without its secret",
			Example: "pannier acl token read 2fa9d2ab-9707-4bbe-8a11-c7dc30fc76d8",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.ACL.GetACLToken(ctx, &hostv1.GetACLTokenRequest{Accessor: args[0]})
				return a.Print(resp, err,
					func() { a.Show(aclTokenTable(resp.GetToken())) })
			}),
		},
		&cobra.Command{
			Use: "delete ACCESSOR", Short: "Delete a token; it is refused at once",
			Example: "pannier acl token delete 2fa9d2ab-9707-4bbe-8a11-c7dc30fc76d8",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, args []string) error {
				resp, err := client.ACL.DeleteACLToken(ctx, &hostv1.DeleteACLTokenRequest{Accessor: args[0]})
				return a.Done(resp, err, "token %s is deleted", args[0])
			}),
		},
		&cobra.Command{
			Use: "self", Short: "Show the token of this call, and what it allows",
			RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
				resp, err := client.ACL.GetACLSelf(ctx, &hostv1.GetACLSelfRequest{})
				return a.Print(resp, err, func() { a.showSelf(resp) })
			}),
		})
}

func (a *App) aclTokenCreate() *cobra.Command {
	req := &hostv1.CreateACLTokenRequest{}
	var ttl time.Duration
	cmd := &cobra.Command{
		Use: "create", Short: "Make a token, and show its secret once",
		Example: "pannier acl token create -name alice -policy developers -ttl 720h",
		RunE: a.WithClient(func(ctx context.Context, client *api.Client, _ []string) error {
			if ttl < 0 {
				return Usage("-ttl %s is not above 0", ttl)
			}
			if ttl > 0 {
				req.Ttl = durationpb.New(ttl)
			}
			resp, err := client.ACL.CreateACLToken(ctx, req)
			err = hint(err, ExitNotFound, "pannier acl policy list and pannier acl role list list what there is")
			return a.Print(resp, err, func() { a.showNewToken(resp.GetToken(), resp.GetSecret()) })
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&req.Name, "name", "", "what or whom the token is for, as `TEXT`")
	flags.StringVar(&req.Type, "type", "client", "the `TYPE`: client, or management, which may do everything")
	flags.StringArrayVar(&req.Policies, "policy", nil, "a policy's `NAME`; may be given more than once")
	flags.StringArrayVar(&req.Roles, "role", nil, "a role's `NAME`; may be given more than once")
	flags.DurationVar(&ttl, "ttl", 0, "the `TIME` after which it expires, such as 8h (default: never)")
	return cmd
}

// expires is a cell with the time until a token expires.
func expires(t *hostv1.ACLToken) Cell {
	if at := t.GetExpiresAt(); at != nil && !at.AsTime().After(time.Now()) {
		return Cell{"expired", Red}
	}
	return Cell{ahead(t.GetExpiresAt()), ""}
}

func (a *App) showSelf(m *hostv1.GetACLSelfResponse) {
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
	a.Show(t)
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
