package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/config"
)

// secretsFlag adds -secret-from, which names files: an argument list can be read
// by every user of the machine.
func secretsFlag(cmd *cobra.Command, into *[]string) {
	cmd.Flags().StringArrayVar(into, "secret-from", nil, "a secret for the driver as `KEY=file:///path`; may be given more than once")
}

func readSecrets(flags []string) (map[string]string, error) {
	secrets := map[string]string{}
	for _, flag := range flags {
		key, ref, ok := strings.Cut(flag, "=")
		if !ok || key == "" {
			return nil, &usageError{err: fmt.Errorf("-secret-from is not KEY=file:///path")}
		}
		value, err := config.ReadSecret(ref)
		if err != nil {
			return nil, &usageError{err: fmt.Errorf("-secret-from %s: %w", key, err)}
		}
		secrets[key] = value
	}
	return secrets, nil
}

// pairs reads flags of the form KEY=VALUE.
func pairs(name string, flags []string) (map[string]string, error) {
	out := map[string]string{}
	for _, flag := range flags {
		key, value, ok := strings.Cut(flag, "=")
		if !ok || key == "" {
			return nil, &usageError{err: fmt.Errorf("-%s %q is not KEY=VALUE", name, flag)}
		}
		out[key] = value
	}
	return out, nil
}
