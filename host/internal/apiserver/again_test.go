package apiserver

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/iotest"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// twice is a leader whose first answer to each call is lost. With here, the agent itself leads.
type twice struct {
	to   http.RoundTripper
	here bool
	lose func(*http.Response) (*http.Response, error)

	mu    sync.Mutex
	leads bool
	seen  map[string]bool // calls
}

func (l *twice) Leader() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leads
}

func (l *twice) Stats() cluster.Stats { return cluster.Stats{} }

func (l *twice) Voters() ([]string, error) { return nil, nil }

func (l *twice) RoundTrip(r *http.Request) (*http.Response, error) {
	l.lead(l.here)
	resp, err := l.to.RoundTrip(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if call := r.Header.Get(callHeader); err == nil && !l.seen[call] {
		l.seen[call] = true
		return l.lose(resp)
	}
	return resp, err
}

// lost loses the whole answer.
func lost(resp *http.Response) (*http.Response, error) {
	return nil, errors.Join(errors.New("the answer is lost"), resp.Body.Close())
}

// brokenOff loses the end of the answer, as of a server whose process ends while it sends it.
func brokenOff(resp *http.Response) (*http.Response, error) {
	resp.Body = struct {
		io.Reader
		io.Closer
	}{iotest.ErrReader(io.ErrUnexpectedEOF), resp.Body}
	return resp, nil
}

func (l *twice) lead(leads bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leads = leads
}

// TestOneCallDeletesOnce: the second attempt of a call does not fail because the first one has done its work.
func TestOneCallDeletesOnce(t *testing.T) {
	t.Run("passed on again", func(t *testing.T) { deletesOnce(t, false, lost) })
	t.Run("passed on again after a part of the answer", func(t *testing.T) { deletesOnce(t, false, brokenOff) })
	t.Run("answered by the agent itself", func(t *testing.T) { deletesOnce(t, true, lost) })
}

func deletesOnce(t *testing.T, here bool, lose func(*http.Response) (*http.Response, error)) {
	check.Parallel(t)
	authority := pkitest.New(t)
	port, err := transport.Open(t.Context(),
		transport.Config{Addr: "127.0.0.1:0", Certs: authority.Certs(t, pki.Server, "n1"), Logger: hclog.NewNullLogger()})
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, port.Close()) })
	transport := &http.Transport{TLSClientConfig: authority.Certs(t, pki.Server, "n2").Client(pki.Server, "n1", "h2",
		"http/1.1"), ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	lossy := &twice{to: transport, here: here, leads: here, seen: map[string]bool{}, lose: lose}
	way := routeTo(lossy, reach{route.Member{Name: "leader", Addr: port.Addr().String(), Server: true}, lossy})
	server := clustertest.Form(t, 1, clustertest.Options{}).Hosts()[0]
	_, err = cluster.Apply(t.Context(), server,
		&command.PutNode{Node: claim.Node{Name: "n1", Drivers: map[string]claim.NodeDriver{
			"fake": {
				ID: "fake", Type: claim.Monolith, Healthy: true,
				Controller: &claim.ControllerCapabilities{CreateDelete: true}, Node: &claim.NodeCapabilities{},
			},
		}}})
	check.NoError(t, err)
	leader := openHost(t, func(c *parts) {
		c.Port, c.Ledger, c.SocketRoot = port, server.Node, true
		c.ACL = acl.NewResolver(acl.Here{Ledger: server}, 0, c.Logger)
		if here {
			c.Leader = way
		}
	})
	manager, err := leader.client.ACL.CreateACLToken(leader.ctx,
		&hostv1.CreateACLTokenRequest{Name: "manager", Type: "management"})
	check.NoError(t, err)
	asked := leader
	if !here {
		asked = openHost(t, func(c *parts) { c.Leader = way })
	}
	client := asked.with(t, manager.GetSecret())

	leader.create(t, spec("deregistered"))
	leader.create(t, spec("deleted"))
	_, err = leader.client.ACL.PutACLPolicy(leader.ctx,
		&hostv1.PutACLPolicyRequest{Name: "policy", Rules: `node { policy = "read" }`})
	check.NoError(t, err)
	_, err = leader.client.ACL.PutACLRole(leader.ctx,
		&hostv1.PutACLRoleRequest{Name: "role", Policies: []string{"policy"}})
	check.NoError(t, err)
	token, err := leader.client.ACL.CreateACLToken(leader.ctx,
		&hostv1.CreateACLTokenRequest{Name: "token", Roles: []string{"role"}})
	check.NoError(t, err)
	ctx := leader.ctx
	for _, row := range []struct {
		what string
		do   func() error
	}{
		{"deregister a volume", func() error {
			_, err := client.Volumes.DeregisterVolume(ctx, &hostv1.DeregisterVolumeRequest{Id: "deregistered"})
			return err
		}},
		{"delete a volume", func() error {
			_, err := client.Volumes.DeleteVolume(ctx, &hostv1.DeleteVolumeRequest{Id: "deleted"})
			return err
		}},
		{"delete a token", func() error {
			_, err := client.ACL.DeleteACLToken(ctx, &hostv1.DeleteACLTokenRequest{Accessor: token.GetToken().GetAccessor()})
			return err
		}},
		{"delete a role", func() error {
			_, err := client.ACL.DeleteACLRole(ctx, &hostv1.DeleteACLRoleRequest{Name: "role"})
			return err
		}},
		{"delete a policy", func() error {
			_, err := client.ACL.DeleteACLPolicy(ctx, &hostv1.DeleteACLPolicyRequest{Name: "policy"})
			return err
		}},
	} {
		lossy.lead(false)
		if err := row.do(); err != nil {
			t.Errorf("%s: %v", row.what, err)
		}
		// Another call gets the error.
		lossy.lead(false)
		if err := row.do(); connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%s that is not there: %v", row.what, err)
		}
	}
	leader.fake.mu.Lock()
	defer leader.fake.mu.Unlock()
	if len(leader.fake.deleted) != 1 {
		t.Errorf("the driver deleted %v", leader.fake.deleted)
	}
}
