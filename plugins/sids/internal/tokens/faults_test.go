package tokens

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
)

// calls makes each of the issuer's calls once, for an existing token.
func (w *world) calls(ctx context.Context, t *testing.T, accessor, secret string) map[string]error {
	_, _, derive := w.issuer.Derive(ctx, w.consul, request(t))
	_, read := w.issuer.Read(ctx, w.consul, secret)
	_, list := w.issuer.List(ctx, w.consul, "c1")
	return map[string]error{
		"derive": derive, "read": read, "list": list,
		"revoke": w.issuer.Revoke(ctx, w.consul, webToken(accessor), ""),
	}
}

// TestFaults makes Consul fail during each call. The error's code reports whether to retry (each error's is tested with
// the pool), and the call works again afterwards.
func TestFaults(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	proxy := w.Proxy(t, 0)
	w.consul = proxy.Service(w.consul)
	req := request(t)
	_, secret := w.derive(t, req)

	for name, c := range map[string]struct {
		fault consul.Fault
		code  codes.Code
	}{
		"429":     {consul.Status(http.StatusTooManyRequests, "rate limit exceeded"), codes.ResourceExhausted},
		"500":     {consul.Status(http.StatusInternalServerError, "No cluster leader"), codes.Unavailable},
		"refused": {consul.Refuse(), codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			proxy.Add(consul.Match{Path: "/v1/acl/"}, c.fault)
			defer proxy.Clear()
			for call, err := range w.calls(t.Context(), t, req.ID, secret) {
				t.Log(call, err)
				w.want(t, err, c.code, "Consul")
			}
		})
	}
	t.Run("deadline", func(t *testing.T) {
		proxy.Add(consul.Match{Path: "/v1/acl/"}, consul.Stall())
		defer proxy.Clear()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		for call, err := range w.calls(ctx, t, req.ID, secret) {
			t.Log(call, err)
			w.want(t, err, codes.DeadlineExceeded)
		}
	})
	t.Run("one question's time", func(t *testing.T) {
		proxy.Add(consul.Match{Path: "/v1/acl/"}, consul.Stall())
		defer proxy.Clear()
		w.issuer.callTimeout = 50 * time.Millisecond
		defer func() { w.issuer.callTimeout = callTimeout }()
		begin := time.Now()
		for call, err := range w.calls(t.Context(), t, req.ID, secret) {
			t.Log(call, err)
			w.want(t, err, codes.DeadlineExceeded)
		}
		if took := time.Since(begin); took > 3*callTimeout {
			t.Errorf("4 requests of 50 ms took %v", took)
		}
	})

	// With another token: a revocation that was stalled may have reached Consul.
	req = request(t)
	_, secret = w.derive(t, req)
	for call, err := range w.calls(t.Context(), t, req.ID, secret) {
		if err != nil {
			t.Errorf("%s, after the fault: %v", call, err)
		}
	}
}

// TestLeaderless kills two servers of three. Writes wait for a leader. Tokens that the node's agent knows can
// still be read back.
func TestLeaderless(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	req := request(t)
	token, secret := w.derive(t, req)
	// The agent's own server may not know the token yet.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		read, err := w.issuer.Read(t.Context(), w.consul, secret)
		if err == nil && read == token {
			break
		}
		if status.Code(err) != codes.Unavailable || time.Now().After(deadline) {
			t.Fatalf("read back: got %+v, %v", read, err)
		}
	}
	w.Kill(1)
	w.Kill(2)
	// The last server remains leader until its lease ends.
	late := request(t)
	_, _, derive := w.issuer.Derive(t.Context(), w.consul, late)
	revoke := w.issuer.Revoke(t.Context(), w.consul, webToken(req.ID), "")
	for call, err := range map[string]error{"derive": derive, "revoke": revoke} {
		t.Log(call, err)
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
			t.Errorf("%s without a leader: got %v, want an error that can be retried", call, err)
		}
	}
	if read, err := w.issuer.Read(t.Context(), w.consul, secret); err != nil || read != token {
		t.Errorf("read without a leader: got %+v, %v", read, err)
	}

	w.Restart(1, false)
	// On a busy machine, two of three servers may lose their leader again.
	for what, call := range []func() error{
		func() error {
			_, secret, err := w.issuer.Derive(t.Context(), w.consul, late)
			if err == nil {
				w.secrets = append(w.secrets, secret)
			}
			return err
		},
		func() error { return w.issuer.Revoke(t.Context(), w.consul, webToken(req.ID), "") },
		func() error { return w.issuer.Revoke(t.Context(), w.consul, webToken(late.ID), "") },
	} {
		err := call()
		for deadline := time.Now().Add(time.Minute); status.Code(err) == codes.Unavailable &&
			time.Now().Before(deadline); err = call() {
			time.Sleep(10 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("call %d with a leader: %v", what, err)
		}
	}
	if left := w.tokensOf(t, "web"); len(left) != 0 {
		t.Errorf("%d tokens are left", len(left))
	}
}

