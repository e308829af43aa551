// Package door is the front door: its configuration, and where it listens.
package door

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/plugins/internal/frontdoor"
	"github.com/pannier/pannier/plugins/web/internal/session"
	"github.com/pannier/pannier/plugins/web/internal/site"
	"github.com/pannier/pannier/plugins/web/internal/trend"
	"github.com/pannier/pannier/sdk"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/frontend"
)

// config is the config block of the plugin.
type config struct {
	Actions  bool     `json:"actions" default:"false" doc:"whether users may change something: detach, drain, swap, snapshot, delete"`
	Hosts    []string `json:"hosts" doc:"names by which browsers call the pages, besides localhost and IP addresses"`
	Session  string   `json:"session" default:"8h" doc:"after how long users sign in again"`
	Idle     string   `json:"idle" default:"1h" doc:"after how long without a request they do"`
	CertFile string   `json:"cert_file" doc:"path of a TLS certificate in PEM, the server's first"`
	KeyFile  string   `json:"key_file" doc:"path of its key in PEM"`

	session, idle time.Duration
}

const minSession, maxSession = time.Minute, 7 * 24 * time.Hour

// Validate implements sdk.Config's.
func (c *config) Validate() (err error) {
	if c.session, err = length("session", c.Session); err != nil {
		return err
	}
	if c.idle, err = length("idle", c.Idle); err != nil {
		return err
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return errors.New("cert_file and key_file: give both, or none")
	}
	for _, name := range c.Hosts {
		if name == "" || strings.ContainsAny(name, "/:@ *") {
			return fmt.Errorf("hosts: %q is no name, such as pannier.example.org", name)
		}
	}
	return nil
}

// length reads the length of sessions.
func length(key, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < minSession || d > maxSession {
		return 0, fmt.Errorf("%s: %q is no time between %s and %s", key, text, minSession, maxSession)
	}
	return d, nil
}

// Door is the front door. Its listen block is "http".
type Door struct{ sdk.Config[config] }

const listenName = "http"

// callTimeout bounds a call of the API. While the agent restarts, calls wait.
const callTimeout = 10 * time.Second

// Ready is called before this process takes over from another one: the API must answer, and the certificate be usable.
func (d *Door) Ready(ctx context.Context, host frontend.Host) error {
	listener, err := host.Listen(listenName)
	if err != nil {
		return err
	}
	if err := d.Get().check(listener.Addr()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = host.API.ACL.GetACLSelf(ctx, &hostv1.GetACLSelfRequest{})
	return frontdoor.Unanswered(err)
}

// check refuses an address at which tokens would cross a network in the clear.
func (c *config) check(at net.Addr) error {
	if c.CertFile != "" {
		_, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		return err
	}
	if !frontdoor.Local(at) {
		return fmt.Errorf("listen %q: %s is not of this host alone, and users would send their tokens there without TLS: "+
			"set cert_file and key_file, or listen on 127.0.0.1 or a unix socket behind a proxy with TLS", listenName, at)
	}
	return nil
}

// Serve serves the pages until ctx ends.
func (d *Door) Serve(ctx context.Context, host frontend.Host) error {
	c := d.Get()
	listener, err := host.Listen(listenName)
	if err != nil {
		return err
	}
	at := listener.Addr()
	if err := c.check(at); err != nil {
		return err
	}
	if c.CertFile != "" {
		listener = tls.NewListener(listener, &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: c.certificate,
		})
	}
	ring := trend.Ring{Store: host.State}
	var background sync.WaitGroup
	defer background.Wait()
	background.Go(func() { ring.Keep(ctx, func(ctx context.Context) (trend.Sample, bool) { return sample(ctx, host) }) })
	pages := &opening{open: make(chan struct{})}
	background.Go(func() {
		keeper, err := c.keeper(ctx, host.State)
		if err != nil {
			return // the plugin is stopping
		}
		_, unix := at.(*net.UnixAddr)
		pages.Handler = site.New(site.Config{
			API: host.API, Sessions: keeper, Trend: ring, Actions: c.Actions, ActionsWithoutACLs: unix, TLS: c.CertFile != "",
			Port: !unix, Hosts: c.Hosts, Stopping: ctx.Done(), Log: slog.Default(),
		}).Handler()
		close(pages.open)
	})
	return frontend.ServeHTTP(ctx, listener, pages)
}

// opening is the pages once the key of sessions is known, which the host has. Requests wait for it.
type opening struct {
	http.Handler
	open chan struct{} // closed when Handler is set
}

func (o *opening) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-o.open:
		o.Handler.ServeHTTP(w, r)
	case <-time.After(callTimeout):
		http.Error(w, "The agent does not answer yet.", http.StatusServiceUnavailable)
	case <-r.Context().Done(): // the reader is gone
	}
}

// keeper returns what keeps sessions. Its error is that ctx has ended.
func (c *config) keeper(ctx context.Context, state *sdk.State) (*session.Keeper, error) {
	for {
		key, err := sessionKey(ctx, state)
		if err == nil {
			return session.New(key, c.session, c.idle)
		}
		slog.Warn("the key of sessions cannot be read", "error", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// certificate reads the files at each handshake, so that a renewed certificate counts at once.
func (c *config) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	return &pair, err
}

// keyName is the key that encrypts sessions, in the plugin's state. If it is lost, users sign in again.
const keyName = "session-key"

// sessionKey returns the key of sessions, which all processes of the plugin share. The first one makes it.
func sessionKey(ctx context.Context, state *sdk.State) ([]byte, error) {
	for {
		key, found, err := state.Get(ctx, keyName)
		if err != nil || found && len(key) == session.KeySize {
			return key, err
		}
		var before []byte
		if found {
			before = key
		}
		key = make([]byte, session.KeySize)
		_, _ = rand.Read(key) // never fails
		if _, err := state.CompareAndSwap(ctx, keyName, before, key); err != nil {
			return nil, err
		}
	}
}

// sample takes the numbers of now, with the plugin's own rights. It has none where these do not allow it.
func sample(ctx context.Context, host frontend.Host) (trend.Sample, bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := host.API.Agent.Status(ctx, &hostv1.StatusRequest{})
	if err != nil {
		slog.Debug("there is no sample of the growth", "error", err)
		return trend.Sample{}, false
	}
	now := time.Now()
	p := trend.Sample{
		At: now.Unix(), Used: s.GetDataDirSize() - s.GetDataDirFree(), Size: s.GetDataDirSize(), Ledger: s.GetLedgerSize(),
	}
	if since := s.GetStalledSince(); since != nil {
		p.Stalled = max(int64(now.Sub(since.AsTime()).Seconds()), 0)
	}
	return p, true
}
