package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/leader/watcher"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// putNode tells the ledger of a node that is not the host's own.
func (h *host) putNode(t *testing.T, name string) {
	t.Helper()
	_, err := h.ledger.PutNode(h.ctx, claim.Node{Name: name, BootID: "1", Attributes: map[string]string{"k": "v"}})
	must(t, err)
}

func TestNodes(t *testing.T) {
	h := openHost(t)
	h.putNode(t, "n2")
	list, err := h.client.Nodes.ListNodes(h.ctx, request(&hostv1.ListNodesRequest{}))
	must(t, err)
	if n := list.Msg.GetNodes(); len(n) != 2 || n[0].GetName() != "n1" || n[0].GetStatus() != "ready" || !n[0].GetEligible() || len(n[0].GetDrivers()) != 1 ||
		n[1].GetAttributes()["k"] != "v" || n[1].GetDrain() != nil || list.Msg.GetMeta().GetIndex() == 0 {
		t.Errorf("nodes %v", list.Msg)
	}
	_, err = h.client.Nodes.SetNodeEligibility(h.ctx, request(&hostv1.SetNodeEligibilityRequest{Name: "n2"}))
	must(t, err)
	_, err = h.ledger.StartWorkload(h.ctx, claim.Run{Ref: claim.WorkloadRef{Namespace: "default", ID: "w"}, Node: "n2"}, nil)
	if !errors.Is(err, claim.ErrIneligible) {
		t.Errorf("a workload starts on a node that takes none: %v", err)
	}
	_, err = h.client.Nodes.SetNodeEligibility(h.ctx, request(&hostv1.SetNodeEligibilityRequest{Name: "n2", Eligible: true}))
	must(t, err)
	_, err = h.ledger.StartWorkload(h.ctx, claim.Run{Ref: claim.WorkloadRef{Namespace: "default", ID: "w"}, Node: "n2"}, nil)
	must(t, err)

	// A drain that is asked for twice is the one that was begun.
	for range 2 {
		drain, err := h.client.Nodes.DrainNode(h.ctx, request(&hostv1.DrainNodeRequest{Name: "n2", Enable: true}))
		must(t, err)
		if d := drain.Msg.GetNode().GetDrain(); d.GetStartedAt() == nil || d.GetBy() == "" || d.GetDoneAt() != nil {
			t.Errorf("drain %v", d)
		}
	}
	got, err := h.client.Nodes.GetNode(h.ctx, request(&hostv1.GetNodeRequest{Name: "n2"}))
	must(t, err)
	if w := got.Msg.GetWorkloads(); len(w) != 1 || w[0].GetId() != "w" || w[0].GetStatus() != "running" || got.Msg.GetNode().GetDrain() == nil {
		t.Errorf("node %v", got.Msg)
	}
	end, err := h.client.Nodes.DrainNode(h.ctx, request(&hostv1.DrainNodeRequest{Name: "n2"}))
	must(t, err)
	if end.Msg.GetNode().GetDrain() != nil {
		t.Errorf("it is still drained: %v", end.Msg)
	}

	purge := func(name string, force bool) (*hostv1.PurgeNodeResponse, error) {
		resp, err := h.client.Nodes.PurgeNode(h.ctx, request(&hostv1.PurgeNodeRequest{Name: name, Force: force}))
		if err != nil {
			return nil, err
		}
		return resp.Msg, nil
	}
	_, err = purge("n1", true)
	wantError(t, err, connect.CodeFailedPrecondition, `"n1"`, "is up")
	_, err = purge("nobody", false)
	wantError(t, err, connect.CodeNotFound, `"nobody"`)
	_, err = purge("n2", false)
	wantError(t, err, connect.CodeFailedPrecondition, "pannier node purge -force n2")
	gone, err := purge("n2", true)
	must(t, err)
	if len(gone.GetEnded()) != 1 || gone.GetEnded()[0] != "default/w" {
		t.Errorf("purged %v", gone)
	}
	_, err = h.client.Nodes.GetNode(h.ctx, request(&hostv1.GetNodeRequest{Name: "n2"}))
	wantError(t, err, connect.CodeNotFound, `"n2"`)
	_, err = h.client.Nodes.GetNode(h.ctx, request(&hostv1.GetNodeRequest{Name: "a/b"}))
	wantError(t, err, connect.CodeInvalidArgument, "name")
}

