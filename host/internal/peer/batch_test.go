package peer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
)

// Commands that are sent together succeed or fail individually.
func TestCommandsGoTogether(t *testing.T) {
	w := form(t, 1, "one")
	one := w.agents["one"]
	one.register(t)
	const n = 100
	var volumes []claim.Volume
	for i := range n {
		volumes = append(volumes, w.volume(t, fmt.Sprint("v", i), "d"))
	}
	_, err := one.client().StartWorkload(within(t), claim.Run{Ref: ref("holder"), Node: "one"},
		[]claim.Claim{wants(volumes[7])})
	must(t, err)

	results := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			node := "one"
			if i == 8 {
				node = "two"
			}
			_, results[i] = one.client().StartWorkload(within(t), claim.Run{Ref: ref(fmt.Sprint("w", i)), Node: node},
				[]claim.Claim{wants(volumes[i])})
		})
	}
	wg.Wait()
	for i, err := range results {
		switch {
		case i == 7 && errors.Is(err, claim.ErrHeld):
		case i == 8 && errors.Is(err, ErrDenied) && status.Code(err) == codes.PermissionDenied:
		case i != 7 && i != 8 && err == nil:
		default:
			t.Errorf("workload %d: %v", i, err)
		}
	}
	on, _, err := one.client().OnNode(within(t), "one", command.Blocking{})
	if err != nil || len(on.Claims) != n-1 {
		t.Errorf("%d claims, %v", len(on.Claims), err)
	}
}

// slow is a server that answers when the test says so.
type slow struct {
	peerv1.ServersServiceClient
	calls  chan [][]byte
	answer chan error
}

func (s *slow) Apply(_ context.Context, req *peerv1.ApplyRequest, _ ...grpc.CallOption) (*peerv1.ApplyResponse, error) {
	s.calls <- req.GetEntries()
	err := <-s.answer
	resp := &peerv1.ApplyResponse{}
	for _, e := range req.GetEntries() {
		resp.Applied = append(resp.Applied, &peerv1.Applied{Outcome: append([]byte("done "), e...)})
	}
	return resp, err
}

// Commands that arrive while two calls are running wait for the next call. It does not contain commands whose
// callers have given up. An error of a call is returned for all of its commands.
func TestBatches(t *testing.T) {
	s := &slow{calls: make(chan [][]byte), answer: make(chan error)}
	b := newBatcher("one", func(ctx context.Context) context.Context { return ctx })
	to := service{s, &grpc.ClientConn{}}
	type result struct {
		outcome string
		err     error
	}
	results := make(chan result, 10)
	send := func(ctx context.Context, entry string) {
		outcome, err := b.apply(ctx, to, []byte(entry))
		results <- result{string(outcome), err}
	}
	for _, first := range []string{"a", "b"} {
		go send(t.Context(), first)
		if got := <-s.calls; len(got) != 1 || string(got[0]) != first {
			t.Fatalf("the call carries %q, not %s", got, first)
		}
	}
	leaving, leave := context.WithCancel(t.Context())
	for i, ctx := range []context.Context{t.Context(), leaving, t.Context()} {
		go send(ctx, fmt.Sprint(i))
		await(t, b, func() bool { return len(b.to[to.conn].waiting) == i+1 })
	}
	leave()
	if r := <-results; status.Code(r.err) != codes.Canceled {
		t.Errorf("who left got %+v", r)
	}
	s.answer <- nil
	if r := <-results; r.err != nil || r.outcome != "done a" && r.outcome != "done b" {
		t.Errorf("%+v", r)
	}
	if got := <-s.calls; len(got) != 2 || string(got[0]) != "0" || string(got[1]) != "2" {
		t.Errorf("the next call carries %q", got)
	}
	for range 2 {
		s.answer <- status.Error(codes.Unavailable, "away")
	}
	for range 3 {
		if r := <-results; status.Code(r.err) != codes.Unavailable {
			t.Errorf("%+v", r)
		}
	}
	await(t, b, func() bool { return len(b.to) == 0 })
}

// await waits until a condition on the waiting commands is true.
func await(t *testing.T, b *batcher, is func() bool) {
	t.Helper()
	for ctx := within(t); ctx.Err() == nil; runtime.Gosched() {
		b.mu.Lock()
		done := is()
		b.mu.Unlock()
		if done {
			return
		}
	}
	t.Fatal("it never was so")
}
