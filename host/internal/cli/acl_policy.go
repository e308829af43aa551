package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// maxPolicy bounds a policy's file, in bytes; the agent takes 64 KiB.
const maxPolicy = 1 << 20

func (a *app) aclPolicyCommand() *cobra.Command {
	return a.noun("policy", "Policies: what may be done",
		a.aclPolicyApply(), a.aclPolicyList(), a.aclPolicyRead(), a.aclPolicyDelete())
}

func (a *app) aclPolicyApply() *cobra.Command {
	var description string
	cmd := &cobra.Command{
		Use: "apply NAME FILE", Short: "Add a policy, or give one another text",
		Long: "Add a policy, or give one another text. FILE has the rules in HCL or JSON; - is\nstandard input. The policy \"anonymous\" is for calls without a token.",
		Args: exactly("NAME", "FILE"),
		RunE: a.do(func(ctx context.Context, args []string) error {
			rules, err := readPolicy(args[1])
			if err != nil {
				return err
			}
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.PutACLPolicy(ctx, connect.NewRequest(&hostv1.PutACLPolicyRequest{Name: args[0], Description: description, Rules: rules}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error {
				a.note("policy %q is applied; give it to a token: pannier acl token create -policy %s", args[0], args[0])
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
			return "", &usageError{err: fmt.Errorf("read the policy: %w", err)}
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxPolicy))
	if err != nil {
		return "", &usageError{err: fmt.Errorf("read the policy: %w", err)}
	}
	return string(text), nil
}

var policyNames = aclNames(func(ctx context.Context, client *api.Client) ([]*hostv1.ACLPolicy, error) {
	resp, err := client.ACL.ListACLPolicies(ctx, connect.NewRequest(&hostv1.ListACLPoliciesRequest{}))
	if err != nil {
		return nil, err
	}
	return resp.Msg.GetPolicies(), nil
}, (*hostv1.ACLPolicy).GetName)

func (a *app) aclPolicyList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the policies that there are; without a management token, your own",
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.ListACLPolicies(ctx, connect.NewRequest(&hostv1.ListACLPoliciesRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error {
				if len(resp.Msg.GetPolicies()) == 0 {
					a.note("no policies; add one: pannier acl policy apply NAME FILE")
					return nil
				}
				t := newTable("NAME", "DESCRIPTION", "CHANGED")
				for _, p := range resp.Msg.GetPolicies() {
					t.row(p.GetName(), p.GetDescription(), age(p.GetModifiedAt()))
				}
				return a.show(t)
			})
		}),
	}
}

func (a *app) aclPolicyRead() *cobra.Command {
	return &cobra.Command{
		Use: "read NAME", Short: "Write a policy's rules to standard output",
		Args: exactly("NAME"), ValidArgsFunction: a.completeIDs(policyNames),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.GetACLPolicy(ctx, connect.NewRequest(&hostv1.GetACLPolicyRequest{Name: args[0]}))
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl policy list lists the policies")
			}
			return a.print(resp.Msg, func() error {
				for line := range strings.Lines(resp.Msg.GetPolicy().GetRules()) {
					fmt.Fprintln(a.out, printable(strings.TrimSuffix(line, "\n")))
				}
				return nil
			})
		}),
	}
}

func (a *app) aclPolicyDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Take a policy away; tokens and roles that have it lose what it allowed",
		Args: exactly("NAME"), ValidArgsFunction: a.completeIDs(policyNames),
		RunE: a.do(func(ctx context.Context, args []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.DeleteACLPolicy(ctx, connect.NewRequest(&hostv1.DeleteACLPolicyRequest{Name: args[0]}))
			if err != nil {
				return hint(err, ExitNotFound, "pannier acl policy list lists the policies")
			}
			return a.print(resp.Msg, func() error { a.note("policy %q is deleted", args[0]); return nil })
		}),
	}
}
