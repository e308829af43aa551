package peer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/watcher"
	"github.com/pannier/pannier/host/internal/workload"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
)

var (
	_ cluster.Ledger      = &Servers{}
	_ lease.Servers       = &Servers{}
	_ workload.Nodes      = &Servers{}
	_ servicesteps.Tokens = NodeTokens{}
	_ watcher.Nodes       = &Nodes{}
)

// A node and a server that does not lead reach the leader, and the next one when it ends.
func TestEveryAgentReachesTheLeader(t *testing.T) {
	w := form(t, 3, "n1")
	v, free := w.volume(t, "v", "d"), w.volume(t, "free", "d")
	n1 := w.agents["n1"]
	n1.register(t)
	_, err := cluster.Apply(within(t), n1.Servers,
		command.Start(claim.Run{Ref: ref("a"), Node: "n1"}, []claim.Claim{wants(v)}))
	must(t, err)
	follower := w.agents[w.servers.Follower(t).Name]
	var refused *claim.Refusal
	if _, err := cluster.Apply(within(t), follower.Servers,
		command.Start(claim.Run{Ref: ref("b"), Node: follower.name}, []claim.Claim{wants(v)})); !errors.As(err,
		&refused) ||
		!errors.Is(err, claim.ErrHeld) || refused.Holders[0].Workload != ref("a") {
		t.Errorf("a refusal on its way: %v", err)
	}
	if _, _, err := cluster.Ask(within(t), n1.Servers,
		&command.QueryVolume{Ref: claim.VolumeRef{Namespace: "default", ID: "none"}},
		cluster.Blocking{}); !errors.Is(err, claim.ErrVolumeNotFound) {
		t.Errorf("no volume: %v", err)
	}

	old := w.servers.WaitLeader(t)
	must(t, w.agents[old.Name].close())
	old.Stop(t)
	if _, err := cluster.Apply(within(t), n1.Servers,
		command.Start(claim.Run{Ref: ref("c"), Node: "n1"}, []claim.Claim{wants(free)})); err != nil {
		t.Errorf("after the leader's end: %v", err)
	}
	if on, _, err := cluster.Ask(within(t), n1.Servers,
		&command.QueryOnNode{Node: "n1"}, cluster.Blocking{}); err != nil || len(on.Claims) != 2 {
		t.Errorf("%+v, %v", on, err)
	}
}

// If no server leads, the error says who was asked and whether the call may have had an effect.
func TestNoServerLeads(t *testing.T) {
	w := form(t, 1, "n1")
	n1 := w.agents["n1"]
	n1.register(t)
	server := w.leader(t)
	must(t, server.server.Close())
	must(t, server.port.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, _, err := cluster.Ask(ctx, n1.Servers,
		&command.QueryVolume{Ref: claim.VolumeRef{Namespace: "default", ID: "v"}}, cluster.Blocking{})
	if !errors.Is(err, command.ErrNotLeader) || !errors.Is(err, context.DeadlineExceeded) ||
		status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), `server "server-1": `) {
		t.Errorf("a query: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := cluster.Apply(ctx, n1.Servers,
		command.End(claim.Run{Ref: ref("a"), Node: "n1"})); !errors.Is(err, command.ErrUncertain) {
		t.Errorf("a command: %v", err)
	}
	alone := NewServers(ServersConfig{
		Name: "x", Servers: func() []route.Member { return nil }, Dialer: n1.dialer,
		Terms: &Terms{},
	})
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := alone.Apply(ctx, &command.EndWorkload{Ref: ref("a")}); !errors.Is(err, command.ErrNotLeader) ||
		!strings.Contains(err.Error(), "retry_join") {
		t.Errorf("no server at all: %v", err)
	}
}

