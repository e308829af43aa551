package tokens

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
	"github.com/pannier/pannier/test/lib/consul"
)

// A server's clock may be minutes off, and Consul accepts a JWT for a minute after its end.
func TestAKeyIsPublishedUntilItsLastJWTIsOver(t *testing.T) {
	if keyOverlap < jwtLife+3*time.Minute {
		t.Errorf("a key is withdrawn %s after it was replaced, and a JWT lives for %s", keyOverlap, jwtLife)
	}
}

// rotators are three servers, each with an Authority, and a real Consul with ACLs and the real plugin.
type rotators struct {
	*clustertest.Cluster
	t       *testing.T
	consul  *consul.Cluster
	plugins *catalog.Catalog
	sealer  *secrets.Sealer
	all     map[string]*rotator
	overlap time.Duration
}

// rotator is one of the servers. Its key set is at a URL that outlives it.
type rotator struct {
	*clustertest.Host
	w    *rotators
	url  string
	stop func()

	mu        sync.Mutex
	authority *Authority // nil: it is down
	held      []byte     // what it publishes instead, while it lags
}

const loginConsul = "login"

// formRotators forms the servers. The auth method has what method returns.
func formRotators(t *testing.T, overlap time.Duration, method func(w *rotators) consul.JWTMethod) *rotators {
	t.Helper()
	t.Parallel()
	w := &rotators{t: t, overlap: overlap, all: map[string]*rotator{}, consul: consul.Start(t, consul.Options{ACL: true})}
	w.plugins = sids(t)
	w.sealer = check.Must(secrets.Open(filepath.Join(t.TempDir(), "secrets.key")))(t)
	w.Cluster = clustertest.Form(t, 3, clustertest.Options{})
	for _, h := range w.Hosts() {
		r := &rotator{Host: h, w: w}
		server := httptest.NewServer(http.HandlerFunc(r.serve))
		t.Cleanup(server.Close)
		r.url = server.URL
		w.all[h.Name] = r
		r.open()
		t.Cleanup(func() { r.close() })
	}
	w.WaitLeader(t)
	m := method(w)
	m.Name, m.Issuer, m.Audience = "pannier", "pannier", DefaultAudience
	w.consul.JWT(t, m)
	return w
}

func (r *rotator) open() {
	block := r.w.consul.Service(loginConsul, "")
	block.AuthMethod = "pannier"
	a := New(Config{
		Ledger: r.Node, Consuls: map[string]service.Consul{loginConsul: block}, Sealer: r.w.sealer,
		Identity: func(ctx context.Context, _ string, fn func(context.Context, identity.Identity) error) error {
			return catalog.Do(ctx, r.w.plugins, catalog.Identity, "", fn)
		},
		KeySets: r.others, Events: events.New(100), Log: hclog.NewNullLogger(),
	})
	a.overlap, a.rotateLongest = r.w.overlap, rotateFirst
	r.mu.Lock()
	r.authority = a
	r.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	var loop sync.WaitGroup
	node := r.Node
	loop.Go(func() { node.WhileLeader(ctx, a.LeadRotation) })
	r.stop = func() { stop(); loop.Wait() }
}

func (r *rotator) close() {
	r.mu.Lock()
	r.authority = nil
	r.mu.Unlock()
	r.stop()
}

// kill stops a server amid whatever it does; start restarts it with what is on its disk.
func (r *rotator) kill() {
	r.w.t.Helper()
	r.close()
	r.Stop(r.w.t)
}

func (r *rotator) start() {
	r.w.t.Helper()
	r.Start(r.w.t)
	r.open()
}

// is returns its authority; nil: it is down.
func (r *rotator) is() *Authority {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.authority
}

func (r *rotator) keySet(ctx context.Context) ([]byte, error) {
	r.mu.Lock()
	held := r.held
	r.mu.Unlock()
	if a := r.is(); a == nil {
		return nil, fmt.Errorf("server %q is down", r.Name)
	} else if held == nil {
		return a.JWKS(ctx)
	}
	return held, nil
}

func (r *rotator) serve(w http.ResponseWriter, req *http.Request) {
	set, err := r.keySet(req.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write(set)
}

// lag makes it publish what it publishes now until the result is called.
func (r *rotator) lag() (release func()) {
	r.w.t.Helper()
	set, err := r.keySet(r.w.t.Context())
	check.NoError(r.w.t, err)
	hold := func(set []byte) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.held = set
	}
	hold(set)
	return func() { hold(nil) }
}

func (r *rotator) others(ctx context.Context) (map[string][]byte, error) {
	sets := map[string][]byte{}
	var errs []error
	for name, other := range r.w.all {
		if name == r.Name {
			continue
		}
		set, err := other.keySet(ctx)
		sets[name] = set
		errs = append(errs, err)
	}
	return sets, errors.Join(errs...)
}

func (w *rotators) leader() *rotator {
	w.t.Helper()
	return w.all[w.WaitLeader(w.t).Name]
}

