package conformance

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

var tokenChecks = []*Check{{
	ID:    "token.refused",
	kind:  identity.Kind,
	Says:  "The issuer, such as Consul, accepts a token that was derived, and refuses it as soon as Revoke has returned; List and other tokens agree.",
	Fix:   "In Revoke, delete the token (or log out) and read it with consistency until the issuer does not know it.",
	after: append([]string{"work.repeat"}, worked...),
	run:   checkTokenRefused,
}}

func checkTokenRefused(ctx context.Context, r *run, c *checking) error {
	p, err := r.up(ctx, c)
	if err != nil {
		return err
	}
	client := identity.NewClient(p.conn)
	var ids, secrets [2]string
	for n := range ids {
		ids[n] = uuid()
		if secrets[n], err = r.derived(ctx, client, ids[n], c.name()); err != nil {
			return err
		}
		if err := r.accepted(ctx, client, secrets[n]); err != nil {
			return err
		}
		has, err := settled(ctx, true, func() (bool, error) { return r.lists(ctx, client, ids[n]) })
		switch {
		case err != nil:
			return err
		case !has:
			return errors.New("a token was derived, and List does not have it")
		}
	}
	if err := insist(ctx, func(ctx context.Context) error {
		return client.Revoke(ctx, r.cfg.Consul, asked(ids[0], c.name()), secrets[0])
	}); err != nil {
		return fmt.Errorf("revoke a token: %w", err)
	}
	switch still, err := r.accepts(ctx, client, secrets[0]); {
	case err != nil:
		return err
	case still:
		return errors.New("a token was revoked with success, and its issuer still accepts it")
	}
	switch still, err := settled(ctx, false, func() (bool, error) { return r.lists(ctx, client, ids[0]) }); {
	case err != nil:
		return err
	case still:
		return errors.New("a token was revoked with success, and List still has it")
	}
	switch other, err := r.accepts(ctx, client, secrets[1]); {
	case err != nil:
		return err
	case !other:
		return errors.New("a token was revoked, and its issuer no longer accepts another one of the workload")
	}
	return insist(ctx, func(ctx context.Context) error {
		return client.Revoke(ctx, r.cfg.Consul, asked(ids[1], c.name()), secrets[1])
	})
}

// derived returns the secret of a new token.
func (r *run) derived(ctx context.Context, client identity.Identity, id, name string) (secret string, err error) {
	r.asksFor(r.real(), asked(id, name), "")
	err = insist(ctx, func(ctx context.Context) (err error) {
		_, secret, err = client.Derive(ctx, r.cfg.Consul,
			identity.DeriveRequest{ID: id, Subject: subject(name), JWT: r.issues.sign(subject(name), "")})
		return err
	})
	switch {
	case err != nil:
		return "", fmt.Errorf("derive a token: %w", err)
	case secret == "":
		return "", skip("needs an issuer that gives tokens, such as a Consul with ACLs")
	}
	r.asksFor(r.real(), asked(id, name), secret)
	return secret, nil
}

// accepted waits until Consul accepts a new token.
func (r *run) accepted(ctx context.Context, client identity.Identity, secret string) error {
	accepted, err := settled(ctx, true, func() (bool, error) { return r.accepts(ctx, client, secret) })
	if err == nil && !accepted {
		err = errors.New("a token was derived, and its issuer does not accept it")
	}
	return err
}

// settled repeats a question until its answer is want, and returns the last answer: a Consul of several servers, or a
// busy one, reports a change a moment later.
func settled(ctx context.Context, want bool, ask func() (bool, error)) (answer bool, err error) {
	for deadline := time.Now().Add(callTime); ; time.Sleep(50 * time.Millisecond) {
		answer, err = ask()
		if err == nil && answer == want || time.Now().After(deadline) || ctx.Err() != nil {
			return answer, err
		}
	}
}