func TestHeartbeats(t *testing.T) {
	w := form(t, 1, "n1")
	n1, leader := w.agents["n1"], w.leader(t)
	n1.register(t)
	leader.beats.refuse = 3 // it began to lead a moment ago
	for _, a := range []*agent{n1, leader} {
		got, err := a.Heartbeat(within(t), a.name)
		if err != nil || got.Status != claim.NodeReady || got.Liveness != claim.DefaultLiveness || got.Index != 7 {
			t.Errorf("%s: %+v, %v", a.name, got, err)
		}
	}
	if leader.beats.answers != 2 {
		t.Errorf("%d were answered", leader.beats.answers)
	}
	must(t, n1.cfg.Terms.Seen(1000)) // of a leader that came after
	if _, err := n1.Heartbeat(within(t), "n1"); !errors.Is(err, errOldTerm) {
		t.Errorf("of a leader that was replaced: %v", err)
	}
}

// TestRestartedAgentCannotTellWhoLeads: a leader that was replaced before the agent was restarted gets nothing done on
// its node.
func TestRestartedAgentCannotTellWhoLeads(t *testing.T) {
	w := form(t, 1, "n1")
	n1, leader := w.agents["n1"], w.leader(t)
	n1.register(t)
	n1.cfg.Terms.answered = false // as after a restart
	if _, err := leader.nodes.Info(within(t), "n1"); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), "cannot tell who leads") {
		t.Errorf("before the first answer: %v", err)
	}
	_, err := n1.Heartbeat(within(t), "n1")
	must(t, err)
	_, err = leader.nodes.Info(within(t), "n1")
	must(t, err)
}

func TestSecretsOnlyWithAClaim(t *testing.T) {
	w := form(t, 1, "n1")
	n1 := w.agents["n1"]
	n1.register(t)
	v := w.volume(t, "v", "d")
	if _, err := n1.VolumeSecrets(within(t), v); !errors.Is(err, ErrDenied) || !errors.Is(err, claim.ErrClaimNotFound) {
		t.Errorf("before: %v", err)
	}
	started, err := cluster.Apply(within(t), n1.Servers,
		command.Start(claim.Run{Ref: ref("a"), Node: "n1"}, []claim.Claim{wants(v)}))
	must(t, err)
	if got, err := n1.VolumeSecrets(within(t), v); err != nil || got["password"] != "of v" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := w.leader(t).VolumeSecrets(within(t), v); !errors.Is(err, ErrDenied) {
		t.Errorf("the leader's own node has no claim: %v", err)
	}
	_, err = cluster.Apply(within(t), n1.Servers,
		command.End(claim.Run{Ref: ref("a"), Node: "n1", Index: started.Workload.CreateIndex}))
	must(t, err)
	if _, err := n1.VolumeSecrets(within(t), v); !errors.Is(err, ErrDenied) {
		t.Errorf("on its way out: %v", err)
	}
}

func TestTokensThroughTheLeader(t *testing.T) {
	w := form(t, 1, "n1")
	n1, leader := w.agents["n1"], w.leader(t)
	n1.register(t)
	token := claim.Token{
		ID: "11111111-2222-3333-4444-555555555555", Workload: ref("a"), Node: "n1", Service: "a",
		Consul: "default",
	}
	_, err := cluster.Apply(within(t), n1.Servers, command.Start(claim.Run{Ref: ref("a"), Node: "n1"}, nil, token))
	must(t, err)
	tokens := NodeTokens{Servers: n1.Servers}
	must(t, tokens.Intend(within(t), token))
	if got, secret, err := tokens.Derive(within(t), token); err != nil || got.Accessor != "accessor" ||
		secret != "the secret" {
		t.Errorf("%+v, %v", got, err)
	}
	if all, err := tokens.OnNode(within(t), "n1"); err != nil || len(all) != 1 || all[0].ID != token.ID {
		t.Errorf("%+v, %v", all, err)
	}
	// The token in the ledger is revoked, whatever accessor the node names; an unknown one belongs to nobody.
	token.Accessor = "99999999-2222-3333-4444-555555555555"
	must(t, tokens.Revoke(within(t), token, ""))
	token.ID = "22222222-2222-3333-4444-555555555555"
	must(t, tokens.Revoke(within(t), token, ""))
	want := []string{
		"intend 11111111-2222-3333-4444-555555555555 ", "derive 11111111-2222-3333-4444-555555555555 ",
		"revoke 11111111-2222-3333-4444-555555555555 ",
	}
	if got := leader.tokens.asked; !slices.Equal(got, want) {
		t.Errorf("it asked %q", got)
	}
}

