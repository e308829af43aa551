package tokens

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/sdk/identity"
)

// Constants of a JWT.
const (
	jwtIssuer = "pannier"
	jwtLife   = 5 * time.Minute
	// DefaultAudience is the audience of Nomad's workload identities for Consul.
	DefaultAudience = "consul.io"
)

// privateKey is the key of the private part in the sealed values: PKCS #8 in base64.
const privateKey = "private_key"

// jwtClaims are the claims of RFC 7519 and the subject of the JWT, which Consul's auth method maps
// (ClaimMappings).
type jwtClaims struct {
	jwt.Claims
	Cluster   string `json:"pannier_cluster"`
	Node      string `json:"pannier_node"`
	Namespace string `json:"pannier_namespace"`
	Workload  string `json:"pannier_workload"`
	Service   string `json:"pannier_service"`
}

// signer signs with one key.
type signer struct {
	jose.Signer
	id string // of the key
}

// sign returns a JWT that tells a Consul whom a token is for.
func (a *Authority) sign(ctx context.Context, consul string, s identity.Subject) (string, error) {
	key, err := a.signingKey(ctx)
	if err != nil {
		return "", err
	}
	now := time.Now()
	text, err := jwt.Signed(key).Claims(jwtClaims{
		Claims: jwt.Claims{
			Issuer: jwtIssuer, Subject: s.Namespace + "/" + s.Workload + "/" +
				s.Service, Audience: jwt.Audience{cmp.Or(a.Audiences[consul], DefaultAudience)},
			IssuedAt: jwt.NewNumericDate(now), NotBefore: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(now.Add(jwtLife)),
			ID: rand.Text(),
		},
		Cluster: s.Cluster, Node: s.Node, Namespace: s.Namespace, Workload: s.Workload, Service: s.Service,
	}).Serialize()
	if err != nil {
		return "", fmt.Errorf("sign a JWT: %w", err)
	}
	return text, nil
}

// JWKS returns the JSON Web Key Set (RFC 7517) that verifies the cluster's JWTs. It makes the key if there is none
// yet.
func (a *Authority) JWKS(ctx context.Context) ([]byte, error) {
	standing, rotation, err := a.signingKeys(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := a.signerOf(standing); err != nil {
		return nil, err
	}
	keys := []json.RawMessage{standing.Public}
	if rotation.Published() {
		keys = append(keys, rotation.Key.Public)
	}
	return json.Marshal(map[string][]json.RawMessage{"keys": keys})
}

// signingKey returns what signs with the cluster's signing key, and makes that if there is none.
func (a *Authority) signingKey(ctx context.Context) (*signer, error) {
	standing, _, err := a.signingKeys(ctx)
	if err != nil {
		return nil, err
	}
	return a.signerOf(standing)
}

// signingKeys reads the cluster's signing key, which it makes if there is none, and the rotation that is under way.
func (a *Authority) signingKeys(ctx context.Context) (standing claim.SigningKey, rotation claim.KeyRotation,
	err error,
) {
	var found bool
	err = a.Ledger.Read(ctx, func(tx *state.ReadTx) (err error) {
		if standing, found, err = tx.SigningKey(); err != nil {
			return err
		}
		rotation, _, err = tx.KeyRotation()
		return err
	})
	if err == nil && !found {
		var made claim.SigningKey
		if made, err = a.makeSigningKey(); err == nil {
			standing, err = cluster.Apply(ctx, a.Ledger, &command.PutSigningKey{Key: made})
		}
	}
	if err != nil {
		return standing, rotation, fmt.Errorf("the cluster's signing key: %w", ledgerError(err))
	}
	return standing, rotation, nil
}

// signerOf returns what signs with a key. The last one is remembered.
func (a *Authority) signerOf(k claim.SigningKey) (*signer, error) {
	a.mu.Lock()
	known := a.signer
	a.mu.Unlock()
	if known != nil && known.id == k.ID {
		return known, nil
	}
	opened, err := a.open(k)
	if err != nil {
		return nil, fmt.Errorf("the cluster's signing key %s: %w", k.ID, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.signer = opened
	return opened, nil
}

// makeSigningKey makes a key that is nowhere stored yet.
func (a *Authority) makeSigningKey() (claim.SigningKey, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return claim.SigningKey{}, err
	}
	public := jose.JSONWebKey{Key: private.Public(), Algorithm: string(jose.ES256), Use: "sig"}
	thumbprint, err := public.Thumbprint(crypto.SHA256)
	if err != nil {
		return claim.SigningKey{}, err
	}
	public.KeyID = base64.RawURLEncoding.EncodeToString(thumbprint)
	k := claim.SigningKey{ID: public.KeyID}
	if k.Public, err = public.MarshalJSON(); err != nil {
		return k, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return k, err
	}
	defer clear(der)
	k.Sealed, k.SecretsKey, err = a.Sealer.Seal(map[string]string{privateKey: base64.StdEncoding.EncodeToString(der)},
		ForSigningKey(k.ID))
	return k, err
}

// ForSigningKey is the context that binds a sealed value to the signing key of that id.
func ForSigningKey(id string) []byte { return []byte("signing key\x00" + id) }

// open opens a sealed key and makes its signer.
func (a *Authority) open(k claim.SigningKey) (*signer, error) {
	opened, err := a.Sealer.Unseal(k.Sealed, ForSigningKey(k.ID))
	switch {
	case errors.Is(err, secrets.ErrKey):
		return nil, errors.New(
			"it was sealed with a secrets key other than this agent's: restore the file of that key in the data directory from a backup")
	case err != nil:
		return nil, errors.New("the sealed value in the ledger is damaged: restore the ledger from a backup")
	}
	der, err := base64.StdEncoding.DecodeString(opened[privateKey])
	if err != nil {
		return nil, errors.New("its private part cannot be read") // the cause could quote it
	}
	defer clear(der)
	private, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("its private part cannot be read")
	}
	made, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: k.ID}},
		(&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		return nil, fmt.Errorf("use it: %w", err)
	}
	return &signer{Signer: made, id: k.ID}, nil
}
