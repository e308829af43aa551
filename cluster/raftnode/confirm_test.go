package raftnode

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/test/lib/check"
)

// long is a raft timeout that does not pass during a test, so that only the test causes elections.
const long = 10 * time.Minute

// slowNet is one server's network. While it is slow, the answers of other servers to heartbeats are delayed.
type slowNet struct {
	*raft.InmemTransport
	confirmations *confirmations
	slow          chan struct{}   // if closed, answers are delayed
	held          chan<- struct{} // gets a value for each delayed answer
	deliver       <-chan struct{} // if closed, delayed answers arrive
}

func (s *slowNet) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest,
	resp *raft.AppendEntriesResponse,
) error {
	return s.confirmations.count(id, args, resp, func() error {
		err := s.InmemTransport.AppendEntries(id, target, args, resp)
		select {
		case <-s.slow:
			if err == nil && args.PrevLogEntry == 0 && len(args.Entries) == 0 {
				s.held <- struct{}{}
				<-s.deliver
			}
		default:
		}
		return err
	})
}

// ignoring is a state machine without state.
type ignoring struct{}

func (ignoring) Apply(*raft.Log) any                 { return nil }
func (ignoring) Snapshot() (raft.FSMSnapshot, error) { return nil, errors.ErrUnsupported }
func (ignoring) Restore(r io.ReadCloser) error       { return r.Close() }

// threeServers starts three servers. The first one leads.
func threeServers(t *testing.T, nets [3]*slowNet) (nodes [3]*Node) {
	t.Helper()
	names := []raft.ServerID{"a", "b", "c"}
	var servers []raft.Server
	for _, name := range names {
		servers = append(servers, raft.Server{ID: name, Address: raft.ServerAddress(name)})
	}
	for i, name := range names {
		for j, other := range names {
			if i != j {
				nets[i].Connect(raft.ServerAddress(other), nets[j].InmemTransport)
			}
		}
		conf := raft.DefaultConfig()
		conf.LocalID, conf.Logger = name, hclog.NewNullLogger()
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = long, long, long
		store, snapshots := raft.NewInmemStore(), raft.NewInmemSnapshotStore()
		err := raft.BootstrapCluster(conf, store, store, snapshots, nets[i], raft.Configuration{Servers: servers})
		check.NoError(t, err)
		r, err := raft.NewRaft(conf, ignoring{}, store, store, snapshots, nets[i])
		check.NoError(t, err)
		nodes[i] = &Node{Raft: r, cfg: Config{ID: string(name)}, confirmations: nets[i].confirmations}
	}
	t.Cleanup(func() {
		for _, n := range nets { // a leader that is closed sends its last entries and waits for answers
			n.DisconnectAll()
		}
		for _, n := range nodes {
			if err := n.Shutdown().Error(); err != nil {
				t.Error(err)
			}
		}
	})
	elect(t, nets[1], nodes[0])
	return nodes
}

// elect makes a server the leader at once, like the end of a leadership transfer.
func elect(t *testing.T, from *slowNet, n *Node) {
	t.Helper()
	id := raft.ServerID(n.cfg.ID)
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("test"), Addr: []byte("test")}
	if err := from.TimeoutNow(id, raft.ServerAddress(id), &raft.TimeoutNowRequest{RPCHeader: header},
		new(raft.TimeoutNowResponse)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-n.LeaderCh():
	case <-time.After(time.Minute):
		t.Fatalf("%s is not elected: it is a %s", id, n.State())
	}
	check.NoError(t, n.Barrier(0).Error())
}