func TestTheLeaderCallsNodes(t *testing.T) {
	w := form(t, 1, "n1")
	leader, n1 := w.leader(t), w.agents["n1"]
	v := claim.Volume{Definition: claim.Definition{VolumeRef: claim.VolumeRef{Namespace: "default", ID: "mounted"}, PluginID: "d", ExternalID: "ext"}}
	for _, a := range []*agent{n1, leader} { // over the net, and straight
		c := claim.Claim{Volume: v.VolumeRef, Workload: ref("own"), Node: a.name}
		if owns, err := leader.nodes.Owns(within(t), c); err != nil || !owns {
			t.Errorf("%s owns: %v, %v", a.name, owns, err)
		}
		if r, err := leader.nodes.Release(within(t), c); err != nil || r.Tries != 0 {
			t.Errorf("%s releases it: %+v, %v", a.name, r, err)
		}
		c.Workload = ref("stuck")
		if r, err := leader.nodes.Release(within(t), c); err != nil || r.Tries != 31 || r.Command != "docker stop web" {
			t.Errorf("%s: the release that waits is %+v, %v", a.name, r, err)
		}
		c.Workload = ref("own")
		must(t, leader.nodes.DetachUnknown(within(t), c, v))
		if did, err := leader.nodes.Detach(within(t), c, v); err != nil || did != "stopped it" {
			t.Errorf("%s: %q, %v", a.name, did, err)
		}
		if places, err := leader.nodes.ExpandVolume(within(t), a.name, v, 1, 2); err != nil || places != 1 {
			t.Errorf("%s: %d places, %v", a.name, places, err)
		}
		if stats, err := leader.nodes.VolumeStats(within(t), a.name, v); err != nil || stats.Usage[0].Total != 9 {
			t.Errorf("%s: %+v, %v", a.name, stats, err)
		}
		if info, err := leader.nodes.Info(within(t), a.name); err != nil || info.Name != a.name || info.Version != "1.2.3" ||
			info.BootID != "b" {
			t.Errorf("%s: %+v, %v", a.name, info, err)
		}
		a.works.stuck = make(chan struct{}) // a stop takes its time, and is not waited for
		must(t, leader.nodes.StopWorkload(within(t), a.name, ref("own"), "why"))
		if got := a.works.list(); !slices.Equal(got, []string{
			"detach unknown own ext", "detach own ext", "expand mounted /t/1", "stats mounted /t/1",
			"stop own why",
		}) {
			t.Errorf("%s was asked %q", a.name, got)
		}
	}
	n1.works.err = workload.ErrNotFound
	close(n1.works.stuck)
	must(t, leader.nodes.StopWorkload(within(t), "n1", ref("gone"), "why"))
	n1.works.err = status.Error(codes.Aborted, "the driver is busy")
	c := claim.Claim{Volume: v.VolumeRef, Workload: ref("own"), Node: "n1"}
	if err := leader.nodes.DetachUnknown(within(t), c, v); status.Code(err) != codes.Aborted ||
		err.Error() != "the driver is busy" {
		t.Errorf("the driver's words: %v", err)
	}
	// An error of a driver is not logged as a refused call.
	for _, code := range []codes.Code{codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated} {
		n1.works.err = status.Error(code, "no, says the driver")
		if _, err := leader.nodes.VolumeStats(within(t), "n1", v); status.Code(err) != code {
			t.Errorf("%s of the driver: %v", code, err)
		}
	}
	if logged := w.log.String(); strings.Contains(logged, "was refused") {
		t.Errorf("the log: %s", logged)
	}
	c.Node = "nowhere"
	if _, err := leader.nodes.Owns(within(t), c); status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), `node "nowhere"`) {
		t.Errorf("a node that nobody knows: %v", err)
	}
	// IDs become paths, so those that the ledger would not accept are refused.
	c.Node = "n1"
	c.Workload.ID = "../../etc"
	if err := leader.nodes.DetachUnknown(within(t), c, v); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an id that is a path: %v", err)
	}
	// A call of a replaced leader is refused. A replaced leader that knows about it makes no call.
	must(t, n1.cfg.Terms.Seen(1000))
	if _, err := leader.nodes.Info(within(t), "n1"); err == nil ||
		!strings.Contains(err.Error(), "has become the leader since") {
		t.Errorf("a lower term: %v", err)
	}
	if _, err := n1.nodes.Info(within(t), leader.name); err == nil ||
		!strings.Contains(err.Error(), "has become the leader since") {
		t.Errorf("who does not lead: %v", err)
	}
}

