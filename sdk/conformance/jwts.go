package conformance

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
)

// jwts signs what an issuer gets to see whom a token is for (ES256, RFC 7518), and serves the key that verifies it.
type jwts struct {
	key    *ecdsa.PrivateKey
	keep   func(secret string)
	server *http.Server
	wait   sync.WaitGroup
}

// ownBackend prepares a run with a plugin that has an issuer or a catalog of its own.
func (r *run) ownBackend() error {
	if !r.cfg.OwnBackend {
		return nil
	}
	r.cfg.Consul = service.Consul{Name: theCluster}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make a key for JWTs: %w", err)
	}
	point, err := key.PublicKey.Bytes() // 4, x, y (SEC 1, 2.3.3)
	if err != nil {
		return fmt.Errorf("make a key for JWTs: %w", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serve the key of JWTs: %w", err)
	}
	set := encoded(map[string]any{"keys": []any{map[string]any{
		"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": theCluster,
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}})
	r.issues = &jwts{key: key, keep: r.keep, server: &http.Server{
		ReadHeaderTimeout: callTime,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }),
	}}
	r.issues.wait.Go(func() { _ = r.issues.server.Serve(l) }) // close ends it
	url := fmt.Sprintf("http://%s/.well-known/jwks.json", l.Addr())
	r.cfg.Config = bytes.ReplaceAll(r.cfg.Config, []byte(JWKSURL), []byte(url))
	return nil
}

// sign returns a JWT as a host makes it, or else, if the plugin has no issuer of its own, one that nobody accepts; empty
// if that has no marker.
func (j *jwts) sign(s identity.Subject, marker string) string {
	if j == nil {
		if marker == "" {
			return ""
		}
		return marker + "-jwt"
	}
	now := time.Now()
	text := base64.RawURLEncoding.EncodeToString(encoded(map[string]any{"alg": "ES256", "typ": "JWT", "kid": theCluster})) +
		"." + base64.RawURLEncoding.EncodeToString(encoded(map[string]any{
		"iss": "pannier", "aud": []string{theCluster}, "sub": s.Namespace + "/" + s.Workload + "/" + s.Service,
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(checkTime).Unix(), "jti": rand.Text(),
		"pannier_cluster": s.Cluster, "pannier_node": s.Node, "pannier_namespace": s.Namespace,
		"pannier_workload": s.Workload, "pannier_service": s.Service,
	}))
	sum := sha256.Sum256([]byte(text))
	a, b, err := ecdsa.Sign(rand.Reader, j.key, sum[:])
	if err != nil {
		return "" // which the plugin refuses
	}
	var signature [64]byte
	a.FillBytes(signature[:32])
	b.FillBytes(signature[32:])
	text += "." + base64.RawURLEncoding.EncodeToString(signature[:])
	j.keep(text)
	return text
}

// close ends the server; j may be nil.
func (j *jwts) close() {
	if j != nil {
		_ = j.server.Close()
		j.wait.Wait()
	}
}

// encoded returns JSON of a value that can be encoded.
func encoded(v any) []byte {
	text, _ := json.Marshal(v)
	return text
}