// TestAnswersFromBeforeTheQuestion: a leader that was deposed before ConfirmLeader was called is not
// confirmed by delayed answers to earlier heartbeats. Raft's VerifyLeader accepts such answers, which this
// test checks too: if that changes, ConfirmLeader is no longer needed.
func TestAnswersFromBeforeTheQuestion(t *testing.T) {
	var nets [3]*slowNet
	held, deliver := make(chan struct{}, 8), make(chan struct{})
	for i := range nets {
		_, under := raft.NewInmemTransportWithTimeout(raft.ServerAddress("abc"[i:i+1]), 10*time.Second)
		nets[i] = &slowNet{under, &confirmations{}, make(chan struct{}), held, deliver}
	}
	nodes := threeServers(t, nets)
	release := sync.OnceFunc(func() { close(deliver) })
	t.Cleanup(release) // else no server ends
	old, next := nodes[0], nodes[1]
	term := old.CurrentTerm()
	if err := old.ConfirmLeader(t.Context(), term); err != nil {
		t.Fatalf("the only leader: %v", err)
	}
	check.Eventually(t, "the next leader has the whole log, else it gets no vote", func() bool {
		return next.LastIndex() == old.LastIndex()
	})

	// Both followers answer a heartbeat. The answers are delayed while another server is elected.
	close(nets[0].slow)
	old.VerifyLeader()
	for range 2 {
		<-held
	}
	nets[0].DisconnectAll()
	for _, other := range nets[1:] {
		other.Disconnect("a")
	}
	elect(t, nets[2], next)
	check.NoError(t, next.Apply([]byte("a write that the old leader has not"), 0).Error())

	question := old.confirmations.ask()
	own := old.VerifyLeader()
	for range 64 { // raft takes requests and commands in random order: by now it has taken the request
		old.Apply(nil, 0)
	}
	release()
	if err := own.Error(); err != nil {
		t.Errorf("raft's VerifyLeader no longer counts earlier answers (%v): use it instead of ConfirmLeader", err)
	}
	servers := old.GetConfiguration().Configuration().Servers
	if old.confirmations.majority(servers, "a", term, question) {
		t.Error("a deposed leader was confirmed by earlier answers")
	}

	ctx, cancel := context.WithCancel(t.Context())
	answered := make(chan error)
	go func() { answered <- old.confirmed(ctx, term, question) }()
	for i, n := range nets { // the old leader hears of the new one
		for j, other := range nets {
			if i != j {
				n.Connect(raft.ServerAddress("abc"[j:j+1]), other.InmemTransport)
			}
		}
	}
	next.VerifyLeader() // this sends heartbeats
	select {
	case leads := <-old.LeaderCh():
		if leads {
			t.Error("the old leader was not deposed")
		}
	case <-time.After(time.Minute):
		t.Error("the old leader still leads")
	}
	cancel()
	if err := <-answered; err == nil {
		t.Error("the deposed leader was confirmed")
	}
	if err := next.ConfirmLeader(t.Context(), next.CurrentTerm()); err != nil {
		t.Errorf("the new leader: %v", err)
	}
}

// TestMajorityOfVoters: only voters count, and only if their last answer has the current term and request.
func TestMajorityOfVoters(t *testing.T) {
	server := func(id string, suffrage raft.ServerSuffrage) raft.Server {
		return raft.Server{ID: raft.ServerID(id), Suffrage: suffrage}
	}
	voter, guest := raft.Voter, raft.Nonvoter
	for name, row := range map[string]struct {
		servers  []raft.Server
		answered map[raft.ServerID]answer
		want     bool
	}{
		"alone":      {servers: []raft.Server{server("a", voter)}, want: true},
		"no answers": {servers: []raft.Server{server("a", voter), server("b", voter), server("c", voter)}},
		"one of two others": {
			servers:  []raft.Server{server("a", voter), server("b", voter), server("c", voter)},
			answered: map[raft.ServerID]answer{"b": {7, 3}}, want: true,
		},
		"half of four": {
			servers:  []raft.Server{server("a", voter), server("b", voter), server("c", voter), server("d", voter)},
			answered: map[raft.ServerID]answer{"b": {7, 3}},
		},
		"an earlier question": {
			servers:  []raft.Server{server("a", voter), server("b", voter), server("c", voter)},
			answered: map[raft.ServerID]answer{"b": {7, 2}, "c": {7, 2}},
		},
		"another term": {
			servers:  []raft.Server{server("a", voter), server("b", voter), server("c", voter)},
			answered: map[raft.ServerID]answer{"b": {6, 3}, "c": {8, 3}},
		},
		"a server without a vote": {
			servers:  []raft.Server{server("a", voter), server("b", voter), server("c", voter), server("d", guest)},
			answered: map[raft.ServerID]answer{"d": {7, 3}},
		},
		"it is not a voter itself": {
			servers:  []raft.Server{server("a", guest), server("b", voter), server("c", voter)},
			answered: map[raft.ServerID]answer{"b": {7, 3}},
		},
	} {
		c := &confirmations{answered: row.answered}
		if got := c.majority(row.servers, "a", 7, 3); got != row.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
