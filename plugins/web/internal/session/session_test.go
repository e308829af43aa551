package session

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
)

// keeper returns a keeper with a key that has one byte everywhere, and its clock.
func keeper(t *testing.T, of byte) (*Keeper, *time.Time) {
	t.Helper()
	key := make([]byte, KeySize)
	for n := range key {
		key[n] = of
	}
	k := check.Must(New(key, 3*time.Hour, time.Hour))(t)
	now := time.Now()
	k.now = func() time.Time { return now }
	return k, &now
}

// requestWith makes a request with the cookie that a keeper sets for a session.
func requestWith(t *testing.T, k *Keeper, s Session, secure bool) *http.Request {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("User-Agent", "browser")
	check.NoError(t, k.Put(w, r, s, secure))
	for _, c := range w.Result().Cookies() {
		r.AddCookie(c)
	}
	return r
}

// A session is read by each process with the key, until it ends; and by none with another key, over another
// transport or of another browser.
func TestSession(t *testing.T) {
	first, now := keeper(t, 1)
	next, later := keeper(t, 1)
	other, _ := keeper(t, 2)
	s := first.Begin("the secret", "name")
	for _, secure := range []bool{false, true} {
		r := requestWith(t, first, s, secure)
		got, err := next.Of(r, secure)
		if check.NoError(t, err); got.Secret != s.Secret || got.Name != s.Name || got.ID != s.ID {
			t.Errorf("read %v, want %v", got, s)
		}
		if _, err := other.Of(r, secure); !errors.Is(err, ErrNone) {
			t.Errorf("with another key: %v", err)
		}
		if _, err := next.Of(r, !secure); !errors.Is(err, ErrNone) {
			t.Errorf("over another transport: %v", err)
		}
		r.Header.Set("User-Agent", "curl")
		if _, err := next.Of(r, secure); !errors.Is(err, ErrNone) {
			t.Errorf("by another browser: %v", err)
		}
	}
	r := requestWith(t, first, s, false)
	*later = now.Add(time.Hour)
	if got, err := next.Of(r, false); !errors.Is(err, ErrNone) || got.Secret != "" {
		t.Errorf("after its end: %v, %v", got, err)
	}
}

// A session ends without a request for a time, and lasts with some, up to its end: the cookie is renewed rarely.
func TestIdleSession(t *testing.T) {
	k, now := keeper(t, 1)
	begun := *now
	r := requestWith(t, k, k.Begin("the secret", ""), true)
	renewed := 0
	for range 24 {
		*now = now.Add(9 * time.Minute)
		if _, err := k.Of(r, true); err != nil {
			break
		}
		w := httptest.NewRecorder()
		k.Renew(w, r, true)
		for _, c := range w.Result().Cookies() {
			renewed++
			r = httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("User-Agent", "browser")
			r.AddCookie(c)
			w := httptest.NewRecorder()
			if k.Renew(w, r, true); len(w.Result().Cookies()) > 0 {
				t.Error("it is renewed with each request")
			}
		}
	}
	if lasted := now.Sub(begun); lasted != 3*time.Hour || renewed == 0 {
		t.Errorf("a session of three hours that is used lasts %s, renewed %d times", lasted, renewed)
	}
	r = requestWith(t, k, k.Begin("the secret", ""), true)
	*now = now.Add(time.Hour)
	w := httptest.NewRecorder()
	k.Renew(w, r, true)
	if _, err := k.Of(r, true); !errors.Is(err, ErrNone) || len(w.Result().Cookies()) > 0 {
		t.Errorf("after an hour without a request: %v, %v", err, w.Result().Cookies())
	}
}

// A form counts for its own session only.
func TestForms(t *testing.T) {
	k, _ := keeper(t, 1)
	other, _ := keeper(t, 2)
	a, b := k.Begin("", ""), k.Begin("", "")
	if !k.Posted(a, k.FormToken(a)) {
		t.Error("the session's own form is refused")
	}
	for _, token := range []string{"", k.FormToken(b), other.FormToken(a), k.FormToken(a) + "x"} {
		if k.Posted(a, token) {
			t.Errorf("the form token %q counts", token)
		}
	}
}

func TestKeyOfAnotherSize(t *testing.T) {
	if _, err := New(make([]byte, KeySize-1), time.Hour, time.Hour); err == nil {
		t.Error("a short key is taken")
	}
}
