package clusterbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/sync/errgroup"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/usage"
)

// turns is the number of counted rounds, after one that does not count. In each round all contenders run one after
// another, and the next one of them is the first.
const turns = 6

// contender is a system in which clients acquire something exclusively: a claim of a volume, or a key.
type contender struct {
	name, short string
	// prepare creates n things to acquire, starting with number first; nil: nothing has to be created.
	prepare func(ctx context.Context, first, n int) error
	// take acquires the i-th thing, which is acquired only once.
	take func(ctx context.Context, i int) error
	used int
	// pids are the processes of its servers.
	pids []int
}

// measureClaims compares claiming volumes through a node's RPC client with Consul and etcd clients that put
// values of a claim's size under unused keys.
func measureClaims(b *testing.B, r *table.Section) {
	all := []*contender{panniers(b), consuls(b), etcds(b)}
	for _, load := range []struct {
		clients, claims int
		target          float64
	}{{1, 300, 0.7}, {64, 6000, 1.5}, {256, 8000, 1.5}} {
		rates, cpus := make([][]float64, len(all)), make([][]float64, len(all))
		for turn := range measure.Turns(turns+1, 40*time.Second) {
			for n := range all {
				n := (n + turn) % len(all)
				rate, cpu := all[n].turn(b, load.claims, load.clients)
				if turn > 0 {
					rates[n], cpus[n] = append(rates[n], rate), append(cpus[n], cpu)
				}
			}
		}
		var ratios, overEtcd []float64
		for turn, rate := range rates[0] {
			ratios = append(ratios, rate/max(rates[1][turn], rates[2][turn]))
			overEtcd = append(overEtcd, cpus[0][turn]/cpus[2][turn])
		}
		what := func(s string) string { return fmt.Sprintf("%s, clients: %d", s, load.clients) }
		for n, c := range all {
			r.Add(
				table.Of(what(c.name), "/s", rates[n]),
				table.Of(what(c.short+": CPU time of one, clients and servers together"), "ms", cpus[n]),
			)
		}
		r.Add(
			table.Of(what("Pannier over the better of the others"), "", ratios).Least(load.target),
			table.Of(what("CPU time of one, over etcd's"), "", overEtcd).Most(1.6),
		)
	}
}

// turn returns how many things per second a number of clients acquire, and the CPU time of servers and clients for
// each, in milliseconds.
func (c *contender) turn(b *testing.B, n, clients int) (rate, cpu float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	first := c.used
	c.used += n
	if c.prepare != nil {
		if err := c.prepare(ctx, first, n); err != nil {
			b.Fatalf("%s: %v", c.name, err)
		}
	}
	pids := append([]int{os.Getpid()}, c.pids...)
	before, at := usage.CPU(b, pids...), time.Now()
	if err := parallel(n, clients, func(i int) error { return c.take(ctx, first+i) }); err != nil {
		b.Fatalf("%s: %v", c.name, err)
	}
	took := time.Since(at)
	used := usage.CPU(b, pids...) - before
	return float64(n) / took.Seconds(), 1000 * used.Seconds() / float64(n)
}

// parallel calls do for each number below n once, from a number of goroutines, until the first error.
func parallel(n, goroutines int, do func(i int) error) error {
	var next atomic.Int64
	g := new(errgroup.Group)
	for range goroutines {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					next.Store(int64(n))
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

func panniers(b *testing.B) *contender {
	b.Helper()
	s := form(b, "")
	n, operator := s.node(b, "node-1"), s.operator(b)
	return &contender{
		name: "Pannier: claims of a node, over its RPC client", short: "Pannier", pids: s.pids(),
		prepare: func(ctx context.Context, first, n int) error {
			return parallel(n, registering, func(i int) error { return register(ctx, operator, first+i, "shared") })
		},
		take: func(ctx context.Context, i int) error { return take(ctx, n, i, n.name) },
	}
}

// registering is the number of volumes that are registered concurrently when that is not measured.
const registering = 256

// register registers the i-th volume.
func register(ctx context.Context, c cluster.Ledger, i int, driver string) error {
	_, err := cluster.Apply(ctx, c, &command.RegisterVolume{Volume: volume(i, driver)})
	return err
}

// take starts the i-th workload, which claims the volume of its number.
func take(ctx context.Context, c cluster.Ledger, i int, node string) error {
	_, err := cluster.Apply(ctx, c, command.Start(claim.Run{Ref: workloadRef(i), Node: node}, []claim.Claim{wanted(i)}))
	return err
}

func volume(i int, driver string) claim.Volume {
	return claim.Volume{
		Definition: claim.Definition{
			VolumeRef: volumeRef(i), Name: volumeRef(i).ID, PluginID: driver, ExternalID: volumeRef(i).ID,
			Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
		},
	}
}

func wanted(i int) claim.Claim {
	return claim.Claim{
		Volume: volumeRef(i), Mode: claim.Write, AccessMode: claim.SingleNodeWriter,
		AttachmentMode: claim.FileSystem,
	}
}

func volumeRef(i int) claim.VolumeRef {
	return claim.VolumeRef{Namespace: "default", ID: fmt.Sprintf("volume-%06d", i)}
}

func workloadRef(i int) claim.WorkloadRef {
	return claim.WorkloadRef{Namespace: "default", ID: fmt.Sprintf("workload-%06d", i)}
}

// claimText returns a value that represents a claim in a key-value store.
func claimText(i int) []byte {
	text, err := json.Marshal(claim.Claim{
		Volume: volumeRef(i), Workload: workloadRef(i), Node: "node-1", Mode: claim.Write, AccessMode: claim.SingleNodeWriter,
		AttachmentMode: claim.FileSystem, State: claim.Taken, Index: uint64(i),
	})
	if err != nil {
		panic(err) // cannot happen with a claim
	}
	return text
}

func consuls(b *testing.B) *contender {
	b.Helper()
	c := consul.Start(b, consul.Options{Servers: 3})
	leader := check.Must(c.Client("").Status().Leader())(b)
	var kv *api.KV
	for _, s := range c.Servers {
		if strings.HasSuffix(leader, fmt.Sprint(":", s.Ports.RPC)) {
			client, err := api.NewClient(&api.Config{
				Address:   fmt.Sprint("127.0.0.1:", s.Ports.HTTP),
				Transport: &http.Transport{MaxIdleConnsPerHost: 1024},
			})
			check.NoError(b, err)
			kv = client.KV()
		}
	}
	if kv == nil {
		b.Fatalf("no server of Consul's is at %q", leader)
	}
	var pids []int
	for _, s := range c.Servers {
		pids = append(pids, s.PID())
	}
	return &contender{
		name: "Consul: check-and-set of a key", short: "Consul", pids: pids,
		take: func(ctx context.Context, i int) error {
			done, _, err := kv.CAS(&api.KVPair{Key: "claims/" + volumeRef(i).ID, Value: claimText(i)},
				new(api.WriteOptions).WithContext(ctx))
			if err == nil && !done {
				err = errors.New("the key has a value")
			}
			return err
		},
	}
}

func etcds(b *testing.B) *contender {
	b.Helper()
	e := startEtcd(b)
	return &contender{
		name: "etcd: transaction that compares and puts", short: "etcd", pids: e.pids,
		take: func(ctx context.Context, i int) error {
			done, err := e.take(ctx, "claims/"+volumeRef(i).ID, claimText(i))
			if err == nil && !done {
				err = errors.New("the key has a value")
			}
			return err
		},
	}
}
