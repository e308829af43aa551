package cli

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) aclRoleCommand() *cobra.Command {
	return a.noun("role", "Roles: several policies under one name",
		a.aclRoleApply(), a.aclRoleList(), a.aclRoleRead(), a.aclRoleDelete())
}

func (a *app) aclRoleApply() *cobra.Command {
	var description string
	var policies []string
	cmd := &cobra.Command{
		Use: "apply NAME", Short: "Add a role, or give one other policies",
		Args: exactly("NAME"), ValidArgsFunction: a.completeIDs(roleNames),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.PutACLRole(ctx, connect.NewRequest(&hostv1.PutACLRoleRequest{
				Name: args[0], Description: description, Policies: policies,
			}))
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl policy list lists the policies")
			}
			return a.print(resp.Msg, func() error {
				a.note("role %q is applied; give it to a token: pannier acl token create -role %s", args[0], args[0])
				return nil
			})
		}),
	}
	cmd.Flags().StringVar(&description, "description", "", "what the role is for, as `TEXT`")
	cmd.Flags().StringArrayVar(&policies, "policy", nil, "a policy's `NAME`; may be given more than once")
	complete(cmd, "policy", a.completeIDs(policyNames))
	require(cmd, "policy")
	return cmd
}

var roleNames = aclNames(func(ctx context.Context, client *api.Client) ([]*hostv1.ACLRole, error) {
	resp, err := client.ACL.ListACLRoles(ctx, connect.NewRequest(&hostv1.ListACLRolesRequest{}))
	if err != nil {
		return nil, err
	}
	return resp.Msg.GetRoles(), nil
}, (*hostv1.ACLRole).GetName)

func (a *app) aclRoleList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the roles",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.ListACLRoles(ctx, connect.NewRequest(&hostv1.ListACLRolesRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error {
				if len(resp.Msg.GetRoles()) == 0 {
					a.note("no roles; add one: pannier acl role apply NAME -policy POLICY")
					return nil
				}
				t := newTable("NAME", "POLICIES", "DESCRIPTION", "CHANGED")
				for _, r := range resp.Msg.GetRoles() {
					t.row(r.GetName(), listed(r.GetPolicies()), r.GetDescription(), age(r.GetModifiedAt()))
				}
				return a.show(t)
			})
		}),
	}
}

func (a *app) aclRoleRead() *cobra.Command {
	return &cobra.Command{
		Use: "read NAME", Short: "Show a role",
		Args: exactly("NAME"), ValidArgsFunction: a.completeIDs(roleNames),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.GetACLRole(ctx, connect.NewRequest(&hostv1.GetACLRoleRequest{Name: args[0]}))
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl role list lists the roles")
			}
			return a.print(resp.Msg, func() error {
				r, t := resp.Msg.GetRole(), newTable()
				t.row("Name", r.GetName())
				t.row("Description", r.GetDescription())
				t.row("Policies", listed(r.GetPolicies()))
				t.row("Changed", age(r.GetModifiedAt()))
				return a.show(t)
			})
		}),
	}
}

func (a *app) aclRoleDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Take a role away; tokens that have it lose what it allowed",
		Args: exactly("NAME"), ValidArgsFunction: a.completeIDs(roleNames),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.DeleteACLRole(ctx, connect.NewRequest(&hostv1.DeleteACLRoleRequest{Name: args[0]}))
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl role list lists the roles")
			}
			return a.print(resp.Msg, func() error { a.note("role %q is deleted", args[0]); return nil })
		}),
	}
}
