package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/route"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// elsewhere is a leader behind another host's socket. While errs lasts there is no leader.
type elsewhere struct {
	socket string
	mu     sync.Mutex
	errs   int
	lost   int // how many more answers to lose
	here   bool
	asked  []*http.Request
}

func (e *elsewhere) Leader() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.here
}

func (e *elsewhere) Stats() cluster.Stats { return cluster.Stats{} }

func (e *elsewhere) Voters() ([]string, error) { return nil, nil }

// route is another agent's router to the leader.
func (e *elsewhere) route() *route.Router {
	return routeTo(e, reach{route.Member{Name: "leader", Addr: "leader", Server: true}, e})
}

func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	if e.errs > 0 {
		e.errs--
		e.mu.Unlock()
		return nil, errors.New("an election is under way")
	}
	e.asked = append(e.asked, r)
	e.mu.Unlock()
	r = r.Clone(r.Context())
	r.URL.Scheme = "http"
	transport := http.RoundTripper(&http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", e.socket)
		},
	})
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
	h := openHost(t, func(c *parts) { c.Leader = e.route() })
	get := func(read *hostv1.ReadOptions) error {
		_, err := h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "known-to-the-leader", Read: read})
		return err
	}
	check.NoError(t, get(nil))
	if by := e.asked[0].Header.Get(call.ForwardedHeader); !strings.Contains(by, "on n1") || !strings.Contains(by, "uid") {
		t.Errorf("it was passed on for %q", by)
	}
	// Errors of the leader are returned unchanged.
	_, err := h.client.Nodes.GetNode(h.ctx, &hostv1.GetNodeRequest{Name: "nobody"})
	wantError(t, err, connect.CodeNotFound, "nobody")
	// This server answers stale queries itself, and those about its own node.
	wantError(t, get(&hostv1.ReadOptions{Stale: true}), connect.CodeNotFound, "known-to-the-leader")
	asked := len(e.asked)
	_, err = h.client.Agent.Status(h.ctx, &hostv1.StatusRequest{})
	check.NoError(t, err)
	if len(e.asked) != asked {
		t.Error("the node's own was passed on")
	}
	// The call is repeated during an election.
	e.set(func() { e.errs = 3 })
	check.NoError(t, get(nil))
	// It is also repeated when an answer was lost, with the same key.
	e.set(func() { e.asked, e.lost = nil, 1 })
	check.NoError(t, get(nil))
	check.NoError(t, get(nil))
	var calls []string
	for _, r := range e.asked {
		calls = append(calls, r.Header.Get(callHeader))
	}
	if len(calls) != 3 || len(calls[0]) < 26 || calls[0] != calls[1] || calls[1] == calls[2] {
		t.Errorf("two requests, one of them sent twice, were the calls %q", calls)
	}
	// Streams are forwarded.
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel()
	stream := check.Must(h.client.System.Watch(ctx, &hostv1.WatchRequest{Topics: []string{"nodes"}}))(t)
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
	// If this server has become the leader it answers itself.
	e.set(func() { e.here = true })
	wantError(t, get(nil), connect.CodeNotFound, "known-to-the-leader")
}

// A forwarded request is never forwarded again: the agent that forwarded it looks for the leader again.
func TestNoRequestGoesRound(t *testing.T) {
	first, second := &elsewhere{}, &elsewhere{}
	a := openHost(t, func(c *parts) { c.Leader = first.route() })
	b := openHost(t, func(c *parts) { c.Leader = second.route() })
	first.socket, second.socket = b.cfg.Socket, a.cfg.Socket
	done := make(chan error, 1)
	go func() {
		_, err := a.client.Nodes.ListNodes(a.ctx, &hostv1.ListNodesRequest{})
		done <- err
	}()
	check.Eventually(t, "the other was asked more than once", func() bool {
		first.mu.Lock()
		defer first.mu.Unlock()
		return len(first.asked) > 1
	})
	second.set(func() { second.here = true })
	check.NoError(t, <-done)
	if len(second.asked) > 0 {
		t.Error("it came back")
	}
}

func TestARequestThatIsTooLargeIsNotPassedOn(t *testing.T) {
	e := &elsewhere{}
	h := openHost(t, func(c *parts) { c.Leader = e.route() })
	s := spec("v")
	s.Parameters = map[string]string{"big": strings.Repeat("x", maxRequest+1)}
	_, err := h.client.Volumes.CreateVolume(h.ctx, &hostv1.CreateVolumeRequest{Spec: s})
	wantError(t, err, connect.CodeResourceExhausted, "bytes")
	if len(e.asked) > 0 {
		t.Error("it was passed on")
	}
}
