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
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/usage"
)

// turns is the number of counted rounds, after one that does not count. In each round the three contenders
// run one after another; each of them is first equally often.
const turns = 6

// contender is a system in which clients acquire something exclusively: a claim of a volume, or a key.
type contender struct {
	name string
	// prepare creates n things to acquire, starting with number first; nil: nothing has to be created.
	prepare func(ctx context.Context, first, n int) error
	// take acquires the i-th thing, which is acquired only once.
	take func(ctx context.Context, i int) error
	used int
	// pids are the processes of its servers.
	pids []int
	// cpu is the CPU time that its servers and clients have used in the counted rounds.
	cpu  time.Duration
	done int
}

// measureClaims compares claiming volumes through a node's RPC client with Consul and etcd clients that put
// values of a claim's size under unused keys.
func measureClaims(b *testing.B, r *table.Report) {
	all := []*contender{panniers(b), consuls(b), etcds(b)}
	for _, load := range []struct{ clients, claims int }{{1, 300}, {64, 6000}, {256, 8000}} {
		rates := make([][]float64, len(all))
		for turn := range turns + 1 {
			if turn == 1 {
				for _, c := range all {
					c.cpu, c.done = 0, 0
				}
			}
			for n := range all {
				n := (n + turn) % len(all)
				rate := all[n].turn(b, load.claims, load.clients)
				if turn > 0 {
					rates[n] = append(rates[n], rate)
				}
			}
		}
		var ratios []float64
		for turn := range turns {
			ratios = append(ratios, rates[0][turn]/max(rates[1][turn], rates[2][turn]))
		}
		for n, c := range all {
			r.Add(table.Row{
				What: fmt.Sprintf("%s, clients: %d", c.name, load.clients), Value: table.Median(rates[n]),
				Unit: "/s",
			})
			r.Add(table.Row{
				What:  "CPU time of one, clients and servers together",
				Value: float64(c.cpu.Microseconds()) / float64(c.done) / 1000, Unit: "ms",
			})
		}
		row := table.Row{
			What:  fmt.Sprintf("the first over the better of the others, clients: %d", load.clients),
			Value: table.Median(ratios),
		}
		if load.clients > 1 {
			row.AtLeast = 1.5
		}
		r.Add(row)
	}
}

// turn returns how many things per second a number of clients acquire.
func (c *contender) turn(b *testing.B, n, clients int) float64 {
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
	c.cpu += usage.CPU(b, pids...) - before
	c.done += n
	return float64(n) / took.Seconds()
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
		name: "Pannier: claims of a node, over its RPC client", pids: s.pids(),
		prepare: func(ctx context.Context, first, n int) error {
			return parallel(n, registering, func(i int) error { return register(ctx, operator, first+i, "shared") })
		},
		take: func(ctx context.Context, i int) error { return take(ctx, n.Client, i, n.name) },
	}
}

// registering is the number of volumes that are registered concurrently when that is not measured.
const registering = 256

// register registers the i-th volume.
func register(ctx context.Context, c *cluster.Client, i int, driver string) error {
	_, err := c.RegisterVolume(ctx, volume(i, driver))
	return err
}

// take starts the i-th workload, which claims the volume of its number.
func take(ctx context.Context, c *cluster.Client, i int, node string) error {
	_, err := c.StartWorkload(ctx, claim.Run{Ref: workloadRef(i), Node: node}, []claim.Claim{wanted(i)})
	return err
}

func volume(i int, driver string) claim.Volume {
	return claim.Volume{
		VolumeRef: volumeRef(i), Name: volumeRef(i).ID, PluginID: driver, ExternalID: volumeRef(i).ID,
		Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
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
	leader, err := c.Client("").Status().Leader()
	if err != nil {
		b.Fatal(err)
	}
	var kv *api.KV
	for _, s := range c.Servers {
		if strings.HasSuffix(leader, fmt.Sprint(":", s.Ports.RPC)) {
			client, err := api.NewClient(&api.Config{
				Address:   fmt.Sprint("127.0.0.1:", s.Ports.HTTP),
				Transport: &http.Transport{MaxIdleConnsPerHost: 1024},
			})
			if err != nil {
				b.Fatal(err)
			}
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
	return &contender{name: "Consul: check-and-set of a key", pids: pids, take: func(ctx context.Context, i int) error {
		done, _, err := kv.CAS(&api.KVPair{Key: "claims/" + volumeRef(i).ID, Value: claimText(i)},
			new(api.WriteOptions).WithContext(ctx))
		if err == nil && !done {
			err = errors.New("the key has a value")
		}
		return err
	}}
}

func etcds(b *testing.B) *contender {
	b.Helper()
	e := startEtcd(b)
	return &contender{
		name: "etcd: transaction that compares and puts", pids: e.pids,
		take: func(ctx context.Context, i int) error {
			done, err := e.take(ctx, "claims/"+volumeRef(i).ID, claimText(i))
			if err == nil && !done {
				err = errors.New("the key has a value")
			}
			return err
		},
	}
}
