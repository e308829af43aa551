package conformance

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

// jwts signs what an issuer gets to see whom a token is for, and serves the key that verifies it.
type jwts struct {
	jose.Signer
	r      *run
	server *httptest.Server
}

// ownBackend prepares a run with a plugin that has an issuer or a catalog of its own.
func (r *run) ownBackend() error {
	if !r.cfg.OwnBackend {
		return nil
	}
	r.cfg.Consul = service.Consul{Name: theCluster}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key := jose.JSONWebKey{Key: private, KeyID: theCluster, Algorithm: string(jose.ES256), Use: "sig"}
	signer, signerErr := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, nil)
	set, setErr := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	if err := errors.Join(err, signerErr, setErr); err != nil {
		return fmt.Errorf("make a key for JWTs: %w", err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	r.issues = &jwts{Signer: signer, r: r, server: server}
	r.cfg.Config = bytes.ReplaceAll(r.cfg.Config, []byte(JWKSURL), []byte(server.URL))
	return nil
}

// sign returns a JWT as a host makes it, or else, if the plugin has no issuer of its own, one that nobody accepts;
// empty if that has no marker.
func (j *jwts) sign(s identity.Subject, marker string) string {
	if j == nil {
		if marker == "" {
			return ""
		}
		return marker + "-jwt"
	}
	now := time.Now()
	text, _ := jwt.Signed(j).Claims(jwt.Claims{ // if it fails, the plugin refuses the empty text
		Issuer: "pannier", Audience: jwt.Audience{theCluster}, Subject: s.Namespace + "/" + s.Workload + "/" + s.Service,
		IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), ID: rand.Text(),
		Expiry: jwt.NewNumericDate(now.Add(checkTime)),
	}).Claims(map[string]any{
		"pannier_cluster": s.Cluster, "pannier_node": s.Node, "pannier_namespace": s.Namespace,
		"pannier_workload": s.Workload, "pannier_service": s.Service,
	}).Serialize()
	j.r.keep(text)
	return text
}

// close ends the server; j may be nil.
func (j *jwts) close() {
	if j != nil {
		j.server.Close()
	}
}