// TestANodeThatComesBackIsNotPurged: while the purge waits for a claim's release the node puts its record.
func TestANodeThatComesBackIsNotPurged(t *testing.T) {
	h := openHost(t)
	h.putNode(t, "n2")
	volume := claim.VolumeRef{Namespace: "default", ID: "v"}
	_, err := h.ledger.RegisterVolume(h.ctx, claim.Volume{
		VolumeRef: volume, Name: "v", PluginID: "d", ExternalID: "x",
		Capabilities: []claim.Capability{{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}},
	})
	must(t, err)
	w := claim.WorkloadRef{Namespace: "default", ID: "w"}
	_, err = h.ledger.StartWorkload(h.ctx, claim.Run{Ref: w, Node: "n2"}, []claim.Claim{{Volume: volume, Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}})
	must(t, err)
	purged := make(chan error, 1)
	go func() {
		_, err := h.client.Nodes.PurgeNode(h.ctx, request(&hostv1.PurgeNodeRequest{Name: "n2", Force: true}))
		purged <- err
	}()
	for down := false; !down; {
		changed := h.ledger.Watch(h.ctx, state.TopicNode("n2"))
		must(t, h.ledger.Read(h.ctx, func(tx *state.ReadTx) error {
			n, err := tx.Node("n2")
			down = n.Status == claim.NodeDown
			return err
		}))
		if !down {
			<-changed
		}
	}
	h.putNode(t, "n2")
	_, err = h.ledger.AdvanceClaims(h.ctx, "", command.Advance{Volume: volume, Workload: w, To: claim.Freed})
	must(t, err)
	wantError(t, <-purged, connect.CodeFailedPrecondition, `"n2"`, "come back")
	_, err = h.client.Nodes.GetNode(h.ctx, request(&hostv1.GetNodeRequest{Name: "n2"}))
	must(t, err)
}

// heartbeats are what a leader has heard: of n2, just now.
type heartbeats struct{}

func (heartbeats) Known(node string) (lastHeard, keepsTo time.Time) {
	if node == "n2" {
		lastHeard, keepsTo = time.Now(), time.Now().Add(time.Minute)
	}
	return lastHeard, keepsTo
}

func TestANodeThatIsHeardFromIsNotPurged(t *testing.T) {
	h := openHost(t, func(c *Config) { c.Heartbeats = heartbeats{} })
	for _, name := range []string{"n2", "n3"} {
		h.putNode(t, name)
		_, err := h.client.Nodes.PurgeNode(h.ctx, request(&hostv1.PurgeNodeRequest{Name: name, Force: true}))
		wantError(t, err, connect.CodeFailedPrecondition, "heard from", "pannier node drain")
	}
	_, err := h.ledger.SetNodeStatus(h.ctx, "n3", claim.NodeDisconnected, "")
	must(t, err)
	_, err = h.client.Nodes.PurgeNode(h.ctx, request(&hostv1.PurgeNodeRequest{Name: "n3", Force: true}))
	must(t, err)
	got, err := h.client.Nodes.GetNode(h.ctx, request(&hostv1.GetNodeRequest{Name: "n2"}))
	must(t, err)
	if got.Msg.GetNode().GetLastHeard() == nil || got.Msg.GetNode().GetLetGoAt() == nil {
		t.Errorf("node %v", got.Msg)
	}
}

