package tokens

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// TestMint follows a token from its creation to its end. The issuer's own token has only the policy acl =
// "write".
func TestMint(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	ctx := t.Context()
	req := request(t)
	begin := time.Now().Add(-time.Second)
	token, secret := w.derive(t, req)
	if token.Accessor != req.ID || token.Subject != req.Subject || token.CreatedAt.Before(begin) ||
		!token.ExpiresAt.IsZero() {
		t.Errorf("derived: got %+v", token)
	}

	there, _, err := w.Client(w.Management).ACL().TokenRead(req.ID, nil)
	check.NoError(t, err)
	if there.SecretID != secret || there.Description != "_pannier_si [c1] [n1] [default/web-1] [web]" {
		t.Errorf("in Consul: got the description %q, the same secret: %v", there.Description, there.SecretID == secret)
	}
	if err := checkIdentity(there, "web"); err != nil {
		t.Errorf("in Consul: the token %v", err)
	}

	if read, err := w.issuer.Read(ctx, w.consul, secret); err != nil || read != token {
		t.Errorf("read back: got %+v, %v, want %+v", read, err, token)
	}
	other := newIssuer(t, `{"token_file": "`+w.tokenFile+`"}`) // like another process of the plugin
	for _, issuer := range []*Issuer{w.issuer, other} {
		again, same, err := issuer.Derive(ctx, w.consul, req)
		if err != nil || again != token || same != secret {
			t.Errorf("derived again: got %+v, the same secret: %v, %v", again, same == secret, err)
		}
	}

	foreign := request(t)
	foreign.Subject.Cluster = "c2"
	w.derive(t, foreign)
	if list, err := w.issuer.List(ctx, w.consul, "c1"); err != nil || len(list) != 1 || list[0] != token {
		t.Errorf("listed: got %+v, %v, want %+v alone", list, err, token)
	}

	for range 2 { // the second call finds nothing
		if err := w.issuer.Revoke(ctx, w.consul, webToken(req.ID), ""); err != nil {
			t.Errorf("revoke: %v", err)
		}
	}
	_, err = w.issuer.Read(ctx, w.consul, secret)
	w.want(t, err, codes.NotFound)
	if list, err := w.issuer.List(ctx, w.consul, "c1"); err != nil || len(list) != 0 {
		t.Errorf("listed at the end: got %+v, %v", list, err)
	}
	if n := len(w.tokensOf(t, "web")); n != 1 {
		t.Errorf("%d tokens are left, want the other cluster's", n)
	}
}

// TestMintTaken: an existing token with the requested accessor that does not belong to the workload is never
// returned.
func TestMintTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	req := request(t)
	w.derive(t, req)
	other := req
	other.Subject.Workload = "web-2"
	_, _, err := w.issuer.Derive(t.Context(), w.consul, other)
	w.want(t, err, codes.AlreadyExists, req.ID, "[default/web-1]")

	strong := request(t)
	made, _, err := w.Client(w.Management).ACL().TokenCreate(&api.ACLToken{
		AccessorID: strong.ID, Description: describe(strong.Subject), Local: true,
		ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}},
		Policies:          []*api.ACLTokenPolicyLink{{Name: "pannier-sids"}},
	}, nil)
	check.NoError(t, err)
	w.secrets = append(w.secrets, made.SecretID)
	_, _, err = w.issuer.Derive(t.Context(), w.consul, strong)
	w.want(t, err, codes.AlreadyExists, strong.ID, "more than a service identity")
}

// TestRevokeIsOfTheSubject: no token is ended but the workload's own, whichever accessor is named.
func TestRevokeIsOfTheSubject(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	management := w.Client(w.Management).ACL()
	stranger, _, err := management.TokenCreate(&api.ACLToken{Description: "an operator's", Local: true}, nil)
	check.NoError(t, err)
	w.secrets = append(w.secrets, stranger.SecretID)
	elsewhere := request(t)
	elsewhere.Subject.Cluster = "c2"
	w.derive(t, elsewhere)
	for what, accessor := range map[string]string{"an operator's": stranger.AccessorID, "another cluster's": elsewhere.ID} {
		w.want(t, w.issuer.Revoke(t.Context(), w.consul, webToken(accessor), ""), codes.AlreadyExists, accessor,
			"belongs to another service")
		nobodys := identity.Token{Accessor: accessor}
		w.want(t, w.issuer.Revoke(t.Context(), w.consul, nobodys, ""), codes.AlreadyExists, accessor)
		if _, _, err := management.TokenRead(accessor, nil); err != nil {
			t.Errorf("%s token is gone: %v", what, err)
		}
	}
}

