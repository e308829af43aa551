package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

// within returns a context for one call that may have to wait for an election.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clustertest.Deadline)
	t.Cleanup(cancel)
	return ctx
}

func register(t *testing.T, to cluster.Ledger, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if _, err := cluster.Apply(within(t), to, &command.RegisterVolume{Volume: volume(id)}); err != nil {
			t.Fatalf("register %s: %v", id, err)
		}
	}
}

// has reports whether a server's own ledger has the volume.
func has(t *testing.T, n *cluster.Node, id string) bool {
	t.Helper()
	err := n.Read(within(t), func(tx *state.ReadTx) error {
		_, err := tx.Volume(volume(id).VolumeRef)
		return err
	})
	if err != nil && !errors.Is(err, claim.ErrVolumeNotFound) {
		t.Fatalf("read volume %s: %v", id, err)
	}
	return err == nil
}

// everywhere waits until all running servers have the volume.
func everywhere(t *testing.T, c *clustertest.Cluster, id string) {
	t.Helper()
	for _, h := range c.Up() {
		clustertest.Eventually(t, h.Name+" has the volume "+id, func() bool { return has(t, h.Node, id) })
	}
}

func names(hosts []*clustertest.Host) (names []string) {
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return names
}

func identity(t *testing.T, n *cluster.Node) string {
	t.Helper()
	c, err := n.Identity(within(t))
	check.NoError(t, err)
	return c.ID
}

// TestForm forms clusters by bootstrap_expect, and restarts all their servers.
func TestForm(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			c := clustertest.Form(t, n, clustertest.Options{})
			c.WaitVoters(t, names(c.Hosts())...)
			register(t, c.Up()[0], "a")
			everywhere(t, c, "a")
			before := identity(t, c.WaitLeader(t).Node)
			for _, h := range c.Hosts() {
				h.Stop(t)
			}
			for _, h := range c.Hosts() {
				h.Start(t)
			}
			c.WaitReady(t)
			everywhere(t, c, "a")
			c.WaitVoters(t, names(c.Hosts())...)
			for _, h := range c.Hosts() {
				if after := identity(t, h.Node); after != before {
					t.Errorf("%s belongs to the cluster %q, not %q", h.Name, after, before)
				}
			}
		})
	}
}

// TestFollowerForwards changes and reads the ledger through followers, and through an agent without a ledger.
func TestFollowerForwards(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	follower, client := c.Follower(t), c.Client()
	register(t, follower, "a")
	v := volume("a")
	if _, err := cluster.Apply(within(t), client,
		command.Start(claim.Run{Ref: workload("db-1"), Node: "n"}, []claim.Claim{want(v, claim.Write)})); err != nil {
		t.Fatal(err)
	}
	_, err := cluster.Apply(within(t), follower,
		command.Start(claim.Run{Ref: workload("db-2"), Node: "n"}, []claim.Claim{want(v, claim.Write)}))
	var refusal *claim.Refusal
	if !errors.Is(err, claim.ErrHeld) || !errors.As(err, &refusal) || len(refusal.Holders) != 1 ||
		refusal.Holders[0].Workload != workload("db-1") {
		t.Errorf("refused by another server: %v", err)
	}
	for name, q := range map[string]cluster.Ledger{
		"follower": follower, "client": client,
		"leader": c.Leader(),
	} {
		claims, _, err := cluster.Ask(within(t), q,
			&command.QueryClaims{Workload: workload("db-1")}, cluster.Blocking{})
		if err != nil || len(claims) != 1 {
			t.Errorf("%s: the claims are %+v, %v", name, claims, err)
		}
		if _, _, err := cluster.Ask(within(t), q,
			&command.QueryVolume{Ref: volume("none").VolumeRef}, cluster.Blocking{}); !errors.Is(err,
			claim.ErrVolumeNotFound) {
			t.Errorf("%s: no such volume: %v", name, err)
		}
		if got, _, err := cluster.Ask(within(t), q,
			&command.QueryVolume{Ref: v.VolumeRef}, cluster.Blocking{}); err != nil ||
			got.AccessMode != claim.SingleNodeWriter {
			t.Errorf("%s: the volume is %+v, %v", name, got, err)
		}
	}
	if err := follower.ReadLatest(within(t), func(*state.ReadTx) error { return nil }); !errors.Is(err,
		command.ErrNotLeader) {
		t.Errorf("a consistent read from a follower: %v", err)
	}
	_, err = follower.ApplyHere(within(t), &command.EndWorkload{Ref: workload("w")})
	if !errors.Is(err, command.ErrNotLeader) {
		t.Errorf("a command for a follower: %v", err)
	}
}