func TestQueriesWaitForAChange(t *testing.T) {
	h := openHost(t)
	h.putNode(t, "n2")
	get := func(read *hostv1.ReadOptions) (*hostv1.GetNodeResponse, error) {
		resp, err := h.client.Nodes.GetNode(h.ctx, request(&hostv1.GetNodeRequest{Name: "n2", Read: read}))
		if err != nil {
			return nil, err
		}
		return resp.Msg, nil
	}
	now, err := get(nil)
	must(t, err)
	changed := make(chan *hostv1.GetNodeResponse, 1)
	go func() {
		resp, err := get(&hostv1.ReadOptions{Index: now.GetMeta().GetIndex()})
		if err != nil {
			t.Error(err)
		}
		changed <- resp
	}()
	h.putNode(t, "n3")
	select {
	case resp := <-changed:
		t.Errorf("answered without a change: %v", resp)
	case <-time.After(30 * time.Millisecond):
	}
	_, err = h.client.Nodes.DrainNode(h.ctx, request(&hostv1.DrainNodeRequest{Name: "n2", Enable: true}))
	must(t, err)
	if resp := <-changed; resp.GetNode().GetDrain() == nil || resp.GetMeta().GetIndex() <= now.GetMeta().GetIndex() {
		t.Errorf("got %v", resp)
	}
	stale, err := get(&hostv1.ReadOptions{Stale: true, Index: 1 << 50, Wait: durationpb.New(time.Millisecond)})
	must(t, err)
	if !stale.GetMeta().GetKnownLeader() || stale.GetMeta().GetAge().AsDuration() != 0 {
		t.Errorf("the leader says of its own ledger %v", stale.GetMeta())
	}
	for _, wait := range []time.Duration{-time.Second, time.Hour} {
		_, err = get(&hostv1.ReadOptions{Index: 1, Wait: durationpb.New(wait)})
		wantError(t, err, connect.CodeInvalidArgument, "read.wait")
	}
	volumes, err := h.client.Volumes.ListVolumes(h.ctx, request(&hostv1.ListVolumesRequest{}))
	must(t, err)
	tokens, err := h.client.Tokens.ListTokens(h.ctx, request(&hostv1.ListTokensRequest{}))
	must(t, err)
	if volumes.Msg.GetMeta().GetIndex() == 0 || tokens.Msg.GetMeta().GetIndex() == 0 {
		t.Errorf("answers without an index: %v, %v", volumes.Msg, tokens.Msg)
	}
}

func TestWatch(t *testing.T) {
	h := openHost(t)
	for _, topics := range [][]string{nil, {"volumes", "weather"}} {
		stream, err := h.client.System.Watch(h.ctx, request(&hostv1.WatchRequest{Topics: topics}))
		must(t, err)
		stream.Receive()
		wantError(t, stream.Err(), connect.CodeInvalidArgument, "topics", "volumes")
		must(t, stream.Close())
	}
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	stream, err := h.client.System.Watch(ctx, request(&hostv1.WatchRequest{Topics: []string{"nodes"}}))
	must(t, err)
	last := uint64(0)
	for _, name := range []string{"", "n2", "n3"} {
		if name != "" {
			h.putNode(t, name)
		}
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
		if index := stream.Msg().GetIndex(); index <= last {
			t.Errorf("index %d after %d", index, last)
		} else {
			last = index
		}
	}
}

func TestGarbageIsTold(t *testing.T) {
	h := openHost(t)
	resp, err := h.client.System.CollectGarbage(h.ctx, request(&hostv1.CollectGarbageRequest{DryRun: true}))
	must(t, err)
	if len(resp.Msg.GetGarbage()) != 0 {
		t.Errorf("garbage %v", resp.Msg)
	}
}

