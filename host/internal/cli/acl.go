package cli

import (
	"context"
	"fmt"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *app) aclCommand() *cobra.Command {
	return a.noun("acl", "Who may do what: policies, roles and tokens",
		a.aclBootstrap(), a.aclPolicyCommand(), a.aclRoleCommand(), a.aclTokenCommand())
}

func (a *app) aclBootstrap() *cobra.Command {
	return &cobra.Command{
		Use: "bootstrap", Short: "Make the first management token, once",
		Long: `Make the first management token, once. Run it as root on a server, or with a
certificate of the role cli. The secret is shown once: keep it where only operators can
read it. Where the management tokens are lost, the error says how to do it again.`,
		Args: exactly(),
		RunE: a.do(func(ctx context.Context, _ []string) error {
			client, err := a.api()
			if err != nil {
				return err
			}
			resp, err := client.ACL.BootstrapACL(ctx, connect.NewRequest(&hostv1.BootstrapACLRequest{}))
			if err != nil {
				return err
			}
			return a.print(resp.Msg, func() error { return a.showNewToken(resp.Msg.GetToken(), resp.Msg.GetSecret()) })
		}),
	}
}

// tokenEnv is the variable with the secret of the token to call with.
const tokenEnv = "PANNIER_TOKEN"

// token is the secret to call with: that of the file, or of the environment. No flag takes
// one: an argument list can be read by every user of the machine.
func (a *app) token() (string, error) {
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
func (a *app) showNewToken(t *hostv1.ACLToken, secret string) error {
	table := a.aclTokenTable(t)
	table.row("Secret", secret)
	if err := a.show(table); err != nil {
		return err
	}
	a.note("the secret is not shown again; call with it by -token-file FILE or %s", tokenEnv)
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