// TestBehind reads a token from a server that does not know it yet, and from one that cannot reach the
// leader. Neither result means that the token is gone.
func TestBehind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	proxy := w.Proxy(t, 0)
	w.consul = proxy.Service(w.consul)
	_, secret := w.derive(t, request(t))
	self := consul.Match{Path: "/v1/acl/token/self", Times: 1}
	unknown := consul.Status(http.StatusForbidden, "token does not exist: ACL not found")

	proxy.Add(self, unknown)
	_, err := w.issuer.Read(t.Context(), w.consul, secret)
	w.want(t, err, codes.Unavailable, "does not know the token yet")
	proxy.Clear()
	proxy.Add(self, unknown)
	proxy.Add(self, consul.Status(http.StatusInternalServerError, "No cluster leader"))
	_, err = w.issuer.Read(t.Context(), w.consul, secret)
	w.want(t, err, codes.Unavailable, "No cluster leader")
	if _, err := w.issuer.Read(t.Context(), w.consul, secret); err != nil {
		t.Error(err)
	}
}

// TestStateLost: the tokens of a Consul that has lost its state are reported as such, and are minted again
// with the same id.
func TestStateLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	req := request(t)
	_, secret := w.derive(t, req)
	w.Restart(0, true)
	_, err := w.issuer.Read(t.Context(), w.consul, secret)
	w.want(t, err, codes.NotFound)
	// The issuer's own token is lost too.
	_, _, err = w.issuer.Derive(t.Context(), w.consul, req)
	w.want(t, err, codes.PermissionDenied, "token_file")
	w.Policy(t, "pannier-sids", `acl = "write"`)
	write(t, w.tokenFile, w.Token(t, "pannier-sids"))
	if again, fresh := w.derive(t, req); again.Accessor != req.ID || fresh == secret {
		t.Errorf("got the accessor %s and the old secret: %v", again.Accessor, fresh == secret)
	}
}

// TestRate makes more requests than the rate limit allows. The excess requests wait, and are refused if they
// would wait longer than their caller.
func TestRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	proxy := w.Proxy(t, 0)
	w.consul = proxy.Service(w.consul)
	check.NoError(t, w.issuer.Configure(t.Context(), []byte(`{"token_file": "`+w.tokenFile+`", "rate": 2}`)))
	begin := time.Now()
	for range 3 {
		w.derive(t, request(t))
	}
	if took := time.Since(begin); took < 400*time.Millisecond {
		t.Errorf("3 tokens at 2 a second took %v", took)
	}
	// If the machine stalls for a moment, one more request may pass.
	var err error
	passed := 0
	for ; status.Code(err) != codes.ResourceExhausted && passed <= 50; passed++ {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, _, err = w.issuer.Derive(ctx, w.consul, request(t))
		cancel()
	}
	w.want(t, err, codes.ResourceExhausted, "rate of 2")
	done, end := context.WithCancel(t.Context())
	end()
	_, _, err = w.issuer.Derive(done, w.consul, request(t))
	w.want(t, err, codes.Canceled)
	if n := proxy.Count(http.MethodPut, "/v1/acl/token"); n < 3 || n > 2+passed {
		t.Errorf("Consul got %d requests, want 3, and for those that passed %d at most", n, passed-1)
	}
}

