package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/peer/pki"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
)

// How long one server is waited for before another is asked. A server that is cut off is
// found out earlier, by the connection (rpc).
const (
	applyPatience     = 10 * time.Second
	queryPatience     = 10 * time.Second // and what the query itself waits for
	heartbeatPatience = 3 * time.Second
	// Calls that end in one to a driver or to Consul have their bounds there.
	callPatience = 3 * time.Minute
)

// The pause after all servers were asked and none led: an election takes about a second, and the new
// leader is to be found soon after.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 150 * time.Millisecond
)

// Dialer gives connections to agents (rpc.Dialer).
type Dialer interface {
	Conn(addr, name string, role pki.Role) (*grpc.ClientConn, error)
}

// ServersConfig is what Servers work with.
type ServersConfig struct {
	// Name is this agent's, and Secret its node's.
	Name   string
	Secret Secret
	// Servers are the cluster's, as serf knows them.
	Servers func() []Member
	Dialer  Dialer
	// Local is what this agent does itself while it leads; nil: it is no server.
	Local *Leader
	// Terms of leaders that this agent has seen.
	Terms *Terms
}

// Servers are the cluster's servers as an agent asks them: whoever leads answers, found
// and waited for until the caller's context ends. Where this agent itself leads, no
// connection is made. It is safe for concurrent use. A call that carries commands goes on for
// a moment after their callers have left.
type Servers struct {
	cfg     ServersConfig
	bundles *bundles

	mu     sync.Mutex
	leader string // that answered last
}

// NewServers makes Servers.
func NewServers(cfg ServersConfig) *Servers {
	return &Servers{cfg: cfg, bundles: newBundles(cfg.Name, cfg.Secret)}
}

// Apply brings an encoded command to the leader and returns its encoded outcome. It is sent
// again where it is not known whether it was taken: it must have a key. Errors, when ctx
// ends: cluster.ErrUncertain, or cluster.ErrNotLeader where it was certainly not taken.
func (s *Servers) Apply(ctx context.Context, entry []byte) (outcome []byte, err error) {
	err = s.do(ctx, request{
		patience: applyPatience, changes: true,
		here: func(ctx context.Context, l *Leader) error {
			c, err := command.Decode(entry)
			if err != nil {
				return err
			}
			applied := l.Ledger.ApplyFor(ctx, c)[0]
			outcome = applied.Outcome
			return applied.Err
		},
		there: func(ctx context.Context, c service) error {
			outcome, err = s.bundles.apply(ctx, c, entry)
			return err
		},
	})
	return outcome, err
}

// Query brings an encoded query to the leader and returns the encoded answer. The error is
// cluster.ErrNotLeader when ctx ends.
func (s *Servers) Query(ctx context.Context, query []byte) (answer []byte, err error) {
	q, err := command.DecodeQuery(query)
	if err != nil {
		return nil, err
	}
	err = s.do(ctx, request{
		patience: queryPatience + q.Blocks().Wait,
		here: func(ctx context.Context, l *Leader) error {
			answer, err = l.Ledger.AnswerQuery(ctx, query)
			return err
		},
		there: func(ctx context.Context, c service) error {
			resp, err := c.Query(ctx, &peerv1.QueryRequest{Node: s.cfg.Name, Query: query})
			answer = resp.GetAnswer()
			return err
		},
	})
	return answer, err
}

// request is one thing that the leader is asked.
type request struct {
	// patience is how long one server is waited for.
	patience time.Duration
	// changes: it may have its effect though no answer came.
	changes bool
	here    func(ctx context.Context, l *Leader) error
	there   func(ctx context.Context, c service) error
}

// service is one server's, over its connection.
type service struct {
	peerv1.ServersServiceClient
	conn *grpc.ClientConn
}