// TestBlockingQuery waits for a change through another server, even while the leader changes.
func TestBlockingQuery(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	client := c.Client()
	register(t, client, "a")
	ref := volume("a").VolumeRef
	_, index, err := cluster.Ask(within(t), client, &command.QueryVolume{Ref: ref}, cluster.Blocking{})
	check.NoError(t, err)
	got, same, err := cluster.Ask(within(t), client,
		&command.QueryVolume{Ref: ref}, cluster.Blocking{MinIndex: index, Wait: 50 * time.Millisecond})
	if err != nil || got.ID != "a" || same > index {
		t.Errorf("nothing has changed: %+v, %d after %d, %v", got, same, index, err)
	}
	type answer struct {
		v   claim.Volume
		err error
	}
	answers := make(chan answer, 1)
	ctx := within(t)
	go func() {
		for {
			v, next, err := cluster.Ask(ctx, client,
				&command.QueryVolume{Ref: ref}, cluster.Blocking{MinIndex: index, Wait: clustertest.Deadline})
			if err != nil || v.Name == "new" {
				answers <- answer{v, err}
				return
			}
			index = next // a new leader may answer early
		}
	}()
	clustertest.Eventually(t, "leadership is transferred",
		func() bool { return c.WaitLeader(t).TransferLeadership(within(t), "") == nil })
	changed := volume("a")
	changed.Name = "new"
	if _, err := cluster.Apply(within(t), client, &command.RegisterVolume{Volume: changed}); err != nil {
		t.Fatal(err)
	}
	if a := <-answers; a.err != nil {
		t.Errorf("the answer is %+v, %v", a.v, a.err)
	}
}

// TestLeaderDies continues with another leader. The restarted server gets the entries that it missed.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	client := c.Client()
	register(t, client, "a")
	dead := c.WaitLeader(t)
	dead.Stop(t)
	register(t, client, "b")
	if leader := c.Leader(); leader == nil || leader == dead {
		t.Errorf("%v leads", leader)
	}
	dead.Start(t)
	c.WaitReady(t)
	everywhere(t, c, "b")
	c.WaitVoters(t, names(c.Hosts())...)
}

