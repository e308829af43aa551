package site

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/plugins/web/internal/session"
	"github.com/pannier/pannier/sdk/api"
	"github.com/pannier/pannier/test/lib/check"
)

// Browsers send a cookie to all ports of a host: what another user serves on a port of the loopback address gets no
// session, wherever the pages were opened, and a session that came by such an address counts for nothing.
func TestACookieIsForNoOtherPort(t *testing.T) {
	keeper := check.Must(session.New(make([]byte, session.KeySize), time.Hour, time.Hour))(t)
	pages := New(Config{API: &api.Client{}, Sessions: keeper, Port: true})
	site := httptest.NewServer(pages.Handler())
	defer site.Close()
	var stolen []string
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, c := range r.Cookies() {
			stolen = append(stolen, r.Host+": "+c.String())
		}
	}))
	defer thief.Close()
	browser := &http.Client{
		Jar: check.Must(cookiejar.New(nil))(t),
		Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(address) // all names below localhost are the loopback address
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
		}},
	}
	defer browser.CloseIdleConnections()
	get := func(address string) *http.Response {
		t.Helper()
		res := check.Must(browser.Get(address))(t)
		_, _ = io.Copy(io.Discard, res.Body)
		check.NoError(t, res.Body.Close())
		return res
	}
	for _, host := range []string{"127.0.0.1", "localhost"} {
		as := func(server *httptest.Server) string { return strings.Replace(server.URL, "127.0.0.1", host, 1) }
		res := get(as(site) + "/sign-in?to=/volumes")
		if at := res.Request.URL; at.Hostname() != keeper.Name || at.Query().Get("to") != "/volumes" || len(browser.Jar.Cookies(at)) != 1 {
			t.Errorf("the form is at %s, with the cookies %v", at, browser.Jar.Cookies(at))
		}
		get(as(thief))
	}
	if len(stolen) > 0 {
		t.Errorf("another port gets %q", stolen)
	}
	answer := httptest.NewRecorder()
	check.NoError(t, keeper.Put(answer, httptest.NewRequest(http.MethodGet, "/", nil), keeper.Begin("secret", "name"), false))
	for host, want := range map[string]string{"127.0.0.1:7480": "", "localhost": "", "[::1]:7480": "", keeper.Name + ":7480": "secret"} {
		r := httptest.NewRequest(http.MethodGet, "http://"+host+"/", nil)
		r.AddCookie(answer.Result().Cookies()[0])
		if got := pages.who(r).Secret; got != want {
			t.Errorf("at %s the session's secret is %q, not %q", host, got, want)
		}
	}
}

// A page that is open stops when its session ends, and its updates do not renew the session; a request does.
func TestOpenPageEndsWithItsSession(t *testing.T) {
	const idle = 4 * time.Second
	keeper := check.Must(session.New(make([]byte, session.KeySize), time.Hour, idle))(t)
	absent := api.NewOver(func(context.Context) (net.Conn, error) { return nil, errors.New("the agent is away") })
	pages := New(Config{API: absent, Sessions: keeper, TLS: true, Log: slog.New(slog.DiscardHandler)})
	site := httptest.NewServer(pages.Handler())
	defer site.Close()
	begun := httptest.NewRecorder()
	check.NoError(t, keeper.Put(begun, httptest.NewRequest(http.MethodGet, "/", nil), keeper.Begin("secret", ""), true))
	cookie := begun.Result().Cookies()[0]
	get := func(path string) (text string, renewed bool) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		r := check.Must(http.NewRequestWithContext(ctx, http.MethodGet, site.URL+path, nil))(t)
		r.Header.Set("User-Agent", "")
		r.AddCookie(cookie)
		res := check.Must(http.DefaultClient.Do(r))(t)
		defer res.Body.Close()
		return string(check.Must(io.ReadAll(res.Body))(t)), len(res.Cookies()) > 0
	}
	if text, renewed := get("/nodes?live=1"); !strings.Contains(text, "the agent is away") || renewed {
		t.Errorf("the stream (the session is renewed: %t) has %q", renewed, text)
	}
	if _, renewed := get("/nodes"); renewed {
		t.Error("a session that has ended is renewed")
	}
	// As if half of the time was over.
	earlier := check.Must(session.New(make([]byte, session.KeySize), time.Hour, idle/2))(t)
	begun = httptest.NewRecorder()
	check.NoError(t, earlier.Put(begun, httptest.NewRequest(http.MethodGet, "/", nil), earlier.Begin("secret", ""), true))
	cookie = begun.Result().Cookies()[0]
	if _, renewed := get("/no-page"); !renewed {
		t.Error("a request does not renew the session")
	}
}
