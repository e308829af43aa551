package rotation

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// memberlist does not wait for a running probe when it is closed.
func TestMain(m *testing.M) {
	check.SideBySide(6) // they mostly wait for elections
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// world is a real cluster of three servers with a Keeper each.
type world struct {
	*clustertest.Cluster
	t       *testing.T
	servers []*server
}

// server is one server. Its keys are in files, which survive it.
type server struct {
	*clustertest.Host
	w      *world
	dir    string
	sealer *secrets.Sealer
	keeper *Keeper
	loops  sync.WaitGroup
	stop   context.CancelFunc

	mu   sync.Mutex
	keys *secrets.Sealer // as others reach it; nil: it is away
	cut  string          // the call to the ledger that does not come back; see ledger
	hit  chan struct{}
}

func form(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, Cluster: clustertest.Form(t, 3, clustertest.Options{})}
	for _, h := range w.Hosts() {
		s := &server{Host: h, w: w, dir: t.TempDir(), stop: func() {}}
		w.servers = append(w.servers, s)
	}
	for _, s := range w.servers {
		s.open()
		t.Cleanup(s.close)
	}
	return w
}

// open starts to manage the keys, as an agent does when it starts.
func (s *server) open() {
	s.w.t.Helper()
	sealer, err := secrets.OpenFiles(secrets.Files{
		First: filepath.Join(s.dir, "secrets.key"),
		Dir:   filepath.Join(s.dir, "secrets.keys"), Shared: true,
	})
	check.NoError(s.w.t, err)
	s.sealer = sealer
	s.reach(sealer)
	node := s.Node
	s.keeper = New(Config{
		Name: s.Name, Sealer: sealer, Ledger: ledger{
			node,
			s,
		}, Servers: others{s}, SigningKey: bound, Log: hclog.NewNullLogger(),
	})
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	keeper := s.keeper
	s.loops.Go(func() { keeper.Follow(ctx) })
	s.loops.Go(func() { node.WhileLeader(ctx, keeper.Lead) })
}

func (s *server) close() {
	s.stop()
	s.loops.Wait()
}

// kill stops a server; start restarts it with what is on its disk.
func (s *server) kill() {
	s.w.t.Helper()
	s.reach(nil)
	s.close()
	s.Stop(s.w.t)
}

func (s *server) start() {
	s.w.t.Helper()
	s.Start(s.w.t)
	s.open()
}

func (s *server) reach(keys *secrets.Sealer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = keys
}

// reached returns a server's keys as others reach them; nil: it is away.
func (s *server) reached() *secrets.Sealer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys
}

// bound binds a signing key to its id.
func bound(id string) []byte { return []byte("signing key " + id) }

var errCut = errors.New("the test cuts it off")

// cutAt makes one call to the ledger the server's last: "before CALL" is not made, "after CALL" is made but not
// answered. The channel is closed when that has happened.
func (s *server) cutAt(call string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut, s.hit = call, make(chan struct{})
	return s.hit
}

// at fails the call of cutAt, and all later ones.
func (s *server) at(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.cut {
	case call:
		close(s.hit)
		s.cut = "all"
	case "all":
	default:
		return nil
	}
	return errCut
}

func (s *server) heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cut = ""
}

// ledger is a server's ledger, whose calls can be cut off.
type ledger struct {
	*cluster.Node
	s *server
}

func (l ledger) Apply(ctx context.Context, c command.Command) (result any, err error) {
	call := "reseal"
	switch c := c.(type) {
	case *command.PutSecretsKey:
		switch call = "name"; {
		case c.Active:
			call = "activate"
		case c.Gone:
			call = "remove"
		}
	case *command.ResealVolume:
	default:
		return l.Node.Apply(ctx, c)
	}
	if err := l.s.at("before " + call); err != nil {
		return nil, err
	}
	if result, err = l.Node.Apply(ctx, c); err != nil {
		return nil, err
	}
	return result, l.s.at("after " + call)
}

// others reaches the other servers without a network, which package peer tests.
type others struct{ s *server }

func (o others) SecretsKeys(_ context.Context, ids ...string) (found []secrets.Key, err error) {
	for _, other := range o.s.w.servers {
		keys := other.reached()
		if other == o.s || keys == nil {
			continue
		}
		for _, id := range ids {
			if k, ok := keys.Get(id); ok {
				found = append(found, k)
			}
		}
	}
	return found, nil
}

func (o others) OfferSecretsKey(_ context.Context, name string, key secrets.Key) error {
	for _, other := range o.s.w.servers {
		if keys := other.reached(); other.Name == name && keys != nil {
			return keys.Offer(key)
		}
	}
	return fmt.Errorf("server %q does not answer", name)
}