// A workload may have another one stopped that it waits for, wherever that runs.
func TestReplacing(t *testing.T) {
	w := form(t, 1, "n1", "n2")
	n1, n2 := w.agents["n1"], w.agents["n2"]
	n1.register(t)
	n2.register(t)
	_, err := cluster.Apply(within(t), n2.Servers, command.Start(claim.Run{Ref: ref("old"), Node: "n2"}, nil))
	must(t, err)
	if err := n1.StopWorkload(within(t), "n2", ref("old"), "replaced"); !errors.Is(err, ErrDenied) {
		t.Errorf("none waits: %v", err)
	}
	_, err = cluster.Apply(within(t), n1.Servers,
		command.Await(claim.Run{Ref: ref("new"), Node: "n1"}, []claim.WorkloadRef{ref("old"), ref("never")}))
	must(t, err)
	must(t, n1.StopWorkload(within(t), "n2", ref("old"), "replaced"))
	must(t, n1.StopWorkload(within(t), "n2", ref("never"), "replaced"))
	if got := n2.works.list(); !slices.Equal(got, []string{"stop old replaced"}) {
		t.Errorf("it was asked %q", got)
	}
}

// A command that was sent twice under its key is applied once.
func TestARepeatedCommandIsAppliedOnce(t *testing.T) {
	w := form(t, 1, "n1")
	n1 := w.agents["n1"]
	n1.register(t)
	c := &command.StartWorkload{Ref: ref("a"), Node: "n1"}
	command.SetKey(c, "once")
	for range 2 {
		got, err := n1.Apply(within(t), c)
		must(t, err)
		if result, ok := got.(command.StartWorkloadResult); !ok || !result.Created {
			t.Errorf("%+v", got)
		}
	}
}

// TestLeaderServesItsOwnNode: a server that leads and runs workloads is served like any other node, without a call to
// itself and so without a certificate.
func TestLeaderServesItsOwnNode(t *testing.T) {
	w := form(t, 1, "n1")
	leader, n1 := w.leader(t), w.agents["n1"]
	leader.register(t)
	n1.register(t)
	token := claim.Token{
		ID: "11111111-2222-3333-4444-555555555555", Workload: ref("here"), Node: leader.name, Service: "a",
		Consul: "default",
	}
	for _, run := range []claim.Run{{Ref: ref("here"), Node: leader.name}, {Ref: ref("there"), Node: "n1"}} {
		_, err := cluster.Apply(within(t), leader.Servers, command.Start(run, nil))
		must(t, err)
	}
	must(t, NodeTokens{Servers: leader.Servers}.Intend(within(t), token))
	if got, want := leader.tokens.asked, []string{"intend " + token.ID + " "}; !slices.Equal(got, want) {
		t.Errorf("Consul was asked %q, not %q", got, want)
	}

	if err := leader.StopWorkload(within(t), "", ref("there"), "replaced"); !errors.Is(err, ErrDenied) {
		t.Errorf("none waits: %v", err)
	}
	_, err := cluster.Apply(within(t), leader.Servers,
		command.Await(claim.Run{Ref: ref("new"), Node: leader.name}, []claim.WorkloadRef{ref("here"), ref("there")}))
	must(t, err)
	for a, stops := range map[*agent]string{leader: "here", n1: "there"} {
		must(t, leader.StopWorkload(within(t), "", ref(stops), "replaced"))
		if got := a.works.list(); !slices.Equal(got, []string{"stop " + stops + " replaced"}) {
			t.Errorf("%s was asked %q", a.name, got)
		}
	}
}
