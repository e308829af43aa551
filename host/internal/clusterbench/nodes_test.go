package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/pki"
	"github.com/pannier/pannier/test/bench/table"
)

const (
	nodes = 1000
	// joining is how many of them join at the same time.
	joining = 32
	// steady is how long the servers' use is looked at when all are there.
	steady = 30 * time.Second
)

// measureNodes lets 1,000 agents in the benchmark's process join: real serf with default
// timings, a certificate, a record with a driver's fingerprint and heartbeats each.
func measureNodes(b *testing.B, r *table.Report) {
	s := form(b, "")
	gossip := make([]*discovery.Discovery, nodes)
	b.Cleanup(func() {
		var wg sync.WaitGroup
		for _, d := range gossip {
			if d != nil {
				wg.Go(func() { _ = d.Close() })
			}
		}
		wg.Wait()
	})
	at, before := time.Now(), cpuTime(b, s.pids()...)
	err := parallel(nodes, joining, func(i int) (err error) {
		n := s.agent(b, pki.Node, fmt.Sprintf("node-%04d", i))
		gossip[i], err = discovery.Open(discovery.Config{
			Self: discovery.Self{Name: n.name, Role: discovery.Node, Datacenter: "dc1", Version: "benchmark", Ledger: command.Level},
			Bind: "127.0.0.1", RetryJoin: []string{s.all[i%len(s.all)].gossip()}, Logger: hclog.NewNullLogger(),
		})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(b.Context(), patience)
		defer cancel()
		_, err = n.PutNode(ctx, claim.Node{Name: n.name, SecretHash: n.secret.Hash(), Drivers: map[string]claim.NodeDriver{"shared": {
			ID: "shared", Type: claim.Monolith, Healthy: true, NodeID: n.name,
			Controller: &claim.ControllerCapabilities{AttachDetach: true}, Node: &claim.NodeCapabilities{},
		}}})
		if err == nil {
			n.live(b)
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	joined := time.Since(at)
	for late := time.Now().Add(5 * patience); !converged(gossip); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(late) {
			b.Fatal(errors.New("not every node knows of all others"))
		}
	}
	together, used := time.Since(at), cpuTime(b, s.pids()...)-before
	before, at = cpuTime(b, s.pids()...), time.Now()
	time.Sleep(steady)
	share := 100 * (cpuTime(b, s.pids()...) - before).Seconds() / time.Since(at).Seconds()
	leader := s.leader(b)
	r.Add(
		table.Row{What: "all nodes are started and registered, after", Value: joined.Seconds(), Unit: "s"},
		table.Row{What: "every node knows of all others and the servers, after", Value: together.Seconds(), Unit: "s"},
		table.Row{What: "CPU time of the three servers for that", Value: used.Seconds(), Unit: "s"},
		table.Row{What: "nodes that one of them takes for failed, half a minute later", Value: float64(failed(gossip[0]))},
		table.Row{What: "CPU of the three servers together afterwards, of one core", Value: share, Unit: "%"},
		table.Row{What: "resident memory of the leader", Value: memory(b, leader.PID(), "VmRSS"), Unit: "MiB"},
		table.Row{What: "resident memory of the leader, not mapped from files", Value: memory(b, leader.PID(), "RssAnon"), Unit: "MiB"},
	)
}

// converged says whether each node knows of all nodes and the servers.
func converged(all []*discovery.Discovery) bool {
	for _, d := range all {
		if len(d.Members()) < nodes+servers {
			return false
		}
	}
	return true
}

// failed is how many the node takes for failed, though all run.
func failed(d *discovery.Discovery) (n int) {
	for _, m := range d.Members() {
		if m.Status != discovery.Alive {
			n++
		}
	}
	return n
}
