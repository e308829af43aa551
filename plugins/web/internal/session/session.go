// Package session keeps who uses the pages: the secret of an ACL token, encrypted in the browser's cookie. No process
// has a session in memory, so a swap of the plugin signs nobody out, and no secret is stored on the host.
package session

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Session is one browser's.
type Session struct {
	// ID is random. Forms are bound to it.
	ID string `json:"id"`
	// Secret of the user's ACL token; empty: nobody has signed in.
	Secret string `json:"secret,omitempty"`
	// Name of that token.
	Name string `json:"name,omitempty"`
	// Expires is when the session ends, whatever the token does, and Idle when it ends unless there is another request.
	Expires time.Time `json:"expires"`
	Idle    time.Time `json:"idle"`
}

// KeySize is the length of a key in bytes.
const KeySize = 32

// MaxSecret bounds the secret of a token, so that the cookie fits into a browser's 4 KiB (RFC 6265, section 6.1).
const MaxSecret = 1024

// Keeper encrypts sessions (AES-256-GCM) and makes the tokens of forms (HMAC-SHA256).
type Keeper struct {
	aead         cipher.AEAD
	forms        []byte
	length, idle time.Duration
	now          func() time.Time
	// Name is a name of this host that nobody else knows, below localhost, which browsers take for the loopback address
	// (RFC 6761, section 6.3). Without TLS a cookie goes to all ports of its host, and so to whatever others serve on
	// 127.0.0.1 or localhost.
	Name string
}

// New returns a keeper of sessions that last for a time, and end earlier without a request for the time idle.
func New(key []byte, length, idle time.Duration) (*Keeper, error) {
	if len(key) != KeySize {
		return nil, fmt.Errorf("the key of sessions has %d bytes, not %d", len(key), KeySize)
	}
	// Each use has a key of its own.
	block, err := aes.NewCipher(derive(key, "cookie"))
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &Keeper{
		aead: aead, forms: derive(key, "form"), length: length, idle: idle, now: time.Now,
		Name: fmt.Sprintf("pannier-%x.localhost", derive(key, "name")[:8]),
	}, nil
}

func derive(key []byte, purpose string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(purpose))
	return mac.Sum(nil)
}

// Begin returns a session of somebody with the secret of a token, which may be empty.
func (k *Keeper) Begin(secret, name string) Session {
	return Session{ID: rand.Text(), Secret: secret, Name: name, Expires: k.now().Add(k.length)}
}

// name of the cookie. With the prefix, browsers take it from this very host over TLS only (RFC 6265bis, section 4.1.3).
func name(secure bool) string {
	if secure {
		return "__Host-pannier"
	}
	return "pannier"
}

// Put sets the cookie of a session, which is for the browser of a request alone: another User-Agent does not open it.
// secure: the browser uses TLS.
func (k *Keeper) Put(w http.ResponseWriter, r *http.Request, s Session, secure bool) error {
	if s.Idle = k.now().Add(k.idle); s.Idle.After(s.Expires) {
		s.Idle = s.Expires
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	sealed := k.aead.Seal(nil, nil, text, []byte(r.UserAgent()))
	http.SetCookie(w, &http.Cookie{
		Name: name(secure), Value: base64.RawURLEncoding.EncodeToString(sealed), Path: "/", Expires: s.Idle,
		HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode,
	})
	return nil
}

// ErrNone is returned where a request has no session, or one that has ended, is of another browser or was made with
// another key.
var ErrNone = errors.New("there is no session")

// Of returns the session of a request.
func (k *Keeper) Of(r *http.Request, secure bool) (s Session, err error) {
	cookie, err := r.Cookie(name(secure))
	if err != nil {
		return s, ErrNone
	}
	sealed, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil {
		return s, ErrNone
	}
	text, err := k.aead.Open(nil, nil, sealed, []byte(r.UserAgent()))
	if err != nil || json.Unmarshal(text, &s) != nil || !k.now().Before(s.Idle) {
		return Session{}, ErrNone
	}
	return s, nil
}

// Renew says that the session of a request, if there is one, is in use.
func (k *Keeper) Renew(w http.ResponseWriter, r *http.Request, secure bool) {
	s, err := k.Of(r, secure)
	if used := k.idle - s.Idle.Sub(k.now()); err == nil && s.Idle.Before(s.Expires) && used > k.idle/8 {
		_ = k.Put(w, r, s, secure) // it was encoded before
	}
}

// FormToken is what each form of a session has, so that no other site can post one.
func (k *Keeper) FormToken(s Session) string {
	mac := hmac.New(sha256.New, k.forms)
	mac.Write([]byte(s.ID))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Posted reports whether a form is the session's own.
func (k *Keeper) Posted(s Session, token string) bool {
	return hmac.Equal([]byte(token), []byte(k.FormToken(s)))
}