// TestIdentityAlone: whatever else a token grants is more than its service may do.
func TestIdentityAlone(t *testing.T) {
	web := func() *api.ACLToken {
		return &api.ACLToken{Local: true, ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}}}
	}
	check.NoError(t, checkIdentity(web(), "web"))
	for name, change := range map[string]func(k *api.ACLToken){
		"a policy":           func(k *api.ACLToken) { k.Policies = []*api.ACLTokenPolicyLink{{Name: "p"}} },
		"a role":             func(k *api.ACLToken) { k.Roles = []*api.ACLTokenRoleLink{{Name: "r"}} },
		"a node's identity":  func(k *api.ACLToken) { k.NodeIdentities = []*api.ACLNodeIdentity{{NodeName: "n1"}} },
		"a templated policy": func(k *api.ACLToken) { k.TemplatedPolicies = []*api.ACLTemplatedPolicy{{TemplateName: "builtin/dns"}} },
		"a second service": func(k *api.ACLToken) {
			k.ServiceIdentities = append(k.ServiceIdentities, &api.ACLServiceIdentity{ServiceName: "db"})
		},
		"another service":      func(k *api.ACLToken) { k.ServiceIdentities[0].ServiceName = "db" },
		"all datacenters":      func(k *api.ACLToken) { k.Local = false },
		"no identity any more": func(k *api.ACLToken) { k.ServiceIdentities = nil },
	} {
		token := web()
		change(token)
		if checkIdentity(token, "web") == nil {
			t.Errorf("with %s it is accepted", name)
		}
	}
}

// TestMintLostAnswer cuts the connection after Consul has executed a request. The repeated call returns the
// same token, or revokes the same one.
func TestMintLostAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	proxy := w.Proxy(t, 0)
	w.consul = proxy.Service(w.consul)
	req := request(t)

	proxy.Add(consul.Match{Method: http.MethodPut, Path: "/v1/acl/token", Times: 1}, consul.Cut())
	_, _, err := w.issuer.Derive(t.Context(), w.consul, req)
	w.want(t, err, codes.Unavailable)
	if n := len(w.tokensOf(t, "web")); n != 1 {
		t.Fatalf("%d tokens, want the one whose answer was lost", n)
	}
	token, secret := w.derive(t, req)
	if read, err := w.issuer.Read(t.Context(), w.consul, secret); err != nil || read != token {
		t.Errorf("got %+v, %v, want %+v", read, err, token)
	}
	// Consul returns this error if two attempts arrive at the same time.
	proxy.Add(consul.Match{Method: http.MethodPut, Path: "/v1/acl/token", Times: 1},
		consul.Status(http.StatusInternalServerError,
			"Failed to apply token write request: The ACL Token SecretID field is immutable"))
	if again, same := w.derive(t, req); again != token || same != secret {
		t.Errorf("got %+v, the same secret: %v", again, same == secret)
	}
	if n := len(w.tokensOf(t, "web")); n != 1 {
		t.Errorf("%d tokens, want 1", n)
	}

	proxy.Add(consul.Match{Method: http.MethodDelete, Times: 1}, consul.Cut())
	w.want(t, w.issuer.Revoke(t.Context(), w.consul, webToken(req.ID), ""), codes.Unavailable)
	if err := w.issuer.Revoke(t.Context(), w.consul, webToken(req.ID), ""); err != nil {
		t.Error(err)
	}
	if n := len(w.tokensOf(t, "web")); n != 0 {
		t.Errorf("%d tokens are left", n)
	}
}

// TestMintRace derives one token many times concurrently. All successful calls return the same token.
func TestMintRace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	req := request(t)
	var mu sync.Mutex
	secrets := map[string]bool{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			_, secret, err := w.issuer.Derive(t.Context(), w.consul, req)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			secrets[secret] = true
		})
	}
	wg.Wait()
	if len(secrets) != 1 || len(w.tokensOf(t, "web")) != 1 {
		t.Errorf("%d secrets and %d tokens, want one of each", len(secrets), len(w.tokensOf(t, "web")))
	}
}