// status is that of the leader; empty: there is none now.
func (w *rotators) status() KeyStatus {
	h := w.Leader()
	if h == nil {
		return KeyStatus{}
	}
	a := w.all[h.Name].is()
	if a == nil {
		return KeyStatus{}
	}
	s, err := a.Keys(w.t.Context())
	if err != nil {
		return KeyStatus{}
	}
	return s
}

// phases are those of a rotation, and none at its end.
var phases = []claim.RotationPhase{claim.KeyPublished, claim.KeyReplaced, claim.KeyWithdrawn, ""}

// until waits until the rotation is in a phase, and waits for something with that text.
func (w *rotators) until(phase claim.RotationPhase, why string) {
	w.t.Helper()
	var is KeyStatus
	defer func() { w.t.Logf("phase %q: %s", is.Rotation.Phase, is.WaitsFor) }()
	clustertest.Eventually(w.t, fmt.Sprintf("the phase is %q, and waits for %q", phase, why), func() bool {
		is = w.status()
		if is.Signs.ID != "" && slices.Index(phases, is.Rotation.Phase) > slices.Index(phases, phase) {
			w.t.Fatalf("the phase is %q already, and not %q, which waits for %q", is.Rotation.Phase, phase, why)
		}
		return is.Signs.ID != "" && is.Rotation.Phase == phase && strings.Contains(is.WaitsFor, why)
	})
}

var webSubject = identity.Subject{Cluster: "c", Node: "n", Namespace: "default", Workload: "w", Service: "web"}

// login logs in with a JWT.
func (w *rotators) login(jwt string) error {
	token, _, err := w.consul.Client("").ACL().Login(&api.ACLLoginParams{AuthMethod: "pannier", BearerToken: jwt}, nil)
	if err == nil {
		_, err = w.consul.Client(token.SecretID).ACL().Logout(nil)
	}
	return err
}

// jwt is one that a server signs now.
func (w *rotators) jwt(r *rotator) string {
	w.t.Helper()
	return check.Must(r.is().sign(w.t.Context(), loginConsul, webSubject))(w.t)
}

