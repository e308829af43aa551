package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

func token(namespace, workload, service string, at int64) claim.Token {
	id := namespace + "-" + workload + "-" + service
	return claim.Token{
		ID: id, Accessor: "a-" + id, Workload: claim.WorkloadRef{
			Namespace: namespace,
			ID:        workload,
		}, Node: "n1", Service: service,
		Consul: "default", CreatedAt: time.Unix(at, 0),
	}
}

func TestListTokens(t *testing.T) {
	h := openHost(t)
	login := token("default", "web", "api", 2)
	login.ExpiresAt = time.Unix(9, 0)
	h.consul.tokens = []tokens.Listed{
		{Token: token("prod", "db", "db", 1)}, {Token: token("default", "web", "web", 3), Orphan: true}, {Token: login},
	}
	list := func(namespace, workload string) (ids []string, all []*hostv1.Token) {
		resp, err := h.client.Tokens.ListTokens(h.ctx, &hostv1.ListTokensRequest{Namespace: namespace, Workload: workload})
		check.NoError(t, err)
		for _, s := range resp.Tokens {
			ids = append(ids, s.Id)
		}
		return ids, resp.Tokens
	}
	ids, all := list("*", "")
	if !slices.Equal(ids, []string{"default-web-api", "default-web-web", "prod-db-db"}) {
		t.Errorf("listed %q", ids)
	}
	if s := all[0]; s.Accessor != "a-default-web-api" || s.Node != "n1" || s.Consul != "default" || s.Service != "api" ||
		s.Workload != "web" ||
		s.CreatedAt.AsTime().Unix() != 2 || s.ExpiresAt.AsTime().Unix() != 9 || s.Orphan {
		t.Errorf("shown %v", s)
	}
	if s := all[1]; s.ExpiresAt != nil || !s.Orphan {
		t.Errorf("shown %v", s)
	}
	if ids, _ := list("prod", ""); !slices.Equal(ids, []string{"prod-db-db"}) {
		t.Errorf("of prod %q", ids)
	}
	if ids, _ := list("", "web"); len(ids) != 2 {
		t.Errorf("of web %q", ids)
	}
	for _, req := range []*hostv1.ListTokensRequest{{Namespace: "a/b"}, {Workload: "a/b"}} {
		_, err := h.client.Tokens.ListTokens(h.ctx, req)
		wantError(t, err, connect.CodeInvalidArgument, "a/b")
	}
	if strings.Contains(h.log.String(), "ListTokens") {
		t.Error("a query is logged as a change")
	}
}

func TestSweepTokens(t *testing.T) {
	h := openHost(t)
	h.consul.report = tokens.Report{
		Swept: []tokens.Swept{
			{Token: token("default", "web", "web", 1), Reason: "it has ended", Revoked: true},
			{Token: token("default", "db", "db", 1), Reason: "it is gone", Err: errors.New("Consul is away")},
		},
		Problems: []error{errors.New("no list of east")},
	}
	got, err := h.client.Tokens.SweepTokens(h.ctx, &hostv1.SweepTokensRequest{DryRun: true})
	check.NoError(t, err)
	if len(got.Tokens) != 2 || !got.Tokens[0].Revoked || got.Tokens[0].Reason != "it has ended" ||
		got.Tokens[0].Error != "" || !got.Tokens[0].Token.Orphan {
		t.Errorf("swept %v", got.Tokens)
	}
	if s := got.Tokens[1]; s.Revoked || s.Error != "Consul is away" || s.Token.Workload != "db" {
		t.Errorf("swept %v", s)
	}
	if !slices.Equal(got.Problems, []string{"no list of east"}) {
		t.Errorf("problems %q", got.Problems)
	}
	h.consul.err = driverSays(codes.Unavailable, "no leader")
	_, err = h.client.Tokens.SweepTokens(h.ctx, &hostv1.SweepTokensRequest{})
	wantError(t, err, connect.CodeUnavailable, "no leader")
	if !slices.Equal(h.consul.dry, []bool{true, false}) {
		t.Errorf("dry runs: %v", h.consul.dry)
	}
	if !strings.Contains(h.log.String(), "TokenService/SweepTokens") {
		t.Error("a sweep is not logged")
	}
}

// Only the keys that verify the cluster's signatures are public.
func TestPublicKeys(t *testing.T) {
	const set = `{"keys":[{"kty":"EC","kid":"k1"}]}`
	var fails error
	h := openHost(t, func(c *parts) {
		c.JWKS = func(context.Context) ([]byte, error) { return []byte(set), fails }
	})
	get := func() (code int, kind, body string) {
		resp := check.Must(http.Get("http://" + h.HTTPAddress() + "/.well-known/jwks.json"))(t)
		defer resp.Body.Close()
		text := check.Must(io.ReadAll(resp.Body))(t)
		return resp.StatusCode, resp.Header.Get("Content-Type"), string(text)
	}
	defer http.DefaultClient.CloseIdleConnections()
	code, kind, body := get()
	if code != http.StatusOK || kind != "application/json" || body != set || !json.Valid([]byte(body)) {
		t.Errorf("%d %s %s", code, kind, body)
	}
	fails = errors.New("the reason")
	if code, _, body := get(); code != http.StatusServiceUnavailable || strings.Contains(body, "the reason") {
		t.Errorf("while the ledger fails: %d %s", code, body)
	}
	if !strings.Contains(h.log.String(), "the reason") {
		t.Error("the reason is not in the log")
	}
}

// An agent that is no server has no key to show, and says who has.
func TestPublicKeysOfANode(t *testing.T) {
	h := openHost(t, func(c *parts) { c.JWKS = nil })
	resp := check.Must(http.Get("http://" + h.HTTPAddress() + "/.well-known/jwks.json"))(t)
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	text := check.Must(io.ReadAll(resp.Body))(t)
	if resp.StatusCode != http.StatusNotFound || !strings.Contains(string(text), "no server") {
		t.Errorf("%s: %s", resp.Status, text)
	}
}