func TestExplainEachClaim(t *testing.T) {
	ready := &claim.Node{Name: "n2"}
	gone := &claim.Node{Name: "n2", Status: claim.NodeDisconnected}
	for name, test := range map[string]struct {
		held
		waits, next, command, lastError string
	}{
		"in use":            {held: held{claim: claim.Claim{State: claim.Taken}, node: ready, workload: claim.Running}, next: "uses it until it is stopped"},
		"workload ended":    {held: held{claim: claim.Claim{State: claim.Taken}, node: ready, workload: claim.Ended}, waits: "has ended", next: "collection", command: "pannier system gc"},
		"workload unknown":  {held: held{claim: claim.Claim{State: claim.Taken}, node: ready}, waits: "does not know its workload", command: "pannier system gc"},
		"node unknown":      {held: held{claim: claim.Claim{State: claim.Unpublishing}, workload: claim.Ended}, waits: "does not know", command: "pannier volume detach -namespace prod -force v n2"},
		"node away":         {held: held{claim: claim.Claim{State: claim.Taken}, node: gone, workload: claim.Running}, waits: "not heard from", next: "stopped by its own clock", command: "-force v n2"},
		"node away, for so": {held: held{claim: claim.Claim{State: claim.Unpublishing}, node: gone, letGo: time.Unix(1e9, 0)}, next: "let go of at 2001-09-09 01:46:40 UTC"},
		"node down":         {held: held{claim: claim.Claim{State: claim.Unpublishing}, node: &claim.Node{Status: claim.NodeDown}}, waits: "to let go of", next: "in a moment"},
		"unmounting":        {held: held{claim: claim.Claim{State: claim.Unpublishing}, node: ready}, waits: `node "n2" to unmount it`, next: "goes on trying"},
		"unmounting fails":  {held: held{claim: claim.Claim{State: claim.Unpublishing}, node: ready, attempt: watcher.Attempt{Error: "busy"}}, lastError: "busy", command: "pannier volume detach -namespace prod v n2"},
		"the node says why": {held: held{claim: claim.Claim{State: claim.Unpublishing}, node: ready, waiting: "its process runs"}, lastError: "its process runs"},
		"controller":        {held: held{claim: claim.Claim{State: claim.NodeDetached}, node: gone}, waits: `driver "d"`, next: "goes on trying"},
		"controller fails":  {held: held{claim: claim.Claim{State: claim.NodeDetached}, attempt: watcher.Attempt{Error: "no answer", Tries: 3}}, lastError: "no answer", command: "pannier driver status d"},
		"to be freed":       {held: held{claim: claim.Claim{State: claim.ControllerDetached}}, waits: "the ledger", next: "freed in a moment"},
	} {
		h := test.held
		h.driver, h.claim.Node = "d", "n2"
		h.claim.Volume = claim.VolumeRef{Namespace: "prod", ID: "v"}
		got := &hostv1.ExplainedClaim{}
		h.explain(got)
		if !strings.Contains(got.GetWaitsFor(), test.waits) || !strings.Contains(got.GetNext(), test.next) || !strings.Contains(got.GetCommand(), test.command) || got.GetLastError() != test.lastError ||
			got.GetNext() == "" || got.GetTries() != int32(test.attempt.Tries) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestExplainVolume(t *testing.T) {
	needsRoot(t)
	h := openHost(t)
	h.create(t, spec("v"))
	explain := func() *hostv1.ExplainVolumeResponse {
		t.Helper()
		resp, err := h.client.Volumes.ExplainVolume(h.ctx, request(&hostv1.ExplainVolumeRequest{Id: "v"}))
		must(t, err)
		return resp.Msg
	}
	if got := explain(); got.GetSummary() != "nobody holds it" || len(got.GetClaims()) != 0 {
		t.Errorf("got %v", got)
	}
	h.start(t, "w", "v")
	if got := explain(); got.GetSummary() != "in use by 1 as single-node-writer" || got.GetClaims()[0].GetNodeStatus() != "ready" || got.GetClaims()[0].GetWaitsFor() != "" {
		t.Errorf("got %v", got)
	}
	h.fake.setFailure("unpublish", errors.New("the mount is busy"))
	stream, err := h.client.Workloads.StopWorkload(h.ctx, request(&hostv1.StopWorkloadRequest{Id: "w"}))
	must(t, err)
	defer stream.Close()
	eventually(t, "it says why the volume is not released", func() bool {
		got := explain()
		return len(got.GetClaims()) == 1 && strings.Contains(got.GetClaims()[0].GetLastError(), "the mount is busy") &&
			strings.HasPrefix(got.GetClaims()[0].GetCommand(), "pannier volume detach v n1")
	})
	h.fake.setFailure("unpublish", nil)
	eventually(t, "the volume is free", func() bool { return len(explain().GetClaims()) == 0 })
	_, err = h.client.Volumes.ExplainVolume(h.ctx, request(&hostv1.ExplainVolumeRequest{Id: "nothing"}))
	wantError(t, err, connect.CodeNotFound, "nothing")
}

// gossip is a discovery with one other agent.
type gossip struct {
	keys map[string]int
	did  []string
}

func (g *gossip) Members() []discovery.Member {
	return []discovery.Member{
		{Self: discovery.Self{Name: "n1", Role: discovery.Server, RPC: "10.0.0.1:7421", Version: "1"}, Status: discovery.Alive, Gossip: "10.0.0.1:7422"},
		{Self: discovery.Self{Name: "n2", Role: discovery.Node}, Status: discovery.Failed},
	}
}
func (g *gossip) note(what string) error                { g.did = append(g.did, what); return nil }
func (g *gossip) Join(addresses ...string) (int, error) { return len(addresses), nil }
func (g *gossip) ForceLeave(name string, _ bool) error  { return g.note("force " + name) }
func (g *gossip) Leave() error                          { return g.note("leave") }
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
	_, err := alone.client.Members.JoinMembers(alone.ctx, request(&hostv1.JoinMembersRequest{Addresses: []string{"x"}}))
	wantError(t, err, connect.CodeFailedPrecondition, "alone", "tls")
	members, err := alone.client.Members.ListMembers(alone.ctx, request(&hostv1.ListMembersRequest{}))
	must(t, err)
	if m := members.Msg.GetMembers(); len(m) != 1 || m[0].GetName() != "n1" {
		t.Errorf("members %v", m)
	}

	g := &gossip{keys: map[string]int{}}
	h := openHost(t, func(c *Config) { c.Discovery = g })
	_, err = h.client.Members.ForceLeave(h.ctx, request(&hostv1.ForceLeaveRequest{Name: "n1"}))
	wantError(t, err, connect.CodeFailedPrecondition, "alive")
	_, err = h.client.Members.ForceLeave(h.ctx, request(&hostv1.ForceLeaveRequest{Name: "n2"}))
	must(t, err)
	_, err = h.client.Members.Leave(h.ctx, request(&hostv1.LeaveRequest{}))
	wantError(t, err, connect.CodeFailedPrecondition, "only server")
	if len(g.did) != 1 || g.did[0] != "force n2" {
		t.Errorf("it did %q", g.did)
	}
	const secret = "c2VjcmV0c2VjcmV0c2VjcmV0IQ=="
	for _, bad := range []string{"", "no base64!", "c2hvcnQ="} {
		_, err = h.client.Members.AddKey(h.ctx, request(&hostv1.AddKeyRequest{Key: bad}))
		wantError(t, err, connect.CodeInvalidArgument, "key")
	}
	const key = "MDEyMzQ1Njc4OWFiY2RlZg=="
	added, err := h.client.Members.AddKey(h.ctx, request(&hostv1.AddKeyRequest{Key: key}))
	must(t, err)
	list, err := h.client.Members.ListKeys(h.ctx, request(&hostv1.ListKeysRequest{}))
	must(t, err)
	if k := list.Msg.GetKeys(); len(k) != 1 || k[0].GetId() != added.Msg.GetId() || k[0].GetAgents() != 2 || strings.Contains(list.Msg.String(), key) {
		t.Errorf("keys %v", list.Msg)
	}
	_, err = h.client.Members.UseKey(h.ctx, request(&hostv1.UseKeyRequest{Id: "unknown"}))
	wantError(t, err, connect.CodeNotFound, "keyring list")
	_, err = h.client.Members.UseKey(h.ctx, request(&hostv1.UseKeyRequest{Id: added.Msg.GetId()}))
	must(t, err)
	if g.did[len(g.did)-1] != "use "+key || strings.Contains(h.log.String(), key) || strings.Contains(h.log.String(), secret) {
		t.Errorf("it did %q", g.did)
	}
}

func TestRaftOfOne(t *testing.T) {
	h := openHost(t)
	peers, err := h.client.Operator.ListPeers(h.ctx, request(&hostv1.ListPeersRequest{}))
	must(t, err)
	if p := peers.Msg.GetPeers(); len(p) != 1 || !p[0].GetLeader() || !p[0].GetVoter() {
		t.Errorf("peers %v", p)
	}
	_, err = h.client.Operator.RemovePeer(h.ctx, request(&hostv1.RemovePeerRequest{Name: "nobody"}))
	wantError(t, err, connect.CodeNotFound, "nobody")
	_, err = h.client.Operator.RemovePeer(h.ctx, request(&hostv1.RemovePeerRequest{Name: peers.Msg.GetPeers()[0].GetName()}))
	wantError(t, err, connect.CodeFailedPrecondition, "alive")
	health, err := h.client.Operator.AutopilotHealth(h.ctx, request(&hostv1.AutopilotHealthRequest{}))
	must(t, err)
	if !health.Msg.GetHealthy() || health.Msg.GetFailureTolerance() != 0 {
		t.Errorf("health %v", health.Msg)
	}
	quorum := uint32(5)
	_, err = h.client.Operator.SetAutopilot(h.ctx, request(&hostv1.SetAutopilotRequest{Autopilot: &hostv1.Autopilot{MinQuorum: &quorum}}))
	must(t, err)
	got, err := h.client.Operator.GetAutopilot(h.ctx, request(&hostv1.GetAutopilotRequest{}))
	must(t, err)
	if a := got.Msg.GetAutopilot(); a.GetMinQuorum() != 5 || !a.GetCleanupDeadServers() || a.GetLastContactThreshold().AsDuration() <= 0 {
		t.Errorf("autopilot %v", a)
	}
	_, err = h.client.Operator.SetAutopilot(h.ctx, request(&hostv1.SetAutopilotRequest{Autopilot: &hostv1.Autopilot{LastContactThreshold: durationpb.New(-1)}}))
	wantError(t, err, connect.CodeInvalidArgument, "last_contact_threshold")
}

// elsewhere is a leader behind another host's socket. While its errors last, nobody leads.
type elsewhere struct {
	socket string
	mu     sync.Mutex
	errs   int
	lost   int // answers that are still to be lost
	here   bool
	asked  []*http.Request
}

func (e *elsewhere) IsLeader() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.here
}