// logins logs in again and again with what each server signs, until the result is called, which fails the test if
// Consul has refused one.
func (w *rotators) logins() (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	var loops sync.WaitGroup
	var mu sync.Mutex
	counts, failed := map[string]int{}, map[string]error{}
	for _, r := range w.all {
		loops.Go(func() {
			for ctx.Err() == nil {
				a := r.is()
				if a == nil {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				text, err := a.sign(ctx, loginConsul, webSubject)
				if err != nil {
					continue // its ledger is closing
				}
				err = w.login(text)
				mu.Lock()
				counts[r.Name]++
				if err != nil && failed[r.Name] == nil {
					failed[r.Name] = err
				}
				mu.Unlock()
			}
		})
	}
	return func() {
		stop()
		loops.Wait()
		w.t.Logf("logins: %v", counts)
		for name, err := range failed {
			w.t.Errorf("a login with a JWT of %s: %v", name, err)
		}
		for name := range w.all {
			if counts[name] == 0 {
				w.t.Errorf("no login with a JWT of %s", name)
			}
		}
	}
}

// refetch makes Consul fetch the keys of the URL.
func (w *rotators) refetch() {
	w.t.Helper()
	if err := w.login(unknownJWT(w.t)); err == nil {
		w.t.Error("a JWT that nobody has signed was accepted")
	}
}

// TestRotationOfFetchedKeys rotates while services log in, and the leader is killed in each phase. Consul fetches the
// keys. A server that does not publish the next key yet holds the rotation.
func TestRotationOfFetchedKeys(t *testing.T) {
	var asked *rotator
	w := formRotators(t, time.Hour, func(w *rotators) consul.JWTMethod {
		asked = w.all[w.Follower(t).Name]
		return consul.JWTMethod{JWKSURL: asked.url}
	})
	end := w.logins()
	first := w.leader()
	old := check.Must(first.is().Keys(t.Context()))(t).Signs.ID
	of := w.jwt(first)
	var lagging *rotator // not the one that Consul asks
	for _, r := range w.all {
		if r != first && r != asked {
			lagging = r
		}
	}
	release := lagging.lag()
	check.NoError(t, first.is().RotateKey(t.Context()))
	w.until(claim.KeyPublished, fmt.Sprintf("%q does not publish the key", lagging.Name))
	check.NoError(t, first.is().RotateKey(t.Context()))
	next := w.status().Rotation.Key.ID

	first.kill()
	w.until(claim.KeyPublished, "publish")
	first.start()
	release()
	w.until(claim.KeyReplaced, "are over at")
	if is := w.status(); is.Signs.ID != next || is.Rotation.Key.ID != old {
		t.Errorf("it signs with %s, not %s, and %s was replaced", is.Signs.ID, next, is.Rotation.Key.ID)
	}
	second := w.leader()
	second.kill()
	w.until(claim.KeyReplaced, "are over at")
	second.start()
	w.WaitReady(t)
	w.until(claim.KeyReplaced, "are over at")
	w.refetch()
	if err := w.login(of); err != nil {
		t.Errorf("a JWT of the key that was replaced: %v", err)
	}
	w.overlap = time.Millisecond // as if it were over
	for _, r := range w.all {
		r.kill()
		r.start()
		w.WaitReady(t)
	}
	w.until("", "")
	end()
	if err := w.login(of); err == nil {
		t.Error("a JWT of the key that is gone was accepted")
	}
	for _, r := range w.all {
		var set jose.JSONWebKeySet
		check.NoError(t, json.Unmarshal(check.Must(r.keySet(t.Context()))(t), &set))
		if len(set.Keys) != 1 || set.Keys[0].KeyID != next {
			t.Errorf("%s publishes %+v", r.Name, set.Keys)
		}
	}
	if got := w.kinds(); !strings.Contains(got, "signing-key-gone") {
		t.Errorf("the events are %s", got)
	}
}

// kinds are the types of all servers' events.
func (w *rotators) kinds() string {
	var all []string
	for _, r := range w.all {
		for _, e := range r.is().Events.Recent(100) {
			all = append(all, e.Type)
		}
	}
	return strings.Join(all, " ")
}

// TestRotationOfStandingKeys rotates where the auth method has the keys in itself: it gets the next one before that
// signs, and the replaced one stays until somebody removes it.
func TestRotationOfStandingKeys(t *testing.T) {
	w := formRotators(t, time.Millisecond, func(w *rotators) consul.JWTMethod {
		s := check.Must(w.leader().is().Keys(t.Context()))(t)
		return consul.JWTMethod{Keys: []string{publicPEM(t, s.Signs.Public)}}
	})
	end := w.logins()
	of := w.jwt(w.leader())
	check.NoError(t, w.leader().is().RotateKey(t.Context()))
	w.until(claim.KeyPublished, "has not the key")
	killed := w.leader()
	killed.kill()
	w.until(claim.KeyPublished, "down")
	killed.start()
	w.until(claim.KeyPublished, "has not the key")
	is := w.status()
	w.setKeys(is.Signs.Public, is.Rotation.Key.Public)
	w.until(claim.KeyWithdrawn, "still has the key")
	killed = w.leader()
	killed.kill()
	w.until(claim.KeyWithdrawn, "still has the key")
	killed.start()
	if err := w.login(of); err != nil {
		t.Errorf("a JWT of the key that was withdrawn, and that Consul still has: %v", err)
	}
	w.setKeys(w.status().Signs.Public)
	w.until("", "")
	end()
	if err := w.login(of); err == nil {
		t.Error("a JWT of the key that is gone was accepted")
	}
	signs := w.status().Signs.Public
	if unknown := w.status().UnknownTo; len(unknown) > 0 {
		t.Errorf("%q do not have the key", unknown)
	}
	others := check.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	w.setKeys(check.Must(json.Marshal(jose.JSONWebKey{Key: others.Public(), KeyID: "another host's"}))(t))
	if unknown := w.status().UnknownTo; !slices.Equal(unknown, []string{loginConsul}) {
		t.Errorf("without the key: %q", unknown)
	}
	w.setKeys(signs)
}

// publicPEM is a JSON Web Key in PEM.
func publicPEM(t *testing.T, public []byte) string {
	t.Helper()
	var key jose.JSONWebKey
	check.NoError(t, json.Unmarshal(public, &key))
	der := check.Must(x509.MarshalPKIXPublicKey(key.Key))(t)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

// unknownJWT is one that nobody has signed.
func unknownJWT(t *testing.T) string {
	t.Helper()
	key := check.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	made := check.Must(jose.NewSigner(jose.SigningKey{
		Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "nobody's"},
	}, nil))(t)
	return check.Must(expired(&signer{Signer: made}))(t)
}

// setKeys gives the auth method its keys.
func (w *rotators) setKeys(public ...[]byte) {
	w.t.Helper()
	acl := w.consul.Client(w.consul.Management).ACL()
	method, _, err := acl.AuthMethodRead("pannier", nil)
	check.NoError(w.t, err)
	var keys []string
	for _, k := range public {
		keys = append(keys, publicPEM(w.t, k))
	}
	method.Config["JWTValidationPubKeys"] = keys
	_, _, err = acl.AuthMethodUpdate(method, nil)
	check.NoError(w.t, err)
}

// A plugin that does not tell which keys its verifiers have gets time to see the next one.
func TestRotationForAPluginThatDoesNotTell(t *testing.T) {
	w := newWorld(t, newFake().ask, login)
	w.untold = time.Hour
	ctx, stop := context.WithCancel(t.Context())
	var loop sync.WaitGroup
	loop.Go(func() { w.LeadRotation(ctx) })
	defer loop.Wait()
	defer stop()
	check.NoError(t, w.RotateKey(t.Context()))
	clustertest.Eventually(t, "it waits for time to pass", func() bool {
		s, err := w.Keys(t.Context())
		return err == nil && s.Rotation.Phase == claim.KeyPublished && !s.Stuck &&
			strings.Contains(s.WaitsFor, "does not tell")
	})
}
