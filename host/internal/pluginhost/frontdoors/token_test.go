package frontdoors

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/sdk/api"
)

// tokens is a ledger's tokens by their secrets' hashes.
type tokens struct {
	cluster.Ledger
	all  map[string]ledger.Token
	puts int
	fail error
}

func (l *tokens) Granted(_ context.Context, hash string) (ledger.Granted, error) {
	t, ok := l.all[hash]
	if !ok {
		return ledger.Granted{}, ledger.ErrTokenNotFound
	}
	return ledger.Granted{Token: t}, nil
}

func (l *tokens) Apply(_ context.Context, c command.Command) (any, error) {
	switch c := c.(type) {
	case *command.PutACLTokens:
		l.puts++
		for _, t := range c.Tokens {
			if err := errors.Join(l.fail, t.Validate(time.Now())); err != nil {
				return nil, err
			}
			l.all[t.SecretHash] = t
		}
		return c.Tokens, nil
	case *command.DeleteACLTokens:
		for hash, t := range l.all {
			if t.Accessor == c.Accessors[0] {
				delete(l.all, hash)
			}
		}
		return []ledger.Token(nil), nil
	}
	return nil, fmt.Errorf("the ledger has no %T", c)
}

// open returns the doors of a host, and a function that makes a call as a plugin, with the tokens of its user if there
// are some: it returns the secret that the API has got, or what the plugin was answered.
func open(access map[string]Access, back Backend) (d *Doors, call func(plugin string, user ...string) string) {
	d = New(Config{
		Node: "n1", Log: hclog.NewNullLogger(),
		ReadSecret: func(ref string) (string, error) { return "in " + ref, nil },
	})
	d.Allow(access)
	var got string
	back.API = func(_ http.ResponseWriter, r *http.Request, plugin, secret string) {
		got = plugin + ": " + secret + strings.Join(r.Header[api.TokenHeader], " ")
	}
	d.Open(back)
	return d, func(plugin string, user ...string) string {
		got = ""
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/pannier.host.v1.VolumeService/ListVolumes", strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		if user != nil {
			r.Header[api.TokenHeader] = user
		}
		d.API(w, r, plugin)
		return got + w.Body.String()
	}
}

// known finds the tokens of a ledger.
func known(l *tokens) func(ctx context.Context, secret string) error {
	r := acl.NewResolver(l, 0, hclog.NewNullLogger())
	return func(ctx context.Context, secret string) error {
		_, err := r.Resolve(ctx, secret)
		return err
	}
}

func TestTokens(t *testing.T) {
	l := &tokens{all: map[string]ledger.Token{}}
	d, call := open(map[string]Access{"page": {Policy: "page"}, "filed": {TokenFile: "/etc/t"}},
		Backend{Known: known(l), Ledger: l})
	only := func() ledger.Token {
		t.Helper()
		if len(l.all) != 1 {
			t.Fatalf("the tokens are %v", l.all)
		}
		for _, one := range l.all {
			return one
		}
		panic("there is one")
	}
	first := call("page")
	made := only()
	if l.all[ledger.Hash(strings.TrimPrefix(first, "page: "))].Accessor != made.Accessor {
		t.Errorf("the API got %q", first)
	}
	if made.Type != ledger.Client || len(made.Policies) != 1 || made.Policies[0] != "page" || len(made.Roles) > 0 ||
		made.Name != "plugin page on n1" || made.ExpiresAt.IsZero() {
		t.Errorf("the token is %+v", made)
	}
	if again := call("page"); again != first || l.puts != 1 {
		t.Errorf("the next call has %q, after %q", again, first)
	}
	// A token that is lost is made again.
	clear(l.all)
	if again := call("page"); again == first || only().Accessor != made.Accessor {
		t.Errorf("after its token was deleted it has %q, and the ledger %+v", again, only())
	}
	// Another policy is another token.
	d.Allow(map[string]Access{"page": {Policy: "other"}})
	if call("page"); only().Policies[0] != "other" {
		t.Errorf("with another policy it has %+v", only())
	}
	// One that cannot be made is not tried at each call.
	clear(l.all)
	l.fail, l.puts = ledger.ErrPolicyNotFound, 0
	for range 3 {
		if got := call("page"); !strings.Contains(got, "pannier acl policy apply other FILE, then pannier agent reload") {
			t.Errorf("without its policy: %q", got)
		}
	}
	if l.puts != 1 {
		t.Errorf("it was tried %d times", l.puts)
	}
	// Calls for its users need none: neither for one with a token nor for one without.
	for _, user := range []string{"users-own", ""} {
		if got := call("page", user); got != "page: "+user {
			t.Errorf("without its policy, for the user %q: %q", user, got)
		}
	}
}

func TestWhoHasTheAPI(t *testing.T) {
	on := known(&tokens{})
	access := map[string]Access{"page": {Policy: "page"}, "filed": {TokenFile: "/etc/t"}}
	for name, tc := range map[string]struct {
		plugin string
		back   Backend
		want   string
	}{
		"no api block":         {"other", Backend{Known: on}, "permission_denied"},
		"ACLs are off":         {"page", Backend{}, "page: "},
		"no api block, no ACL": {"other", Backend{}, "permission_denied"},
		"a token's file":       {"filed", Backend{Known: on}, "filed: in file:///etc/t"},
		"no server":            {"page", Backend{Known: on}, "only servers make tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			_, call := open(access, tc.back)
			if got := call(tc.plugin); !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
