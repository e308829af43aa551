package apiserver

import (
	"context"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/clustertest"
	"github.com/pannier/pannier/host/internal/peer/pki"
	"github.com/pannier/pannier/host/internal/peer/pki/pkitest"
	"github.com/pannier/pannier/host/internal/peer/transport"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// reach is where an agent's API is, and what brings requests there.
type reach struct {
	url *url.URL
	via http.RoundTripper
}

// deposed says that it leads as often as it is told to, and then that the next ones lead, one after
// the other.
type deposed struct {
	leads atomic.Int32
	next  []reach
	asked atomic.Int32
}

func (d *deposed) IsLeader() bool { return d.leads.Add(-1) >= 0 }

func (d *deposed) LeaderURL(context.Context, bool) (*url.URL, http.RoundTripper, error) {
	next := d.next[min(int(d.asked.Load()), len(d.next)-1)]
	return next.url, next.via, nil
}

func (d *deposed) Misled(*url.URL) { d.asked.Add(1) }

func (d *deposed) LeaderName() string { return "leader" }

// TestDeposedLeader: who leads no more before a call is answered does not answer it, and the next
// leader does, whether the caller asked the one or another agent, which took it for the leader.
func TestDeposedLeader(t *testing.T) {
	authority := pkitest.New(t)
	listen := func(name string) (*transport.Port, reach) {
		port, err := transport.Open(t.Context(), transport.Config{Addr: "127.0.0.1:0", Certs: authority.Certs(t, pki.Server, name), Logger: hclog.NewNullLogger()})
		check.NoError(t, err)
		t.Cleanup(func() { check.NoError(t, port.Close()) })
		via := &http.Transport{TLSClientConfig: authority.Certs(t, pki.Server, "asked").Client(pki.Server, name, "h2", "http/1.1"), ForceAttemptHTTP2: true}
		t.Cleanup(via.CloseIdleConnections)
		return port, reach{&url.URL{Scheme: "https", Host: port.Addr().String()}, via}
	}
	servers := clustertest.Form(t, 3, clustertest.Options{})
	leader, follower := servers.WaitLeader(t), servers.Follower(t)
	_, err := leader.PutNode(t.Context(), claim.Node{Name: "n1", Drivers: map[string]claim.NodeDriver{
		"fake": {ID: "fake", Type: claim.Monolith, Healthy: true, Controller: &claim.ControllerCapabilities{CreateDelete: true}, Node: &claim.NodeCapabilities{}},
	}})
	check.NoError(t, err)

	newPort, newLeader := listen("new")
	openHost(t, func(c *Config) { c.Port, c.Ledger = newPort, leader })
	was := &deposed{next: []reach{newLeader}}
	oldPort, oldLeader := listen("old")
	old := openHost(t, func(c *Config) { c.Port, c.Ledger, c.Leader = oldPort, follower, was })
	asked := openHost(t, func(c *Config) { c.Leader = &deposed{next: []reach{oldLeader, newLeader}} })

	for _, row := range []struct {
		what string
		of   *host
	}{{"the one that led", old}, {"an agent that took it for the leader", asked}} {
		was.leads.Store(1)
		got, err := row.of.client.Nodes.GetNode(row.of.ctx, connect.NewRequest(&hostv1.GetNodeRequest{Name: "n1"}))
		if err != nil || got.Msg.GetNode().GetName() != "n1" {
			t.Errorf("%s answers %v, %v", row.what, got, err)
		}
		if was.leads.Load() > 0 {
			t.Errorf("%s has not asked the one that led", row.what)
		}
		_, err = row.of.client.Nodes.GetNode(row.of.ctx, connect.NewRequest(&hostv1.GetNodeRequest{Name: "n2"}))
		if connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%s answers for a node that is not there: %v", row.what, err)
		}
	}
}