func (e *elsewhere) Misled(*url.URL) {}

func (e *elsewhere) LeaderName() string { return "leader" }

func (e *elsewhere) LeaderURL(context.Context, bool) (*url.URL, http.RoundTripper, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.errs > 0 {
		e.errs--
		return nil, nil, errors.New("an election is under way")
	}
	return &url.URL{Scheme: "http", Host: "leader"}, e, nil
}

func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	e.asked = append(e.asked, r)
	e.mu.Unlock()
	transport := http.RoundTripper(&http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", e.socket)
	}})
	resp, err := transport.RoundTrip(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil && e.lost > 0 {
		e.lost--
		return nil, errors.Join(errors.New("the connection broke"), resp.Body.Close())
	}
	return resp, err
}

func (e *elsewhere) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

func TestRequestsForTheLedgerGoToTheLeader(t *testing.T) {
	leader := openHost(t)
	leader.putNode(t, "known-to-the-leader")
	e := &elsewhere{socket: leader.cfg.Socket}
	h := openHost(t, func(c *Config) { c.Leader = e })
	get := func(read *hostv1.ReadOptions) error {
		_, err := h.client.Nodes.GetNode(h.ctx, request(&hostv1.GetNodeRequest{Name: "known-to-the-leader", Read: read}))
		return err
	}
	must(t, get(nil))
	if by := e.asked[0].Header.Get(forwardedHeader); !strings.Contains(by, "on n1") || !strings.Contains(by, "uid") {
		t.Errorf("it was passed on for %q", by)
	}
	// Errors of the leader are the caller's.
	_, err := h.client.Nodes.GetNode(h.ctx, request(&hostv1.GetNodeRequest{Name: "nobody"}))
	wantError(t, err, connect.CodeNotFound, "nobody")
	// A stale answer is this server's own, as is what is its node's.
	wantError(t, get(&hostv1.ReadOptions{Stale: true}), connect.CodeNotFound, "known-to-the-leader")
	asked := len(e.asked)
	_, err = h.client.Agent.Status(h.ctx, request(&hostv1.StatusRequest{}))
	must(t, err)
	if len(e.asked) != asked {
		t.Error("the node's own was passed on")
	}
	// It is sent again over an election.
	e.set(func() { e.errs = 3 })
	must(t, get(nil))
	// So it is when an answer is lost, and the leader can tell that it is the same one.
	e.set(func() { e.asked, e.lost = nil, 1 })
	must(t, get(nil))
	must(t, get(nil))
	var calls []string
	for _, r := range e.asked {
		calls = append(calls, r.Header.Get(callHeader))
	}
	if len(calls) != 3 || len(calls[0]) < 26 || calls[0] != calls[1] || calls[1] == calls[2] {
		t.Errorf("two requests, one of them sent twice, were the calls %q", calls)
	}
	// Streams pass.
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	stream, err := h.client.System.Watch(ctx, request(&hostv1.WatchRequest{Topics: []string{"nodes"}}))
	must(t, err)
	for _, name := range []string{"", "another"} {
		if name != "" {
			leader.putNode(t, name)
		}
		if !stream.Receive() {
			t.Fatal(stream.Err())
		}
	}
	cancel()
	_ = stream.Close()
	// Where this server has come to lead meanwhile, it answers by itself.
	e.set(func() { e.here = true })
	wantError(t, get(nil), connect.CodeNotFound, "known-to-the-leader")
}