// do asks the leader, whoever it is, until ctx ends.
func (s *Servers) do(ctx context.Context, r request) error {
	pause := &backoff.ExponentialBackOff{InitialInterval: firstPause, MaxInterval: longestPause, Multiplier: 2, RandomizationFactor: 0.5}
	pause.Reset()
	tried := &attempts{why: map[string]error{}}
	for {
		if done, err := s.round(ctx, r, tried); done {
			return err
		}
		select {
		case <-ctx.Done():
			return tried.err(context.Cause(ctx))
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// round asks each server once, those first who may lead. done: there is an answer.
func (s *Servers) round(ctx context.Context, r request, tried *attempts) (done bool, err error) {
	if l := s.cfg.Local; l != nil && l.leads() {
		err := r.here(ctx, l)
		if !passedOn(err) {
			return true, err
		}
		tried.note(s.cfg.Name, err, r.changes && uncertain(err))
	}
	asked := map[string]bool{s.cfg.Name: true}
	for queue := s.servers(); len(queue) > 0 && ctx.Err() == nil; {
		m := queue[0]
		queue = queue[1:]
		if asked[m.Name] {
			continue
		}
		asked[m.Name] = true
		err := s.ask(ctx, m, r)
		if isAnswer(err) {
			s.remember(m.Name)
			return true, received(err)
		}
		redirect, ok := detail[*peerv1.NotLeader](err)
		tried.note(m.Name, received(err), r.changes && (!ok || redirect.GetUncertain()))
		if next := redirect.GetLeader(); ok && !asked[next] {
			queue = slices.Insert(queue, 0, s.find(queue, next, redirect.GetAddress())...)
		}
	}
	return false, nil
}

// isAnswer says that another server would say the same.
func isAnswer(err error) bool {
	if _, ok := detail[*peerv1.Answer](err); ok || err == nil {
		return true
	}
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.ResourceExhausted, codes.Unimplemented:
		return true
	default:
		return false
	}
}

// ask asks one server.
func (s *Servers) ask(ctx context.Context, m Member, r request) error {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	conn, err := s.cfg.Dialer.Conn(m.Addr, m.Name, pki.Server)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return r.there(s.cfg.Secret.with(ctx), service{peerv1.NewServersServiceClient(conn), conn})
}

// servers are all in the order in which they are asked: the one that answered last, or
// leads as far as this server knows, then the others in any order.
func (s *Servers) servers() []Member {
	all := s.cfg.Servers()
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	s.mu.Lock()
	first := s.leader
	s.mu.Unlock()
	if l := s.cfg.Local; l != nil {
		if name := l.Ledger.Stats().LeaderName; name != "" {
			first = name
		}
	}
	if at := slices.IndexFunc(all, func(m Member) bool { return m.Name == first }); at > 0 {
		all[0], all[at] = all[at], all[0]
	}
	return all
}

// find is the server of that name: one of those that are known, or at the address that
// another one told.
func (s *Servers) find(known []Member, name, addr string) []Member {
	if at := slices.IndexFunc(known, func(m Member) bool { return m.Name == name }); at >= 0 {
		return known[at : at+1 : at+1]
	}
	if name == "" || addr == "" {
		return nil
	}
	return []Member{{Name: name, Addr: addr, Server: true}}
}

// Leader is the server that leads, as far as this agent knows, or any server; false where
// none is known.
func (s *Servers) Leader() (Member, bool) {
	all := s.servers()
	if len(all) == 0 {
		return Member{}, false
	}
	return all[0], true
}

// LeaderName is the server that answered as the leader last; empty: none has yet.
func (s *Servers) LeaderName() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leader
}

// Forget takes back that the server at an address leads: who is asked next is any of them, until
// one answers as the leader.
func (s *Servers) Forget(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.cfg.Servers() {
		if m.Addr == addr && m.Name == s.leader {
			s.leader = ""
		}
	}
}

func (s *Servers) remember(leader string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leader = leader
}

// attempts are what became of asking the servers.
type attempts struct {
	why       map[string]error // by server, the last
	uncertain bool
}

func (a *attempts) note(server string, why error, uncertain bool) {
	a.why[server] = why
	a.uncertain = a.uncertain || uncertain
}

// err is the error when the caller does not wait any longer.
func (a *attempts) err(cause error) error {
	is := cluster.ErrNotLeader
	what := "no server that leads was reached"
	if a.uncertain {
		is, what = cluster.ErrUncertain, "no server has confirmed it"
	}
	var text []string
	for _, name := range slices.Sorted(maps.Keys(a.why)) {
		text = append(text, fmt.Sprintf("server %q: %v", name, a.why[name]))
	}
	if len(text) == 0 {
		text = []string{"no server is known: see retry_join in the agent's configuration, and: pannier server members"}
	}
	return &unreached{text: what + " (" + strings.Join(text, "; ") + ")", is: []error{is, cause}}
}

// unreached: the caller's context ended before a leader had answered.
type unreached struct {
	text string
	is   []error
}

func (e *unreached) Error() string { return e.text + ": " + e.is[1].Error() }

func (e *unreached) Unwrap() []error { return e.is }

// GRPCStatus tells callers that look at codes that it is worth another try.
func (e *unreached) GRPCStatus() *status.Status {
	if errors.Is(e.is[1], context.Canceled) {
		return status.New(codes.Canceled, e.Error())
	}
	return status.New(codes.Unavailable, e.Error())
}
