package tokens

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// Whatever Consul answers, there is a token of the subject that was asked for, or an error that names the Consul.
func FuzzAnswers(f *testing.F) {
	const id = "11111111-2222-3333-4444-555555555555"
	const token = `{"AccessorID":"` + id + `","SecretID":"s","Description":"_pannier_si [c1] [n1] [default/web-1] [web]",` +
		`"ServiceIdentities":[{"ServiceName":"web"}],"Local":true,"ExpirationTime":"2030-01-01T00:00:00Z"}`
	for _, text := range []string{
		token, "[" + token + ",null]", "null", "{}", "[null]", "403 ACL not found", "404 x", "500 token already exists",
		"403 ACL support disabled", token + "\n500 x", "401 ACL support disabled\nnull", "true", `{"SecretID":"0"}`,
		strings.Replace(token, `{"ServiceName":"web"}`, "null", 1),
	} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	answers := consul.NewAnswers(f)
	file := filepath.Join(f.TempDir(), "token")
	check.NoError(f, os.WriteFile(file, []byte("own"), 0o600))
	i := New()
	f.Cleanup(func() { _ = i.Close() })
	check.NoError(f, i.Configure(f.Context(), fmt.Appendf(nil, `{"token_file": %q, "rate": 1000000}`, file)))
	i.callTimeout = 50 * time.Millisecond // it asks again as long as it may
	f.Fuzz(func(t *testing.T, text []byte, login bool) {
		c := answers.Service
		if login {
			c.AuthMethod = "pannier"
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		wrong := func(what string, err error) {
			if _, is := status.FromError(err); !is || err != nil && !strings.Contains(err.Error(), "Consul") {
				t.Errorf("%s: %v", what, err)
			}
		}
		for what, do := range map[string]func() error{
			"derive": func() error {
				made, secret, err := i.Derive(ctx, c, identity.DeriveRequest{ID: id, Subject: webSubject, JWT: "a.b.c"})
				if err == nil && secret != "" && (made.Accessor == "" || !login && (made.Accessor != id || made.Subject != webSubject)) {
					t.Errorf("a token of another: %+v", made)
				}
				return err
			},
			"read": func() error { _, err := i.Read(ctx, c, "s"); return err },
			"list": func() error {
				all, err := i.List(ctx, c, "c1")
				for _, one := range all {
					if one.Subject.Cluster != "c1" {
						t.Errorf("a token of another cluster: %+v", one)
					}
				}
				return err
			},
			"revoke":           func() error { return i.Revoke(ctx, c, webToken(id), "") },
			"revoke by itself": func() error { return i.Revoke(ctx, c, webToken(id), "s") },
			"ask for a key": func() error {
				if !login {
					return nil
				}
				_, err := i.HasKey(ctx, c, "a.b.c")
				return err
			},
		} {
			answers.Give(text)
			wrong(what, do())
		}
	})
}