// TestLeaderIsCutOff queries a leader that was deposed and does not know it yet.
func TestLeaderIsCutOff(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	register(t, c.Client(), "a")
	old := c.WaitLeader(t)
	everywhere(t, c, "a")
	nothing := func(*state.ReadTx) error { return nil }
	c.Partition(old.Name)
	if err := old.ReadLatest(within(t), nothing); !errors.Is(err, command.ErrNotLeader) {
		t.Errorf("a consistent read from a leader that reaches nobody: %v", err)
	}
	clustertest.Eventually(t, "another server leads", func() bool {
		l := c.Leader()
		return l != nil && l != old
	})
	register(t, c.Client(), "b")
	if err := old.ReadLatest(within(t), nothing); !errors.Is(err, command.ErrNotLeader) {
		t.Errorf("a consistent read from a deposed leader: %v", err)
	}
	if has(t, old.Node, "b") || !has(t, old.Node, "a") {
		t.Error("a disconnected server has later changes, or no data at all")
	}
	clustertest.Eventually(t, "the age grows", func() bool { return old.Age() > time.Second })
	if age := c.Leader().Age(); age != 0 {
		t.Errorf("the leader's ledger is %s old", age)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := cluster.Apply(ctx, old,
		&command.RegisterVolume{Volume: volume("c")}); !errors.Is(err, command.ErrUncertain) {
		t.Errorf("a command through a disconnected server: %v", err)
	}
	c.Heal()
	everywhere(t, c, "b")
}

// TestOnceOnly drops answers. Each acknowledged start was applied once.
func TestOnceOnly(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	var made sync.Map
	var created atomic.Int32
	var callers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for g := range 8 {
		client := c.Client()
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				w := workload(fmt.Sprintf("w-%d-%d", g, i))
				r, err := cluster.Apply(within(t), client, command.Start(claim.Run{Ref: w, Node: "n"}, nil))
				if err != nil || !r.Created {
					t.Errorf("%s: created %t, %v", w.ID, r.Created, err)
					return
				}
				made.Store(w.ID, r.Workload.CreateIndex)
				created.Add(1)
			}
		})
	}
	for range 3 {
		leader, before := c.WaitLeader(t), created.Load()
		c.Partition(leader.Name)
		clustertest.Eventually(t, "commands go on", func() bool { return created.Load() > before+100 })
		c.Heal()
		c.WaitReady(t)
	}
	stop()
	callers.Wait()
	err := c.WaitLeader(t).ReadLatest(within(t), func(tx *state.ReadTx) error {
		made.Range(func(id, index any) bool {
			w, err := tx.Workload(workload(id.(string)))
			if err != nil || w.CreateIndex != index {
				t.Errorf("%s was made at %d: %+v, %v", id, index, w, err)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestTransferLeadership(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	next, leader := c.Follower(t), c.WaitLeader(t)
	if err := next.TransferLeadership(within(t), ""); !errors.Is(err, command.ErrNotLeader) {
		t.Errorf("from a follower: %v", err)
	}
	if err := leader.TransferLeadership(within(t), "server-9"); !errors.Is(err, cluster.ErrNoPeer) {
		t.Errorf("to nobody: %v", err)
	}
	clustertest.Eventually(t, next.Name+" leads", func() bool {
		return c.Leader() == next || c.WaitLeader(t).TransferLeadership(within(t), next.Name) == nil && c.Leader() == next
	})
	register(t, leader, "a")
}

// TestNeverFormedTwice adds servers that expect other numbers of servers, or that belonged to another
// cluster, to a formed cluster.
func TestNeverFormedTwice(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	before := identity(t, c.WaitLeader(t).Node)
	fourth, never := c.Add(t, "server-4", 3), c.Add(t, "server-5", 0)
	fourth.Start(t)
	never.Start(t)
	c.WaitReady(t)
	c.WaitVoters(t, names(c.Hosts())...)
	c.Host(t, "server-1").Stop(t)
	other := c.Add(t, "server-1", 1) // the same ledger, but it now expects another number
	other.Start(t)
	c.WaitReady(t)
	for _, h := range c.Up() {
		if got := identity(t, h.Node); got != before {
			t.Errorf("%s belongs to the cluster %q, not %q", h.Name, got, before)
		}
	}
}

// TestForeignCluster refuses a server that already belongs to another cluster. A new server that both clusters see
// joins only one of them.
func TestForeignCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	alone := clustertest.StartWith(t, cluster.Config{Dir: dir, Name: "server-9"})
	register(t, alone, "theirs")
	theirs := identity(t, alone.Node)
	check.NoError(t, alone.Close())
	log := &logged{}
	c := clustertest.Form(t, 3, clustertest.Options{
		Log: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Info}),
	})
	register(t, c.Client(), "ours")
	c.Adopt(t, "server-9", dir, 3).Start(t)
	foreign := c.Host(t, "server-9")
	clustertest.Eventually(t, "it leads its own cluster", func() bool { return foreign.Leader() })
	const refused = "the cluster's servers cannot be changed"
	clustertest.Eventually(t, "the foreign server is refused", func() bool {
		return log.has(refused, "server=server-9", "belongs to another cluster")
	})
	c.Add(t, "server-4", 3).Start(t)
	has4 := func(n *cluster.Node) bool {
		servers, err := n.Servers()
		check.NoError(t, err)
		return slices.Contains(servers, "server-4")
	}
	ours := c.Host(t, "server-1")
	clustertest.Eventually(t, "the new server is in one cluster, and refused by the other", func() bool {
		if has4(ours.Node) && has4(foreign.Node) {
			t.Fatal("a server is in two clusters")
		}
		return (has4(ours.Node) || has4(foreign.Node)) && log.has(refused, "server=server-4", "another cluster")
	})
	if servers, err := ours.Servers(); err != nil || slices.Contains(servers, "server-9") {
		t.Errorf("the servers are %v: %v", servers, err)
	}
	if got := identity(t, foreign.Node); got != theirs || !has(t, foreign.Node, "theirs") || has(t, foreign.Node, "ours") {
		t.Errorf("it belongs to the cluster %q now, was in %q", got, theirs)
	}
}

// TestFromOneToThree makes a single host, with its ledger, the first server of a cluster.
func TestFromOneToThree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	alone := clustertest.StartWith(t, cluster.Config{Dir: dir, Name: "server-1"})
	register(t, alone, "a")
	before := identity(t, alone.Node)
	check.NoError(t, alone.Close())
	c := clustertest.Prepare(t, 0, clustertest.Options{})
	c.Adopt(t, "server-1", dir, 1).Start(t)
	c.WaitReady(t)
	c.Add(t, "server-2", 0).Start(t)
	c.Add(t, "server-3", 0).Start(t)
	c.WaitReady(t)
	c.WaitVoters(t, names(c.Hosts())...)
	everywhere(t, c, "a")
	c.WaitLeader(t).Stop(t)
	register(t, c.Client(), "b")
	if got := identity(t, c.WaitLeader(t).Node); got != before {
		t.Errorf("the cluster is %q, was %q", got, before)
	}
}

// TestDeadServerIsReplaced removes a dead server after another one has replaced it.
func TestDeadServerIsReplaced(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	register(t, c.Client(), "a")
	dead := c.Follower(t)
	dead.Stop(t)
	leader := c.WaitLeader(t)
	clustertest.Eventually(t, "gossip knows", func() bool {
		m, _ := leader.Discovery.Member(dead.Name)
		return m.Status == discovery.Failed
	})
	if peers, err := leader.Peers(within(t)); err != nil || len(peers) != 3 {
		t.Errorf("it was removed without a replacement: %+v, %v", peers, err)
	}
	c.Add(t, "server-4", 3).Start(t)
	c.WaitReady(t)
	everywhere(t, c, "a")
	c.WaitVoters(t, names(c.Up())...)
	dead.Start(t) // the dead server comes back
	c.WaitReady(t)
	c.WaitVoters(t, names(c.Hosts())...)
}

// TestRemovePeer removes a dead server by hand, and refuses to remove others.
func TestRemovePeer(t *testing.T) {
	t.Parallel()
	pilot := claim.DefaultAutopilot()
	pilot.CleanupDeadServers, pilot.ServerStabilizationTime = false, 300*time.Millisecond
	c := clustertest.Form(t, 3, clustertest.Options{Autopilot: &pilot})
	c.WaitVoters(t, names(c.Hosts())...)
	leader, gone := c.WaitLeader(t), c.Follower(t)
	for name, want := range map[string]error{
		gone.Name: cluster.ErrPeerAlive, leader.Name: cluster.ErrPeerAlive,
		"server-9": cluster.ErrNoPeer,
	} {
		if err := leader.RemovePeer(within(t), name); !errors.Is(err, want) {
			t.Errorf("remove %s: %v", name, err)
		}
	}
	if err := gone.RemovePeer(within(t), leader.Name); !errors.Is(err, command.ErrNotLeader) {
		t.Errorf("from a follower: %v", err)
	}
	gone.Stop(t)
	clustertest.Eventually(t, "it is removed", func() bool {
		err := c.WaitLeader(t).RemovePeer(within(t), gone.Name)
		return err == nil || errors.Is(err, cluster.ErrNoPeer)
	})
	c.WaitVoters(t, names(c.Up())...)
}

// TestAutopilotIsTheClusters: an operator's setting applies to every server, and still overrides a server's
// configuration after a restart.
func TestAutopilotIsTheClusters(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	leader := c.WaitLeader(t)
	want, threshold := leader.Autopilot(), 700*time.Millisecond
	got, err := leader.SetAutopilot(within(t), claim.AutopilotChange{LastContactThreshold: &threshold})
	if want.LastContactThreshold = threshold; err != nil || got != want {
		t.Fatalf("set to %+v, %v, want %+v", got, err, want)
	}
	other := c.Follower(t)
	clustertest.Eventually(t, "the follower applies it", func() bool { return other.Autopilot() == want })
	other.Stop(t)
	other.Start(t)
	c.WaitReady(t)
	if got := other.Autopilot(); got != want {
		t.Errorf("after a restart: %+v, want %+v", got, want)
	}
}

// leaves makes a server leave its cluster. It is repeated, because on a busy machine raft's one second for the transfer
// of leadership may be too short, and the server may hear later than the leader that another one votes now.
func leaves(t *testing.T, h *clustertest.Host) {
	t.Helper()
	clustertest.Eventually(t, h.Name+" leaves", func() bool {
		err := h.Leave(within(t), h.Discovery.Leave)
		if err != nil {
			t.Log(err)
		}
		return err == nil
	})
}

// TestLeave makes the leader leave and join again.
func TestLeave(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	register(t, c.Client(), "a")
	leader := c.WaitLeader(t)
	leaves(t, leader)
	leader.Stop(t)
	c.WaitVoters(t, names(c.Up())...)
	register(t, c.Client(), "b")
	leader.Start(t)
	c.WaitReady(t)
	c.WaitVoters(t, names(c.Hosts())...)
	everywhere(t, c, "b")
}

// TestEmptyServerCatchesUp restores a server that has lost its disk from a snapshot and the log.
func TestEmptyServerCatchesUp(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	empty := c.Follower(t)
	register(t, c.Client(), "a", "b")
	empty.Stop(t)
	for _, h := range c.Up() {
		check.NoError(t, h.Snapshot())
	}
	register(t, c.Client(), "c")
	check.NoError(t, os.RemoveAll(empty.Dir))
	empty.Start(t)
	c.WaitReady(t)
	for _, id := range []string{"a", "b", "c"} {
		everywhere(t, c, id)
	}
	c.WaitVoters(t, names(c.Hosts())...)
}

// TestPeersFile gives the remaining servers of a cluster without a quorum a new configuration.
func TestPeersFile(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	register(t, c.Client(), "a")
	everywhere(t, c, "a")
	left := c.Hosts()[0]
	for _, h := range c.Hosts() {
		h.Stop(t)
	}
	file := filepath.Join(left.Dir, "raft", "peers.json")
	check.NoError(t, os.WriteFile(file, []byte(`[{"id": "server-1"}]`), 0o600))
	left.Start(t)
	c.WaitReady(t)
	if !has(t, left.Node, "a") {
		t.Error("an acknowledged change is lost")
	}
	c.WaitVoters(t, "server-1")
	register(t, left, "b")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	left.Stop(t)
	left.Start(t)
	c.Add(t, "server-4", 3).Start(t)
	c.Add(t, "server-5", 3).Start(t)
	c.WaitReady(t)
	c.WaitVoters(t, "server-1", "server-4", "server-5")
	everywhere(t, c, "b")
}

// TestMembersChangeUnderLoad removes and adds servers while commands are applied.
func TestMembersChangeUnderLoad(t *testing.T) {
	t.Parallel()
	c := clustertest.Form(t, 3, clustertest.Options{})
	c.WaitVoters(t, names(c.Hosts())...)
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var done atomic.Int32
	for g := range 4 {
		client := c.Client()
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := cluster.Apply(within(t), client,
					command.Start(claim.Run{Ref: workload(fmt.Sprintf("w-%d-%d", g, i)), Node: "n"}, nil)); err != nil {
					t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	for i := range 2 {
		c.Add(t, fmt.Sprint("server-", 4+i), 3).Start(t)
		c.WaitReady(t)
		c.WaitVoters(t, names(c.Up())...)
		leader := c.WaitLeader(t)
		leaves(t, leader)
		leader.Stop(t)
		c.WaitVoters(t, names(c.Up())...)
	}
	before := done.Load()
	clustertest.Eventually(t, "commands go on", func() bool { return done.Load() > before+100 })
	stop()
	callers.Wait()
}
