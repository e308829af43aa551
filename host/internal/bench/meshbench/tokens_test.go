package meshbench

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/secrets"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	"github.com/pannier/pannier/host/internal/pluginhost/catalog"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
	"github.com/pannier/pannier/test/lib/usage"
)

const (
	node     = "a"
	together = 64  // workloads that request a token concurrently
	perTurn  = 256 // tokens
	turns    = 31
)

// tokenBench requests tokens through Pannier and directly from Consul.
type tokenBench struct {
	ledger    *clustertest.Server
	authority *tokens.Authority
	bare      *api.Client // with the token of sids
}

func newTokenBench(b *testing.B, m *mesh) *tokenBench {
	b.Helper()
	sealer := check.Must(secrets.Open(filepath.Join(b.TempDir(), "secrets.key")))(b)
	ledger := clustertest.Start(b)
	return &tokenBench{
		ledger: ledger,
		authority: tokens.New(tokens.Config{
			Ledger: ledger, Consuls: map[string]service.Consul{m.reach.Name: m.reach},
			Identity: func(ctx context.Context, _ string, fn func(context.Context, identity.Identity) error) error {
				return catalog.Do(ctx, m.plugin, catalog.Identity, "", fn) // there is only one
			},
			Sealer: sealer, Events: events.New(0), Log: hclog.NewNullLogger(),
		}),
		bare: m.consul.Client(m.aclToken),
	}
}

// way is a way to get a token for a new workload.
type way func(ctx context.Context, id string) error

// create requests the token that sids would mint directly from Consul.
func (t *tokenBench) create(ctx context.Context, id string) error {
	_, err := t.createBare(ctx, id)
	return err
}

func (t *tokenBench) createBare(ctx context.Context, id string) (secret string, err error) {
	made, _, err := t.bare.ACL().TokenCreate(&api.ACLToken{
		AccessorID: id, Description: "_pannier_si [bench] [a] [default/" + id + "] [web]", Local: true,
		ServiceIdentities: []*api.ACLServiceIdentity{{ServiceName: "web"}},
	}, new(api.WriteOptions).WithContext(ctx))
	if err != nil {
		return "", err
	}
	return made.SecretID, nil
}

// start starts a workload without a token.
func (t *tokenBench) start(ctx context.Context, id string) error {
	_, err := cluster.Apply(ctx, t.ledger, command.Start(claim.Run{Ref: token(id).Workload, Node: node}, nil))
	return err
}

// intend starts a workload, and records its token in the same command.
func (t *tokenBench) intend(ctx context.Context, id string) error {
	_, err := cluster.Apply(ctx, t.ledger,
		command.Start(claim.Run{Ref: token(id).Workload, Node: node}, nil, token(id)))
	return err
}

// derive requests the token of a running workload.
func (t *tokenBench) derive(ctx context.Context, id string) error {
	_, _, err := t.authority.Derive(ctx, token(id))
	return err
}

// then combines two ways, one after the other.
func then(first, second way) way {
	return func(ctx context.Context, id string) error {
		if err := first(ctx, id); err != nil {
			return err
		}
		return second(ctx, id)
	}
}

func token(id string) claim.Token {
	return claim.Token{
		ID: id, Workload: claim.WorkloadRef{
			Namespace: "default",
			ID:        id,
		}, Node: node, Service: "web", Consul: service.DefaultConsul,
	}
}

// newID returns a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// measureTokens alternates between the ways to get tokens, so that other load on the machine affects all of
// them alike.
func measureTokens(b *testing.B, m *mesh, r *table.Section) {
	t := newTokenBench(b, m)
	t.load(b, newIDs(perTurn), t.create) // opens the connections
	t.load(b, newIDs(perTurn), then(t.intend, t.derive))
	t.rates(b, r)
	t.latencies(b, r)
}

// rates measures the rates with 64 concurrent workloads.
func (t *tokenBench) rates(b *testing.B, r *table.Section) {
	var bare, derived, started, whole tokenLoad
	for range measure.Turns(turns, 30*time.Second) {
		bare.add(t.load(b, newIDs(perTurn), t.create))

		ids := newIDs(perTurn)
		t.load(b, ids, t.intend)
		derived.add(t.load(b, ids, t.derive))

		started.add(t.load(b, newIDs(perTurn), then(t.start, t.create)))
		whole.add(t.load(b, newIDs(perTurn), then(t.intend, t.derive)))
	}
	r.Add(
		table.Of("tokens per second, 64 workloads at once: Consul's API alone", "/s", bare.rates),
		table.Of("derived through Pannier, the intents in the ledger already", "/s", derived.rates),
		derived.over("the second over the first, median of the turns", &bare).Least(0.6),
		table.Of("a start in the ledger without a token, and Consul's API", "/s", started.rates),
		table.Of("a start in the ledger with the intent, and derived", "/s", whole.rates),
		whole.over("the second over the first, median of the turns", &started).Least(0.6),
		bare.took.Row("a token, 64 at once: Consul's API alone, p50", 0.5),
		derived.took.Row("derived through Pannier, p50", 0.5),
		table.Minus("added by Pannier, 64 at once, p50", derived.took.Row("", 0.5), bare.took.Row("", 0.5)).Most(10),
		table.Row{What: "CPU time of all processes for a token: Consul's API alone", Value: bare.cpuPerToken(), Unit: "ms"},
		table.Row{
			What: "CPU time of all processes for a token, derived through Pannier", Value: derived.cpuPerToken(),
			Unit: "ms",
		},
	)
}

