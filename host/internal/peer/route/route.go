// Package route sends calls to the server that leads: commands and queries of the ledger, calls between agents
// (package peer), and requests of the API (package apiserver).
//
// What must stay true: a call is answered by a server that still led when it had the answer. Answers of other servers
// are discarded, and the next leader is asked. So every call without Call.Once may be made twice: its caller gives it
// a key, or repeating it does no harm.
package route

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/internal/printable"
)

// The pause after all servers were asked and none led. An election takes about a second, and its winner should be
// found soon after.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 150 * time.Millisecond
	// Of patient calls.
	patientPause, longestPatientPause = 250 * time.Millisecond, time.Second
)

// findTimeout bounds the search for a leader before a call that can be made once only.
const findTimeout = 5 * time.Second

// ErrNoLeader is returned if no server answered as the leader within Call.Search.
var ErrNoLeader = errors.New("no leading server answered: retry (pannier server members shows the servers)")

// Member is an agent as serf knows it.
type Member struct {
	Name   string
	Addr   string // host:port of its rpc port
	Server bool   // it keeps the ledger
}

// Local is this agent's own server (*cluster.Node).
type Local interface {
	// Leader reports whether it leads.
	Leader() bool
	// Stats say who leads.
	Stats() cluster.Stats
	// Voters are the servers. A majority of them must answer.
	Voters() ([]string, error)
}

// Config is what a Router works with.
type Config struct {
	Name string // this agent's
	// Servers lists the cluster's servers, as serf knows them.
	Servers func() []Member
	// Transport sends requests of the API to servers at https:// and Member.Addr.
	Transport http.RoundTripper
	// Probe asks a server something that only the leader answers. It returns the errors of Call.There.
	Probe func(ctx context.Context, m Member) error
}

// Router finds the server that leads. It is safe for concurrent use and starts no goroutine.
type Router struct {
	cfg Config

	mu     sync.Mutex
	local  Local        // nil: this agent is no server, or not ready to answer calls
	leader Member       // the server that answered last
	order  maphash.Seed // of the servers, while no leader is known
}

// New makes a Router.
func New(cfg Config) *Router { return &Router{cfg: cfg, order: maphash.MakeSeed()} }

// SetLocal makes this agent's own server answer calls while it leads.
func (r *Router) SetLocal(l Local) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.local = l
}

// Leads reports whether this agent's own server leads.
func (r *Router) Leads() bool {
	r.mu.Lock()
	l := r.local
	r.mu.Unlock()
	return l != nil && l.Leader()
}

// LeaderName returns the server that last answered as the leader; empty: none has yet.
func (r *Router) LeaderName() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader.Name
}

// Transport sends requests of the API to servers.
func (r *Router) Transport() http.RoundTripper { return r.cfg.Transport }

// Call is something that only the leader answers.
type Call struct {
	// Here makes the call on this agent's own server, which leads; There on another one. Their error is the answer,
	// unless it is a *NotLeader.
	Here  func(ctx context.Context) error
	There func(ctx context.Context, m Member) error
	// Timeout bounds each There; 0: only ctx does.
	Timeout time.Duration
	// Search bounds the search for a leader after the call has failed; 0: only ctx does.
	Search time.Duration
	// Once is true if There must not be repeated, so the leader is found first.
	Once bool
	// Patient is true if the call was waiting for a change, as each node of a cluster does. If the leader is lost, one
	// server at a time is asked, with longer pauses, so that elections and heartbeats do not wait for thousands of nodes.
	Patient bool
}

// NotLeader is the error of a server that did not answer a call because it does not lead, or was not reached.
type NotLeader struct {
	// Leader is the leader as far as the server knows; empty: it does not know.
	Leader Member
	// Uncertain is true if the call may have had its effect nevertheless.
	Uncertain bool
	// Unreached is true if the server did not answer at all.
	Unreached bool
	Err       error
}

func (e *NotLeader) Error() string { return e.Err.Error() }

func (e *NotLeader) Unwrap() error { return e.Err }

// Do makes a call on the leader, and repeats it across elections until ctx ends or Call.Search is over. If no leader
// answered, the error is command.ErrNotLeader, or command.ErrUncertain if the call may have had its effect.
func (r *Router) Do(ctx context.Context, c Call) error {
	if c.Once && r.cfg.Probe != nil {
		find := Call{
			Here: func(context.Context) error { return nil }, There: r.cfg.Probe, Timeout: findTimeout,
			Search: findTimeout,
		}
		if err := r.Do(ctx, find); err != nil {
			return err
		}
	}
	pause := &backoff.ExponentialBackOff{
		InitialInterval: firstPause, MaxInterval: longestPause, Multiplier: 2,
		RandomizationFactor: 0.5,
	}
	if c.Patient {
		pause.InitialInterval, pause.MaxInterval = patientPause, longestPatientPause
	}
	pause.Reset()
	var giveUp time.Time
	tried := &attempts{why: map[string]error{}, answered: map[string]bool{}}
	for {
		// Each server is asked once, the most likely leader first.
		queue := r.Servers()
		if r.Leads() {
			err := c.Here(ctx)
			if !tried.note(r.cfg.Name, err) {
				return err
			}
			queue = slices.Insert(queue, 0, find(queue, tried.last.Leader)...)
		}
		asked := map[string]bool{r.cfg.Name: true}
		for len(queue) > 0 && ctx.Err() == nil {
			m := queue[0]
			queue = queue[1:]
			if asked[m.Name] {
				continue
			}
			asked[m.Name] = true
			attempt, cancel := ctx, func() {}
			if c.Timeout > 0 {
				attempt, cancel = context.WithTimeout(ctx, c.Timeout)
			}
			err := c.There(attempt, m)
			cancel()
			if !tried.note(m.Name, err) {
				r.setLeader(m)
				return err
			}
			r.invalidateLeader(m.Name, tried.last.Unreached)
			next := tried.last.Leader
			if c.Once || c.Patient && next.Name == "" {
				break
			}
			if !asked[next.Name] {
				queue = slices.Insert(queue, 0, find(queue, next)...)
			}
		}
		next := time.Now().Add(pause.NextBackOff())
		if giveUp.IsZero() {
			giveUp = time.Now().Add(c.Search)
		}
		if ctx.Err() == nil && (c.Once || c.Search > 0 && next.After(giveUp)) {
			return tried.err(ErrNoLeader, r.silence(tried))
		}
		select {
		case <-ctx.Done():
			return tried.err(context.Cause(ctx), r.silence(tried))
		case <-time.After(time.Until(next)):
		}
	}
}