// TestRevokeWithAnOldAnswer: a leader that has not read its state yet answers once that a token which stands does not
// exist (404 to a delete, 403 to a logout). The token is revoked all the same.
func TestRevokeWithAnOldAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		login bool
		match consul.Match
		fault consul.Fault
	}{
		"minted": {
			false,
			consul.Match{Method: http.MethodDelete, Path: "/v1/acl/token/", Times: 1},
			consul.Status(http.StatusNotFound, "Cannot find token to delete"),
		},
		"from a login": {
			true,
			consul.Match{Method: http.MethodPost, Path: "/v1/acl/logout", Times: 1},
			consul.Status(http.StatusForbidden, "ACL not found"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w *world
			var req identity.DeriveRequest
			if c.login {
				var s *signer
				w, s = loginWorld(t)
				req = w.loginRequest(t, s, claims(time.Now()))
			} else {
				w = newWorld(t, 1)
				req = request(t)
			}
			token, secret := w.derive(t, req)
			proxy := w.Proxy(t, 0)
			proxy.Add(c.match, c.fault)
			retried(t, func() error {
				return w.issuer.Revoke(t.Context(), proxy.Service(w.consul), webToken(token.Accessor), secret)
			})
			if left := w.tokensOf(t, "web"); len(left) > 0 {
				t.Errorf("the token that was reported as revoked stands: %v", left)
			}
		})
	}
}

// TestRevokeDuringARestart: a Consul that has just elected a leader answers from a state that it has not read yet, as
// if tokens that stand did not exist. A token that was reported as revoked is gone for good, and none that stands is
// reported as gone or refused.
func TestRevokeDuringARestart(t *testing.T) {
	t.Parallel()
	t.Run("minted", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		w.restarts(t, func() identity.DeriveRequest { return request(t) })
	})
	t.Run("from a login", func(t *testing.T) {
		t.Parallel()
		w, s := loginWorld(t)
		w.restarts(t, func() identity.DeriveRequest { return w.loginRequest(t, s, claims(time.Now())) })
	})
}

// restarts makes calls while Consul restarts.
func (w *world) restarts(t *testing.T, next func() identity.DeriveRequest) {
	t.Helper()
	const tokens = 10
	type derived struct {
		identity.Token
		secret string
	}
	derive := func() (d derived) {
		d.Token, d.secret = w.derive(t, next())
		return d
	}
	var ends, stands [tokens]derived
	var more [tokens]identity.DeriveRequest
	for n := range tokens {
		ends[n], stands[n], more[n] = derive(), derive(), next()
	}
	w.Kill(0)
	var calls sync.WaitGroup
	for n := range tokens {
		for _, call := range []func() error{
			func() error {
				return w.issuer.Revoke(t.Context(), w.consul, webToken(ends[n].Accessor), ends[n].secret)
			},
			func() error { _, err := w.issuer.Read(t.Context(), w.consul, stands[n].secret); return err },
			func() error { _, _, err := w.issuer.Derive(t.Context(), w.consul, more[n]); return err },
		} {
			calls.Go(func() { retried(t, call) })
		}
	}
	w.Restart(0, false)
	calls.Wait()
	if left := len(w.tokensOf(t, "web")); left != 2*tokens {
		t.Errorf("%d tokens stand, want %d", left, 2*tokens)
	}
}

// retried repeats a call like the host.
func retried(t *testing.T, call func() error) {
	t.Helper()
	err := call()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); err = call() {
		if code := status.Code(err); code != codes.Unavailable && code != codes.DeadlineExceeded {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Error(err)
	}
}