// A request that was passed on is never passed on again, and who passed it on looks for the leader again.
func TestNoRequestGoesRound(t *testing.T) {
	first, second := &elsewhere{}, &elsewhere{}
	a := openHost(t, func(c *Config) { c.Leader = first })
	b := openHost(t, func(c *Config) { c.Leader = second })
	first.socket, second.socket = b.cfg.Socket, a.cfg.Socket
	done := make(chan error, 1)
	go func() {
		_, err := a.client.Nodes.ListNodes(a.ctx, request(&hostv1.ListNodesRequest{}))
		done <- err
	}()
	eventually(t, "the other was asked more than once", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return len(first.asked) > 1
	})
	second.set(func() { second.here = true })
	must(t, <-done)
	if len(second.asked) > 0 {
		t.Error("it came back")
	}
}

func TestARequestThatIsTooLargeIsNotPassedOn(t *testing.T) {
	e := &elsewhere{}
	h := openHost(t, func(c *Config) { c.Leader = e })
	s := spec("v")
	s.Parameters = map[string]string{"big": strings.Repeat("x", maxRequest+1)}
	_, err := h.client.Volumes.CreateVolume(h.ctx, request(&hostv1.CreateVolumeRequest{Spec: s}))
	wantError(t, err, connect.CodeResourceExhausted, "bytes")
	if len(e.asked) > 0 {
		t.Error("it was passed on")
	}
}
