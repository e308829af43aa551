package raftnode

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/test/lib/check"
)

// asked are connections to servers whose statuses the test decides.
type asked func(server string) (Status, error)

func (asked) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (asked) Close() error              { return nil }
func (asked) Addr() net.Addr            { return nameAddr("asked") }

func (a asked) Dial(name, _ string, _ time.Duration) (net.Conn, error) {
	status, err := a(name)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		if _, err := bufio.NewReader(far).ReadBytes('\n'); err == nil {
			_ = json.NewEncoder(far).Encode(reply{Status: status})
		}
	}()
	return near, nil
}

// TestAbstainsOverAChangeOfTerm: a server that has lost a part of its log votes again once it has everything that a
// leader had, and that leader still leads. The log of a leader of an earlier term is no measure: its end may never have
// been committed, while entries that this server has lost come with the log of the leader after it.
func TestAbstainsOverAChangeOfTerm(t *testing.T) {
	var nets [3]*slowNet
	for i := range nets {
		_, under := raft.NewInmemTransportWithTimeout(raft.ServerAddress("abc"[i:i+1]), 10*time.Second)
		nets[i] = &slowNet{InmemTransport: under, confirmations: &confirmations{}}
	}
	nodes := threeServers(t, nets)
	first, next, n := nodes[0], nodes[1], nodes[2]
	earlier := Status{
		ID: "a", Term: first.CurrentTerm(), LastIndex: first.LastIndex() + 1, Leads: true, Report: Report{Leads: true},
	}
	check.Eventually(t, "c knows its leader", func() bool { _, l := n.LeaderWithID(); return l == "a" })

	const tooEarly = "it votes by what a leader of an earlier term had"
	var firstAsked, again atomic.Bool
	nextAsked, caughtUp, later := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	n.abstention = &abstention{path: t.TempDir() + "/" + abstainsFile}
	check.NoError(t, n.abstention.begin(loss{Why: "the test wants it so"}))
	n.logger = hclog.NewNullLogger()
	var members gossip
	for _, name := range []string{"a", "b"} {
		members = append(members, discovery.Member{Self: discovery.Self{Name: name, Role: discovery.Server, RPC: name}})
	}
	n.streams = &streams{name: "c", members: members, under: asked(func(server string) (Status, error) {
		if server == "a" {
			firstAsked.Store(true)
			return earlier, nil
		}
		if !again.Swap(true) { // it does not answer before this server has what the earlier leader had
			close(nextAsked)
			<-caughtUp
			return Status{}, errors.New("the test wants it so")
		}
		index := next.LastIndex() + 1
		later <- struct{}{}
		return Status{ID: "b", Term: next.CurrentTerm(), LastIndex: index, Leads: true, Report: Report{Leads: true}}, nil
	})}
	ended := make(chan struct{})
	go func() { defer close(ended); n.catchUp(t.Context()) }()
	check.Eventually(t, "the first leader is asked", firstAsked.Load)

	check.Eventually(t, "the next leader has the whole log, else it gets no vote", func() bool {
		return next.LastIndex() == first.LastIndex()
	})
	elect(t, nets[2], next)
	select {
	case <-nextAsked:
	case <-ended:
		t.Fatal(tooEarly)
	}
	check.Eventually(t, "c has what the earlier leader had", func() bool { return n.CommitIndex() >= earlier.LastIndex })
	close(caughtUp)
	select {
	case <-later: // it asked again, since what it had was of an earlier term
		if !n.abstention.active() {
			t.Error(tooEarly)
		}
	case <-ended:
		t.Fatal(tooEarly)
	}
	check.NoError(t, next.Apply([]byte("the end of the next leader's log"), 0).Error())
	check.NoError(t, next.Barrier(0).Error())
	select {
	case <-ended:
	case <-time.After(check.Patience):
		t.Fatal("it does not catch up")
	}
	if n.abstention.active() {
		t.Error("it has caught up, and abstains")
	}
}

// TestAbstains: a server that abstains gives no vote, asks for none and becomes no leader, but takes entries.
func TestAbstains(t *testing.T) {
	transport := func() *raft.NetworkTransport {
		n, err := raft.NewTCPTransportWithLogger("127.0.0.1:0", nil, 1, time.Minute, hclog.NewNullLogger())
		check.NoError(t, err)
		t.Cleanup(func() { n.CloseStreams(); n.Close() })
		return n
	}
	a := &abstention{path: t.TempDir() + "/" + abstainsFile}
	check.NoError(t, a.begin(loss{}))
	confirming := &confirmingTransport{transport(), &confirmations{}, new(atomic.Bool)}
	own := &abstainingTransport{confirming, a, make(chan raft.RPC)}
	other := transport()
	go own.run(t.Context())
	go func() { // raft of both
		for {
			var call raft.RPC
			select {
			case call = <-own.Consumer():
			case call = <-other.Consumer():
			case <-t.Context().Done():
				return
			}
			switch call.Command.(type) {
			case *raft.RequestVoteRequest:
				call.Respond(&raft.RequestVoteResponse{}, nil)
			case *raft.RequestPreVoteRequest:
				call.Respond(&raft.RequestPreVoteResponse{}, nil)
			case *raft.TimeoutNowRequest:
				call.Respond(&raft.TimeoutNowResponse{}, nil)
			default:
				call.Respond(&raft.AppendEntriesResponse{}, nil)
			}
		}
	}()
	here, there := own.LocalAddr(), other.LocalAddr()
	calls := map[string]func() error{
		"a vote is asked of it": func() error {
			return other.RequestVote("own", here, &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{})
		},
		"a pre-vote is asked of it": func() error {
			return other.RequestPreVote("own", here, &raft.RequestPreVoteRequest{}, &raft.RequestPreVoteResponse{})
		},
		"leadership is transferred to it": func() error {
			return other.TimeoutNow("own", here, &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{})
		},
		"it asks for a vote": func() error {
			return own.RequestVote("other", there, &raft.RequestVoteRequest{}, &raft.RequestVoteResponse{})
		},
		"it asks for a pre-vote": func() error {
			return own.RequestPreVote("other", there, &raft.RequestPreVoteRequest{}, &raft.RequestPreVoteResponse{})
		},
	}
	for what, call := range calls {
		if err := call(); err == nil || !strings.Contains(err.Error(), errAbstains.Error()) {
			t.Errorf("%s: %v", what, err)
		}
	}
	entries := func() error {
		return other.AppendEntries("own", here, &raft.AppendEntriesRequest{}, &raft.AppendEntriesResponse{})
	}
	if err := entries(); err != nil {
		t.Errorf("it takes no entries: %v", err)
	}
	check.NoError(t, a.end())
	for what, call := range calls {
		if err := call(); err != nil {
			t.Errorf("it has caught up, and %s: %v", what, err)
		}
	}
}

// TestAbstentionIsKept: a restart does not end an abstention, and a known loss is not taken for that of a new server.
func TestAbstentionIsKept(t *testing.T) {
	dir := t.TempDir()
	open := func() *abstention { return check.Must(readAbstention(dir))(t) }
	if open().active() {
		t.Error("a server that has lost nothing abstains")
	}
	check.NoError(t, open().begin(loss{Why: "damage"}))
	check.NoError(t, open().begin(loss{}))
	if a := open(); !a.active() || a.damage() != "damage" {
		t.Errorf("after a restart it abstains: %t, since %q", a.active(), a.damage())
	}
	check.NoError(t, open().end())
	if open().active() {
		t.Error("after a restart it abstains again")
	}
}
