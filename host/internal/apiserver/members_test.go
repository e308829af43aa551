package apiserver

import (
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/discovery"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// gossip is a discovery with one other agent.
type gossip struct {
	keys map[string]int
	did  []string
}

func (g *gossip) Members() []discovery.Member {
	return []discovery.Member{
		{
			Self:   discovery.Self{Name: "n1", Role: discovery.Server, RPC: "10.0.0.1:7421", Version: "1"},
			Status: discovery.Alive, Gossip: "10.0.0.1:7422",
		},
		{Self: discovery.Self{Name: "n2", Role: discovery.Node}, Status: discovery.Failed},
	}
}

func (g *gossip) Member(name string) (discovery.Member, bool) {
	n := slices.IndexFunc(g.Members(), func(m discovery.Member) bool { return m.Name == name })
	return g.Members()[max(n, 0)], n >= 0
}

func (g *gossip) note(what string) error { g.did = append(g.did, what); return nil }

func (g *gossip) Join(addresses ...string) (int, error) { return len(addresses), nil }

func (g *gossip) ForceLeave(name string, _ bool) error { return g.note("force " + name) }

func (g *gossip) Leave() error { return g.note("leave") }

func (g *gossip) UseKey(k string) (discovery.Keys, error) {
	return discovery.Keys{}, g.note("use " + k)
}

func (g *gossip) RemoveKey(string) (discovery.Keys, error) { return discovery.Keys{}, nil }

func (g *gossip) ListKeys() (discovery.Keys, error) {
	return discovery.Keys{Members: 2, Keys: g.keys, Primary: map[string]int{}}, nil
}

func (g *gossip) InstallKey(k string) (discovery.Keys, error) {
	g.keys[k] = 2
	return discovery.Keys{}, nil
}

func TestMembersAndKeys(t *testing.T) {
	alone := openHost(t)
	_, err := alone.client.Members.JoinMembers(alone.ctx, &hostv1.JoinMembersRequest{Addresses: []string{"x"}})
	wantError(t, err, connect.CodeFailedPrecondition, "alone", "tls")
	members, err := alone.client.Members.ListMembers(alone.ctx, &hostv1.ListMembersRequest{})
	check.NoError(t, err)
	if m := members.GetMembers(); len(m) != 1 || m[0].GetName() != "n1" {
		t.Errorf("members %v", m)
	}

	g := &gossip{keys: map[string]int{}}
	h := openHost(t, func(c *parts) { c.Discovery = g })
	_, err = h.client.Members.ForceLeave(h.ctx, &hostv1.ForceLeaveRequest{Name: "n1"})
	wantError(t, err, connect.CodeFailedPrecondition, "alive")
	_, err = h.client.Members.ForceLeave(h.ctx, &hostv1.ForceLeaveRequest{Name: "n2"})
	check.NoError(t, err)
	_, err = h.client.Members.Leave(h.ctx, &hostv1.LeaveRequest{})
	wantError(t, err, connect.CodeFailedPrecondition, "only server")
	if len(g.did) != 1 || g.did[0] != "force n2" {
		t.Errorf("it did %q", g.did)
	}
	const secret = "c2VjcmV0c2VjcmV0c2VjcmV0IQ=="
	for _, bad := range []string{"", "no base64!", "c2hvcnQ="} {
		_, err = h.client.Members.AddKey(h.ctx, &hostv1.AddKeyRequest{Key: bad})
		wantError(t, err, connect.CodeInvalidArgument, "key")
	}
	const key = "MDEyMzQ1Njc4OWFiY2RlZg=="
	added := check.Must(h.client.Members.AddKey(h.ctx, &hostv1.AddKeyRequest{Key: key}))(t)
	list, err := h.client.Members.ListKeys(h.ctx, &hostv1.ListKeysRequest{})
	check.NoError(t, err)
	if k := list.GetKeys(); len(k) != 1 || k[0].GetId() != added.GetId() || k[0].GetAgents() != 2 ||
		strings.Contains(list.String(), key) {
		t.Errorf("keys %v", list)
	}
	_, err = h.client.Members.UseKey(h.ctx, &hostv1.UseKeyRequest{Id: "unknown"})
	wantError(t, err, connect.CodeNotFound, "keyring list")
	_, err = h.client.Members.UseKey(h.ctx, &hostv1.UseKeyRequest{Id: added.GetId()})
	check.NoError(t, err)
	if g.did[len(g.did)-1] != "use "+key || strings.Contains(h.log.String(), key) ||
		strings.Contains(h.log.String(), secret) {
		t.Errorf("it did %q", g.did)
	}
}
