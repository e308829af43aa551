package route

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

var errRefused = errors.New("the ledger refuses it")

// world is a cluster of the servers a, b and c from the point of view of agent "a".
type world struct {
	*Router
	gossip []Member // the servers that it knows
	leader string   // who answers; empty: nobody
	knows  string   // whom "a" takes for the leader
	hint   string   // whom the servers take for the leader
	asked  []string // servers, in order
	// unreached are the servers that do not answer.
	unreached map[string]bool
	err       error // the leader's answer
}

func newWorld() *world {
	w := &world{gossip: []Member{{Name: "a", Addr: "a:1"}, {Name: "b", Addr: "b:1"}, {Name: "c", Addr: "c:1"}}}
	w.Router = New(Config{
		Name: "a", Servers: func() []Member { return slices.Clone(w.gossip) },
		Probe: func(_ context.Context, m Member) error {
			return w.ask("probe "+m.Name, m.Name)
		},
	})
	w.SetLocal(w)
	return w
}

// Leader reports true for "a" even after it was deposed, until it knows.
func (w *world) Leader() bool { return w.knows == "a" }

func (w *world) Stats() cluster.Stats { return cluster.Stats{LeaderName: w.knows} }

func (w *world) Voters() ([]string, error) { return []string{"a", "b", "c"}, nil }

func (w *world) ask(what, server string) error {
	w.asked = append(w.asked, what)
	if w.leader != server {
		return &NotLeader{
			Unreached: w.unreached[server], Leader: Member{Name: w.hint, Addr: w.hint + ":1"}, Uncertain: true,
			Err: errors.New(server + " does not lead"),
		}
	}
	return w.err
}

func (w *world) do(ctx context.Context, c Call) error {
	w.asked = nil
	c.Here = func(context.Context) error { return w.ask("here", "a") }
	c.There = func(_ context.Context, m Member) error { return w.ask(m.Name, m.Name) }
	return w.Do(ctx, c)
}

// TestForgedLeaves: gossip, which can be forged, says that all servers have left.
func TestForgedLeaves(t *testing.T) {
	w := newWorld()
	w.leader = "c"
	check.NoError(t, w.do(t.Context(), Call{}))
	w.gossip = nil
	if err := w.do(t.Context(), Call{Search: time.Millisecond}); err != nil || !slices.Equal(w.asked, []string{"c"}) {
		t.Errorf("asked %q: %v", w.asked, err)
	}
	w.leader = "b" // and c has left indeed
	if err := w.do(t.Context(), Call{Search: time.Millisecond}); err == nil {
		t.Errorf("asked %q: %v", w.asked, err)
	}
	w.gossip = []Member{{Name: "b", Addr: "b:1"}}
	if err := w.do(t.Context(), Call{}); err != nil || !slices.Equal(w.asked, []string{"b"}) {
		t.Errorf("asked %q: %v", w.asked, err)
	}
}

func TestDo(t *testing.T) {
	for name, row := range map[string]struct {
		leader, knows, hint string
		want                []string
	}{
		"here":                      {leader: "a", knows: "a", want: []string{"here"}},
		"there":                     {leader: "c", knows: "c", want: []string{"c"}},
		"deposed while it answered": {leader: "c", knows: "a", hint: "c", want: []string{"here", "c"}},
		"redirected":                {leader: "c", knows: "b", hint: "c", want: []string{"b", "c"}},
		"redirected to a stranger":  {leader: "d", knows: "b", hint: "d", want: []string{"b", "d"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.leader, w.knows, w.hint, w.err = row.leader, row.knows, row.hint, errRefused
			err := w.do(t.Context(), Call{})
			if got := w.asked; !slices.Equal(got, row.want) {
				t.Errorf("asked %q, want %q", got, row.want)
			}
			if !errors.Is(err, errRefused) {
				t.Errorf("the leader's answer: %v", err)
			}
		})
	}
}

// A call that cannot be repeated is made once, after the leader was found.
func TestDoOnce(t *testing.T) {
	w := newWorld()
	w.leader, w.hint = "c", "c"
	check.NoError(t, w.do(t.Context(), Call{Once: true}))
	if got := strings.Join(w.asked, ","); got != "probe c,c" && got != "probe b,probe c,c" {
		t.Errorf("asked %s", got)
	}
	w.knows = "b" // and no longer leads
	w.cfg.Probe = nil
	if err := w.do(t.Context(), Call{Once: true}); !errors.Is(err, ErrNoLeader) || !slices.Equal(w.asked, []string{"b"}) {
		t.Errorf("asked %q: %v", w.asked, err)
	}
}