// TestRequests checks which requests are refused before Consul is called.
func TestRequests(t *testing.T) {
	i := newIssuer(t, `{}`)
	w := &world{}
	for name, spoil := range map[string]struct {
		id, cluster, namespace, workload, service string
		says                                      string
	}{
		"no UUID":         {id: "x", says: `the id "x"`},
		"no cluster":      {cluster: "-", says: "a name is empty"},
		"a bracket":       {workload: "web] [1", says: "bracket"},
		"a slash":         {namespace: "a/b", says: "slash"},
		"a bad service":   {service: "Web", says: `service "Web"`},
		"a dash at first": {service: "-web", says: `service "-web"`},
	} {
		t.Run(name, func(t *testing.T) {
			req := request(t)
			for _, s := range []struct {
				dst *string
				v   string
			}{{&req.ID, spoil.id}, {&req.Subject.Cluster, spoil.cluster}, {
				&req.Subject.Namespace,
				spoil.namespace,
			}, {&req.Subject.Workload, spoil.workload}, {&req.Subject.Service, spoil.service}} {
				switch s.v {
				case "":
				case "-":
					*s.dst = ""
				default:
					*s.dst = s.v
				}
			}
			_, _, err := i.Derive(t.Context(), w.consul, req)
			w.want(t, err, codes.InvalidArgument, spoil.says)
		})
	}
	_, err := i.Read(t.Context(), w.consul, "")
	w.want(t, err, codes.InvalidArgument)
	w.want(t, i.Revoke(t.Context(), w.consul, webToken(""), ""), codes.InvalidArgument)
}

// TestOwnToken checks the errors for a wrong or missing token of the issuer. In particular, a workload's
// token must not be reported as gone if Consul does not know the issuer's token.
func TestOwnToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	ctx := t.Context()
	req := request(t)
	_, secret := w.derive(t, req)
	all := func(t *testing.T, code codes.Code, texts ...string) {
		t.Helper()
		_, _, err := w.issuer.Derive(ctx, w.consul, request(t))
		w.want(t, err, code, texts...)
		w.want(t, w.issuer.Revoke(ctx, w.consul, webToken(req.ID), ""), code, texts...)
		if code != codes.PermissionDenied { // a token may list and look with acl = "read"
			w.want(t, w.issuer.Revoke(ctx, w.consul, webToken(newID(t)), ""), code, texts...)
			_, err = w.issuer.List(ctx, w.consul, "c1")
			w.want(t, err, code, texts...)
		}
	}

	unknown := newID(t)
	w.secrets = append(w.secrets, unknown)
	write(t, w.tokenFile, unknown)
	all(t, codes.PermissionDenied, "token_file", `acl = "write"`)
	_, err := w.issuer.List(ctx, w.consul, "c1")
	w.want(t, err, codes.PermissionDenied, "token_file")

	w.Policy(t, "reader", `acl = "read"`)
	reader := w.Token(t, "reader")
	w.secrets = append(w.secrets, reader)
	write(t, w.tokenFile, reader)
	all(t, codes.PermissionDenied, "token_file", `acl = "write"`)

	write(t, w.tokenFile, "")
	all(t, codes.FailedPrecondition, w.tokenFile)
	write(t, w.tokenFile, secret+" and more")
	all(t, codes.FailedPrecondition, w.tokenFile)

	check.NoError(t, w.issuer.Configure(ctx, []byte(`{}`)))
	all(t, codes.FailedPrecondition, "set token_file", `acl = "write"`)
	w.consul.Name = "east"
	all(t, codes.FailedPrecondition, `set token_file of consul "east"`)

	// The file is read at each use, so a new token in it is used at once.
	check.NoError(t, w.issuer.Configure(ctx, []byte(`{"consul": {"east": {"token_file": "`+w.tokenFile+`"}}}`)))
	write(t, w.tokenFile, w.Token(t, "pannier-sids")+"\n")
	if err := w.issuer.Revoke(ctx, w.consul, webToken(req.ID), ""); err != nil {
		t.Error(err)
	}
	if _, err := w.issuer.Read(ctx, w.consul, secret); status.Code(err) != codes.NotFound {
		t.Errorf("got %v, want NotFound", err)
	}
}

// A Consul without ACLs has no tokens, and callers need none, whether or not the plugin has its own token.
func TestConsulWithoutACLs(t *testing.T) {
	cluster := consul.Start(t, consul.Options{})
	for name, config := range map[string]string{
		"without a token": `{}`,
		"with a token":    `{"token_file": "` + cluster.TokenFile(t, "not-a-token") + `"}`,
	} {
		i := newIssuer(t, config)
		for _, method := range []string{"", "pannier"} {
			c := cluster.Service(service.DefaultConsul, "")
			c.AuthMethod = method
			req := request(t)
			req.JWT = "a.b.c"
			if token, secret, err := i.Derive(t.Context(), c, req); err != nil || secret != "" || token.Accessor != "" {
				t.Errorf("%s, auth method %q: derive: %+v, %v", name, method, token, err)
			}
			if err := i.Revoke(t.Context(), c, webToken(req.ID), ""); err != nil {
				t.Errorf("%s, auth method %q: revoke: %v", name, method, err)
			}
			if all, err := i.List(t.Context(), c, req.Subject.Cluster); err != nil || len(all) != 0 {
				t.Errorf("%s, auth method %q: list: %v, %v", name, method, all, err)
			}
		}
	}
}