// asksFor records a token that the kit asks for at a backend, to remove it at the end. secret is empty until it is
// known.
func (r *run) asksFor(at backend, t identity.Token, secret string) {
	if secret != "" {
		r.keep(secret)
	}
	r.makes("token "+t.Accessor, func(ctx context.Context, p *process) error {
		err := insist(ctx, func(ctx context.Context) error {
			return identity.NewClient(p.conn).Revoke(ctx, at.consul, t, secret)
		})
		if err == nil && !r.exists(ctx, p, t.Accessor, secret) {
			return nil
		}
		if deleteErr := r.delete(ctx, t.Accessor); deleteErr != nil {
			return errors.Join(err, fmt.Errorf("it could not be deleted: %w", deleteErr))
		}
		return errors.Join(err, errors.New("it was not ended by Revoke, and the kit has deleted it"))
	})
}

// exists reports whether the plugin lists a token, or its issuer accepts it.
func (r *run) exists(ctx context.Context, p *process, id, secret string) bool {
	client := identity.NewClient(p.conn)
	if accepted, err := r.accepts(ctx, client, secret); secret != "" && accepted && err == nil {
		return true
	}
	listed, err := r.lists(ctx, client, id)
	return listed && err == nil
}

// lists reports whether List has a token.
func (r *run) lists(ctx context.Context, client identity.Identity, id string) (has bool, err error) {
	err = insist(ctx, func(ctx context.Context) error {
		tokens, err := client.List(ctx, r.cfg.Consul, theCluster)
		if err != nil {
			return fmt.Errorf("list the tokens: %w", err)
		}
		has = slices.ContainsFunc(tokens, func(t identity.Token) bool { return t.Accessor == id })
		return nil
	})
	return has, err
}

// accepts asks the Consul itself whether it accepts a token. Another issuer is asked through the plugin's Read.
func (r *run) accepts(ctx context.Context, client identity.Identity, secret string) (bool, error) {
	if r.cfg.OwnBackend {
		err := insist(ctx, func(ctx context.Context) error {
			_, err := client.Read(ctx, r.cfg.Consul, secret)
			return err
		})
		if status.Code(err) == codes.NotFound {
			return false, nil
		}
		return err == nil, err
	}
	code, err := consulAsked(ctx, r.cfg.Consul, http.MethodGet, "/v1/acl/token/self?consistent", secret)
	switch {
	case err != nil:
		return false, err
	case code == http.StatusOK:
		return true, nil
	case code == http.StatusForbidden, code == http.StatusNotFound, code == http.StatusUnauthorized:
		return false, nil
	}
	return false, fmt.Errorf("ask Consul for a token: it answers %d", code)
}

// delete deletes a token with the one that the kit was given.
func (r *run) delete(ctx context.Context, id string) error {
	if r.cfg.OwnBackend {
		return errors.New("only the plugin reaches its issuer")
	}
	own, err := os.ReadFile(r.cfg.Consul.TokenFile)
	if err != nil {
		return fmt.Errorf("read the token for Consul (-consul-token-file): %w", err)
	}
	code, err := consulAsked(ctx, r.cfg.Consul, http.MethodDelete, "/v1/acl/token/"+id, strings.TrimSpace(string(own)))
	if err == nil && code != http.StatusOK && code != http.StatusNotFound {
		err = fmt.Errorf("ask Consul to delete it: it answers %d", code)
	}
	return err
}

// consulAsked makes a request to a Consul's HTTP API and returns the status.
func consulAsked(ctx context.Context, c service.Consul, method, path, token string) (code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	transport := &http.Transport{DisableKeepAlives: true}
	base := c.Address
	if socket, ok := strings.CutPrefix(base, "unix://"); ok {
		base = "http://consul"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}
	} else if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	if strings.HasPrefix(base, "https://") {
		if transport.TLSClientConfig, err = consulTLS(c); err != nil {
			return 0, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, nil)
	if err != nil {
		return 0, fmt.Errorf("ask Consul: %w", err)
	}
	req.Header.Set("X-Consul-Token", token)
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask Consul: %w", err)
	}
	return res.StatusCode, res.Body.Close()
}

func consulTLS(c service.Consul) (*tls.Config, error) {
	conf := &tls.Config{ServerName: c.TLSServerName, MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read Consul's CA: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		conf.RootCAs.AppendCertsFromPEM(pem)
	}
	if c.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate for Consul: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}
