package apiserver

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// reach is a server and the transport to it.
type reach struct {
	route.Member
	via http.RoundTripper
}

// byAddress routes requests to servers by address.
type byAddress map[string]http.RoundTripper

func (b byAddress) RoundTrip(r *http.Request) (*http.Response, error) {
	return b[r.URL.Host].RoundTrip(r)
}

// routeTo returns a router to servers. local reports whether the agent itself leads.
func routeTo(local route.Local, servers ...reach) *route.Router {
	transport := byAddress{}
	var members []route.Member
	for _, s := range servers {
		transport[s.Addr] = s.via
		members = append(members, s.Member)
	}
	r := route.New(route.Config{
		Name: "n1", Servers: func() []route.Member { return slices.Clone(members) },
		Transport: transport,
	})
	r.SetLocal(local)
	return r
}

// deposed is an agent that leads for a number of checks, and then names another leader.
type deposed struct {
	leads  atomic.Int32
	leader string
}

func (d *deposed) Leader() bool { return d.leads.Add(-1) >= 0 }

func (d *deposed) Stats() cluster.Stats { return cluster.Stats{LeaderName: d.leader} }

func (d *deposed) Voters() ([]string, error) { return nil, nil }

// TestDeposedLeader: a server that stops leading before it has answered a call discards its answer, and the next
// leader answers, whether the call came from its caller or was forwarded by another agent.
func TestDeposedLeader(t *testing.T) {
	check.Parallel(t)
	authority := pkitest.New(t)
	listen := func(name string) (*transport.Port, reach) {
		port, err := transport.Open(t.Context(),
			transport.Config{Addr: "127.0.0.1:0", Certs: authority.Certs(t, pki.Server, name), Logger: hclog.NewNullLogger()})
		check.NoError(t, err)
		t.Cleanup(func() { check.NoError(t, port.Close()) })
		via := &http.Transport{TLSClientConfig: authority.Certs(t, pki.Server, "asked").Client(pki.Server, name, "h2",
			"http/1.1"), ForceAttemptHTTP2: true}
		t.Cleanup(via.CloseIdleConnections)
		return port, reach{route.Member{Name: name, Addr: port.Addr().String(), Server: true}, via}
	}
	servers := clustertest.Form(t, 3, clustertest.Options{})
	leader, follower := servers.WaitLeader(t), servers.Follower(t)
	_, err := cluster.Apply(t.Context(), leader,
		&command.PutNode{Node: claim.Node{Name: "n1", Drivers: map[string]claim.NodeDriver{
			"fake": {
				ID: "fake", Type: claim.Monolith, Healthy: true,
				Controller: &claim.ControllerCapabilities{CreateDelete: true}, Node: &claim.NodeCapabilities{},
			},
		}}})
	check.NoError(t, err)

	newPort, newLeader := listen("new")
	openHost(t, func(c *parts) { c.Port, c.Ledger = newPort, leader.Node })
	was := &deposed{leader: "new"}
	oldPort, oldLeader := listen("old")
	old := openHost(t, func(c *parts) { c.Port, c.Ledger, c.Leader = oldPort, follower.Node, routeTo(was, newLeader) })
	asked := openHost(t, func(c *parts) { c.Leader = routeTo(&deposed{leader: "old"}, oldLeader, newLeader) })

	for _, row := range []struct {
		what string
		of   *host
	}{{"the one that led", old}, {"an agent that took it for the leader", asked}} {
		was.leads.Store(1)
		got, err := row.of.client.Nodes.GetNode(row.of.ctx, &hostv1.GetNodeRequest{Name: "n1"})
		if err != nil || got.GetNode().GetName() != "n1" {
			t.Errorf("%s answers %v, %v", row.what, got, err)
		}
		if was.leads.Load() > 0 {
			t.Errorf("%s has not asked the one that led", row.what)
		}
		_, err = row.of.client.Nodes.GetNode(row.of.ctx, &hostv1.GetNodeRequest{Name: "n2"})
		if connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%s answers for a node that is not there: %v", row.what, err)
		}
	}
}