// leader returns the server that leads.
func (w *world) leader() *server {
	w.t.Helper()
	h := w.WaitLeader(w.t)
	return w.servers[slices.IndexFunc(w.servers, func(s *server) bool { return s.Host == h })]
}

var plain = map[string]string{"password": "of the test"}

// fill puts a signing key with its rotation and volumes with secrets into the ledger.
func (w *world) fill(volumes ...string) {
	w.t.Helper()
	leader := w.leader()
	for _, id := range volumes {
		sealed, named, err := leader.sealer.Seal(plain, secrets.ForVolume("default", id))
		check.NoError(w.t, err)
		_, err = cluster.Apply(w.t.Context(), leader, &command.RegisterVolume{Volume: claim.Volume{
			Definition: claim.Definition{
				VolumeRef: claim.VolumeRef{Namespace: "default", ID: id}, Name: id, PluginID: "d", ExternalID: id,
				Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
			},
			SealedSecrets: sealed, SecretsKey: named,
		}})
		check.NoError(w.t, err)
	}
	sealed, named, err := leader.sealer.Seal(plain, bound("s"))
	check.NoError(w.t, err)
	_, err = cluster.Apply(w.t.Context(), leader,
		&command.PutSigningKey{Key: claim.SigningKey{ID: "s", Public: []byte("{}"), Sealed: sealed, SecretsKey: named}})
	check.NoError(w.t, err)
	sealed, named, err = leader.sealer.Seal(plain, bound("n"))
	check.NoError(w.t, err)
	_, err = cluster.Apply(w.t.Context(), leader,
		&command.RotateSigningKey{Next: claim.SigningKey{
			ID: "n", Public: []byte("{}"), Sealed: sealed,
			SecretsKey: named,
		}})
	check.NoError(w.t, err)
}

// active returns the key that seals.
func (w *world) active() string {
	w.t.Helper()
	var keys claim.SecretsKeys
	check.NoError(w.t, w.leader().ReadLatest(w.t.Context(), func(tx *state.ReadTx) (err error) {
		keys, err = tx.SecretsKeys()
		return err
	}))
	return keys.Active
}

// settled waits until every server has exactly one key, and can unseal with it everything in its ledger; it returns
// that key.
func (w *world) settled(gone ...string) (active string) {
	w.t.Helper()
	for _, s := range w.servers {
		active = s.settle(gone)
	}
	return active
}

func (s *server) settle(gone []string) (active string) {
	s.w.t.Helper()
	var why error
	defer func() {
		if why != nil {
			s.w.t.Logf("%s: %v", s.Name, why)
		}
	}()
	clustertest.Eventually(s.w.t, s.Name+" has one key, and opens all secrets", func() bool {
		active, why = s.settled(gone)
		return why == nil
	})
	return active
}

func (s *server) settled(gone []string) (active string, err error) {
	if problem := s.keeper.Problem(); problem != "" {
		return "", errors.New(problem)
	}
	err = s.Read(s.w.t.Context(), func(tx *state.ReadTx) error {
		keys, err := tx.SecretsKeys()
		if active = keys.Active; err == nil && (active == "" || len(keys.Keys) != 1) {
			err = fmt.Errorf("the keys are %+v", keys)
		}
		return err
	})
	for _, id := range gone {
		if _, has := s.sealer.Get(id); has {
			err = errors.Join(err, fmt.Errorf("the key %s is still here", id))
		}
	}
	return active, errors.Join(err, s.opens(active))
}

// opens fails if this server cannot unseal everything in its ledger, or if something is sealed with another key than
// with; empty: any.
func (s *server) opens(key string) error {
	open := func(sealed, additional []byte) error {
		if with := secrets.KeyOf(sealed); key != "" && with != key {
			return fmt.Errorf("sealed with %s, not with %s", with, key)
		}
		got, err := s.sealer.Unseal(sealed, additional)
		if err == nil && got["password"] != plain["password"] {
			err = fmt.Errorf("opened to %v", got)
		}
		return err
	}
	return s.Read(s.w.t.Context(), func(tx *state.ReadTx) error {
		signing, found, err := tx.SigningKey()
		if err == nil && found {
			err = open(signing.Sealed, bound(signing.ID))
		}
		next, rotates, read := tx.KeyRotation()
		if err = errors.Join(err, read); err == nil && rotates {
			err = open(next.Key.Sealed, bound(next.Key.ID))
		}
		volumes, _, listed := tx.Volumes(state.VolumeQuery{})
		for _, v := range volumes {
			err = errors.Join(err, open(v.SealedSecrets, secrets.ForVolume(v.Namespace, v.ID)))
		}
		return errors.Join(err, listed)
	})
}
