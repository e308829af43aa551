package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/pannier/pannier/host/internal/cli/release"
	"github.com/pannier/pannier/host/internal/system/signing"
)

func selfNoun() noun {
	var given []string
	return nounOf("self", "This installation of Pannier", []verb{{
		use: "verify", short: "Compare the installed programs and plugins with their release",
		long: `Compare the installed programs and plugins with the checksums of their release, which a
package puts into /usr/lib/pannier/SHA256SUMS, and check the signature of those. No agent and
no network are needed. What was added must be signed itself, as plugins with a FILE.minisig
are.

The exit code is 0 only if everything is as it was released. A pannier that was changed on
purpose can say so, too: docs/releasing.md has the same check by minisign and sha256sum.`,
		example: "\n-key ours.pub -o json",
		flags: func(f *pflag.FlagSet) {
			f.StringArrayVar(&given, "key", nil,
				"a minisign public `KEY`, or its file, that counts like the one built into the program;\nmay be given more than once")
		},
		local: func(_ context.Context, c *call) error { return verifyRelease(c, given) },
	}})
}

func verifyRelease(c *call, given []string) error {
	keys, err := releaseKeys(c.Options.ReleaseKey, given)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	r, err := release.Verify(exe, keys)
	err = c.Print(r, err, func() {
		t := NewTable("STATE", "PATH", "WHY")
		for _, f := range r.Files {
			t.Row(string(f.State), f.Path, f.Why)
		}
		switch {
		case r.Problem != "":
			c.Note("%s", r.Problem)
		case r.OK():
			c.Note("all is as in %s, signed with key %s", r.Release, r.Key)
		default:
			c.Note("not all is as in %s, signed with key %s: install its package again", r.Release, r.Key)
		}
		c.Show(t)
	})
	if err == nil && !r.OK() {
		return silentExit(ExitError)
	}
	return err
}

// releaseKeys are the key of releases, if there is one, and the given ones.
func releaseKeys(builtIn string, given []string) (keys []signing.Key, err error) {
	if builtIn != "" {
		key, err := signing.ParseKey(builtIn)
		if err != nil {
			return nil, fmt.Errorf("the key built into this program: %w", err)
		}
		keys = append(keys, key)
	}
	for _, text := range given {
		key, err := signing.ParseKey(text)
		if err != nil {
			content, unread := os.ReadFile(text)
			if unread != nil {
				return nil, Usage("-key: %q is neither a key nor a file with one: %w", text, unread)
			}
			if key, err = signing.ParseKey(string(content)); err != nil {
				return nil, Usage("-key %s: %w", text, err)
			}
		}
		keys = append(keys, key)
	}
	return keys, nil
}