// find returns the server that another one considers the leader: a known one, or else at the address that was given
// with its name.
func find(known []Member, leader Member) []Member {
	if at := slices.IndexFunc(known, func(m Member) bool { return m.Name == leader.Name }); at >= 0 {
		return known[at : at+1 : at+1]
	}
	if leader.Name == "" || leader.Addr == "" {
		return nil
	}
	return []Member{{Name: leader.Name, Addr: leader.Addr, Server: true}}
}

// Servers lists all known servers: first the leader as far as this agent knows, then the others in random order. The
// one that answered last stays, whatever gossip says of it, until it does not answer. The order changes with each
// server that does not answer: until then all calls ask the same one first, so an agent that starts connects to few.
func (r *Router) Servers() []Member {
	all := r.cfg.Servers()
	r.mu.Lock()
	leader, local, order := r.leader, r.local, r.order
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b Member) int {
		return cmp.Compare(maphash.String(order, a.Name), maphash.String(order, b.Name))
	})
	if leader.Name != "" && !slices.ContainsFunc(all, func(m Member) bool { return m.Name == leader.Name }) {
		all = append(all, leader)
	}
	first := leader.Name
	if local != nil {
		if name := local.Stats().LeaderName; name != "" {
			first = name
		}
	}
	if at := slices.IndexFunc(all, func(m Member) bool { return m.Name == first }); at > 0 {
		all[0], all[at] = all[at], all[0]
	}
	return all
}

func (r *Router) setLeader(m Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = m
}

// invalidateLeader notes that a server did not answer as the leader, or not at all.
func (r *Router) invalidateLeader(name string, unreached bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if unreached {
		r.order = maphash.MakeSeed()
	}
	if r.leader.Name == name {
		r.leader = Member{}
	}
}

// attempts records the servers that did not answer a call as the leader.
type attempts struct {
	why       map[string]error // by server, the last error of each
	answered  map[string]bool  // by server
	uncertain bool
	last      *NotLeader
}

// note records an attempt. It returns false if err, or nil, is the answer.
func (a *attempts) note(server string, err error) bool {
	if !errors.As(err, &a.last) {
		return false
	}
	a.why[server], a.answered[server] = a.last.Err, !a.last.Unreached
	a.uncertain = a.uncertain || a.last.Uncertain
	return true
}

// silence names the voters that did not answer, if no majority did; empty: one did. An agent that is no server does not
// know the voters: it counts the servers.
func (r *Router) silence(a *attempts) string {
	r.mu.Lock()
	local := r.local
	r.mu.Unlock()
	var names, silent []string
	for _, m := range r.cfg.Servers() {
		names = append(names, m.Name)
	}
	kind := "server"
	if local != nil {
		if voters, err := local.Voters(); err == nil {
			names, kind = voters, "voter"
		}
	}
	for _, name := range names {
		if name != r.cfg.Name && !a.answered[name] {
			silent = append(silent, name)
		}
	}
	if 2*len(silent) < len(names) || len(silent) == 0 {
		return ""
	}
	slices.Sort(silent)
	return fmt.Sprintf("%d of %s do not answer: %s; docs/operations/disaster-recovery.md", len(silent),
		printable.Count(len(names), kind), strings.Join(silent, ", "))
}

// err is the error of a search that found no leader. silence is why, if it is known.
func (a *attempts) err(cause error, silence string) error {
	is, what := command.ErrNotLeader, "no leading server was reached"
	if a.uncertain {
		is, what = command.ErrUncertain, "no server has confirmed it"
	}
	var text []string
	for _, name := range slices.Sorted(maps.Keys(a.why)) {
		text = append(text, fmt.Sprintf("server %q: %v", name, a.why[name]))
	}
	if len(text) == 0 {
		text = []string{"no server is known: see retry_join in the agent's configuration, and: pannier server members"}
	}
	return &unreachedError{
		text: fmt.Sprintf("%s: %s (%s)", what, cmp.Or(silence, cause.Error()), strings.Join(text, "; ")), is: []error{is, cause},
	}
}

// unreachedError says that no leader answered before the caller stopped waiting.
type unreachedError struct {
	text string
	is   []error
}

func (e *unreachedError) Error() string { return e.text }

func (e *unreachedError) Unwrap() []error { return e.is }

// GRPCStatus tells callers that look at codes that the call may be retried.
func (e *unreachedError) GRPCStatus() *status.Status {
	if errors.Is(e.is[1], context.Canceled) {
		return status.New(codes.Canceled, e.Error())
	}
	return status.New(codes.Unavailable, e.Error())
}