// A call is retried until a leader answers, which may be this agent; a plain agent remembers who did.
func TestDoRetriesOverAnElection(t *testing.T) {
	for _, next := range []string{"a", "b"} {
		w := newWorld()
		asked := 0
		check.NoError(t, w.Do(t.Context(), Call{
			Here: func(context.Context) error { return nil },
			There: func(_ context.Context, m Member) error {
				if asked++; asked == 5 {
					w.leader = next
				}
				if w.leader == "a" {
					w.knows = "a"
				}
				return w.ask(m.Name, m.Name)
			},
		}))
		if want := map[string]string{"a": "", "b": "b"}[next]; w.LeaderName() != want {
			t.Errorf("%q is remembered as the leader, want %q", w.LeaderName(), want)
		}
	}
}

// TestPatientCall: while nobody leads, a call that waits for a change asks one server a round, and pauses longer. It
// follows a server that knows the leader at once.
func TestPatientCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asks := func(patient bool) int {
			w := newWorld()
			w.local = nil
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := w.do(ctx, Call{Patient: patient}); !errors.Is(err, command.ErrUncertain) {
				t.Errorf("without a leader: %v", err)
			}
			return len(w.asked)
		}
		others, patient := asks(false), asks(true)
		if patient < 30 || patient > others/6 {
			t.Errorf("in a minute without a leader a patient call asks %d times, another one %d times", patient, others)
		}
		w := newWorld()
		w.local, w.leader, w.hint = nil, "c", "c"
		began := time.Now()
		if err := w.do(t.Context(), Call{Patient: true}); err != nil || time.Since(began) > 0 {
			t.Errorf("asked %q for %v: %v", w.asked, time.Since(began), err)
		}
	})
}

// TestSameServerFirst: while no leader is known, all calls of an agent ask the same server first, until one does not
// answer.
func TestSameServerFirst(t *testing.T) {
	w := newWorld()
	w.local = nil
	first := w.Servers()[0].Name
	for range 100 {
		if got := w.Servers()[0].Name; got != first {
			t.Fatalf("asks %s first, and then %s", first, got)
		}
	}
	w.unreached = map[string]bool{"a": true, "b": true, "c": true}
	seen := map[string]bool{}
	for range 100 {
		if err := w.do(t.Context(), Call{Search: time.Nanosecond}); err == nil {
			t.Fatal("nobody answers, and there is no error")
		}
		seen[w.Servers()[0].Name] = true
	}
	if len(seen) != 3 {
		t.Errorf("servers that do not answer: only %v are ever asked first", seen)
	}
}

func TestDoWithoutALeader(t *testing.T) {
	w := newWorld()
	err := w.do(t.Context(), Call{Search: 300 * time.Millisecond})
	if !errors.Is(err, command.ErrUncertain) || !errors.Is(err, ErrNoLeader) || status.Code(err) != codes.Unavailable ||
		!strings.Contains(err.Error(), `server "c": c does not lead`) {
		t.Errorf("the search is over: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.do(ctx, Call{}); !errors.Is(err, context.Canceled) || status.Code(err) != codes.Canceled {
		t.Errorf("the caller has left: %v", err)
	}
}

// TestSilence: without a majority the error names the voters that do not answer, also one that gossip has forgotten.
func TestSilence(t *testing.T) {
	w := newWorld()
	fails := func() string { return w.do(t.Context(), Call{Search: time.Millisecond}).Error() }
	w.unreached = map[string]bool{"b": true}
	if got := fails(); strings.Contains(got, "voters") {
		t.Errorf("with a majority: %s", got)
	}
	w.gossip = w.gossip[:2]
	const want = "2 of 3 voters do not answer: b, c; docs/operations/disaster-recovery.md"
	if got := fails(); !strings.Contains(got, want) {
		t.Errorf("without one: %s", got)
	}
	w.local = nil
	if got := fails(); !strings.Contains(got, "1 of 2 servers do not answer: b; docs/operations/disaster-recovery.md") {
		t.Errorf("on a node: %s", got)
	}
}