// tokenLoad has the results of one way to get tokens, by round.
type tokenLoad struct {
	rates []float64 // tokens per second
	took  table.Samples
	cpu   time.Duration
}

func (l *tokenLoad) add(turn tokenLoad) {
	l.rates = append(l.rates, turn.rates...)
	l.took = append(l.took, turn.took...)
	l.cpu += turn.cpu
}

// over compares two loads round by round.
func (l *tokenLoad) over(what string, other *tokenLoad) table.Row {
	var ratios []float64
	for n, rate := range l.rates {
		ratios = append(ratios, rate/other.rates[n])
	}
	return table.Of(what, "", ratios)
}

func (l *tokenLoad) cpuPerToken() float64 {
	return l.cpu.Seconds() * 1000 / float64(len(l.took))
}

// latencies measures the latencies with one workload at a time.
func (t *tokenBench) latencies(b *testing.B, r *table.Section) {
	const n = 300
	var bare, derived, plain, intended, self, read table.Samples
	for range measure.Turns(n, 20*time.Second) {
		id := newID()
		var secret string
		bare = append(bare, took(b, func(ctx context.Context) (err error) {
			secret, err = t.createBare(ctx, newID())
			return err
		}))
		start := func() {
			plain = append(plain, took(b, func(ctx context.Context) error { return t.start(ctx, newID()) }))
		}
		intend := func() {
			intended = append(intended, took(b, func(ctx context.Context) error { return t.intend(ctx, id) }))
		}
		first, second := start, intend
		if n%2 == 0 { // the second of two is the faster one
			first, second = intend, start
		}
		first()
		second()
		derived = append(derived, took(b, func(ctx context.Context) error { return t.derive(ctx, id) }))
		self = append(self, took(b, func(ctx context.Context) error {
			stale := &api.QueryOptions{Token: secret, AllowStale: true}
			_, _, err := t.bare.ACL().TokenReadSelf(stale.WithContext(ctx))
			return err
		}))
		read = append(read,
			took(b, func(ctx context.Context) error {
				return t.authority.Read(ctx, claim.Token{Consul: service.DefaultConsul}, secret)
			}))
	}
	r.Add(
		bare.Row("a token, one at a time: Consul's API alone, p50", 0.5),
		derived.Row("derived through Pannier, p50", 0.5),
		table.Minus("added by Pannier, p50", derived.Row("", 0.5), bare.Row("", 0.5)).Most(1),
		plain.Row("a start in the ledger without a token, p50", 0.5),
		table.Minus("added to it by the intent of a token, p50", intended.Row("", 0.5), plain.Row("", 0.5)),
		self.Row("a token read back by Consul's API alone, p50", 0.5),
		table.Minus("added by Pannier to that, p50", read.Row("", 0.5), self.Row("", 0.5)),
	)
}

// load gets a token for each id.
func (t *tokenBench) load(b *testing.B, ids []string, do way) tokenLoad {
	b.Helper()
	took := make(table.Samples, len(ids))
	cpu, at := usage.CPUHere(b), time.Now()
	parallel(b, len(ids), together, func(i int) error {
		began := time.Now()
		err := do(b.Context(), ids[i])
		took[i] = time.Since(began)
		return err
	})
	rate := float64(len(ids)) / time.Since(at).Seconds()
	return tokenLoad{rates: []float64{rate}, took: took, cpu: usage.CPUHere(b) - cpu}
}

func newIDs(n int) (ids []string) {
	for range n {
		ids = append(ids, newID())
	}
	return ids
}

// took returns how long a call takes, which must succeed.
func took(b *testing.B, do func(ctx context.Context) error) time.Duration {
	b.Helper()
	at := time.Now()
	err := do(b.Context())
	d := time.Since(at)
	check.NoError(b, err)
	return d
}

// parallel calls do for each number below n once, from a number of goroutines.
func parallel(b *testing.B, n, goroutines int, do func(i int) error) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && !b.Failed(); i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}
