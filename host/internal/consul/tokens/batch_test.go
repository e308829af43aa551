package tokens

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/sdk/identity"
)

// batches makes derivations wait for each other: the first ones, one in each call, end when the test lets them.
type batches struct {
	*world
	fake    *fake
	release func()

	all    sync.WaitGroup
	tokens []claim.Token
	got    []outcome // by token
}

type outcome struct {
	derived claim.Token
	secret  string
	err     error
}

// newBatches starts the derivations of workloads w-0 to w-n. All but the first maxCalls wait when it returns.
func newBatches(t *testing.T, n int, within func(workload int) context.Context) *batches {
	t.Helper()
	f := newFake()
	b := &batches{world: newWorld(t, f.ask, minting), fake: f, got: make([]outcome, n)}
	held := make(chan struct{})
	b.release = sync.OnceFunc(func() { close(held) })
	f.before["derive"] = func(ctx context.Context) {
		select {
		case <-held:
		case <-ctx.Done():
		}
	}
	t.Cleanup(b.all.Wait)
	t.Cleanup(b.release)
	for i := range n {
		b.tokens = append(b.tokens, b.start(fmt.Sprintf("w-%d", i), "a", "default", "web")[0])
	}
	for i := range n {
		b.all.Go(func() {
			got := &b.got[i]
			got.derived, got.secret, got.err = b.Derive(within(i), b.tokens[i])
		})
		if i < maxCalls {
			b.await(t, "a call", func() bool { return f.count("derive") == i+1 })
		} else {
			b.await(t, "one that waits", func() bool { return b.waits() == i-maxCalls+1 })
		}
	}
	return b
}

// await polls for what has no other sign.
func (b *batches) await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("no %s within %s", what, patience)
		}
	}
}

// change changes the plugin while it is called.
func (b *batches) change(how func(f *fake)) {
	b.fake.mu.Lock()
	defer b.fake.mu.Unlock()
	how(b.fake)
}

func (b *batches) waits() int {
	q := b.derivations["default"]
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// check checks the outcomes but those of some workloads: each has its own token.
func (b *batches) check(t *testing.T, except ...int) {
	t.Helper()
	b.all.Wait()
	for i, got := range b.got {
		if len(except) > 0 && i == except[0] {
			except = except[1:]
			continue
		}
		if id := b.tokens[i].ID; got.err != nil || got.derived.Accessor != id || got.secret != "secret-of-"+id ||
			got.derived.Workload != b.tokens[i].Workload {
			t.Errorf("%s has %+v, %v", b.tokens[i].Workload, got.derived, got.err)
		}
	}
}

// TestWhatWaitsSharesACall checks that each workload gets its own token, and how many calls that takes.
func TestWhatWaitsSharesACall(t *testing.T) {
	const n = maxCalls + maxBatch + 5
	b := newBatches(t, n, func(int) context.Context { return t.Context() })
	b.release()
	b.check(t)
	if calls := b.fake.count("batch"); calls < 2 || calls > maxCalls {
		t.Errorf("%d batches", calls)
	}
	if calls := b.fake.count("derive"); calls != n {
		t.Errorf("%d derivations", calls)
	}
}

// TestOneOfABatchFails checks that the others have their tokens.
func TestOneOfABatchFails(t *testing.T) {
	const n, bad = maxCalls + 4, maxCalls + 1
	b := newBatches(t, n, func(int) context.Context { return t.Context() })
	b.change(func(f *fake) { f.refuses = b.tokens[bad].ID })
	b.release()
	b.check(t, bad)
	if err := b.got[bad].err; status.Code(err) != codes.PermissionDenied {
		t.Errorf("the one that is refused: %v", err)
	}
	if b.inDoubt(b.tokens[bad].ID) {
		t.Error("what is refused for certain is in doubt")
	}
}

// TestOneOfABatchIsCancelled checks that its caller does not wait for the others, nor they for it.
func TestOneOfABatchIsCancelled(t *testing.T) {
	const n, early, late = maxCalls + 4, maxCalls + 1, maxCalls + 2
	var ctxs [n]context.Context
	var cancels [n]context.CancelFunc
	for i := range n {
		ctxs[i], cancels[i] = context.WithCancel(t.Context())
		t.Cleanup(cancels[i])
	}
	b := newBatches(t, n, func(i int) context.Context { return ctxs[i] })
	cancels[early]() // while it waits
	b.await(t, "end of the one that waited", func() bool { return b.inDoubt(b.tokens[early].ID) })

	asked, answer := make(chan struct{}), make(chan struct{})
	b.change(func(f *fake) {
		f.before["batch"] = func(context.Context) {
			close(asked)
			<-answer
		}
	})
	b.release()
	<-asked
	cancels[late]() // while it is in a call
	b.await(t, "end of the one in a call", func() bool { return b.inDoubt(b.tokens[late].ID) })
	close(answer)
	b.check(t, early, late)
	for _, i := range []int{early, late} {
		if err := b.got[i].err; status.Code(err) != codes.Canceled || !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled one: %v", err)
		}
	}
	if has := b.fake.has("default"); len(has) != n-1 {
		t.Errorf("%d tokens are made; one was never asked for", len(has))
	}
}

// TestABatchEndsWithItsCallers checks that a call is cancelled when nobody waits for it.
func TestABatchEndsWithItsCallers(t *testing.T) {
	const n = maxCalls + 3
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := newBatches(t, n, func(i int) context.Context {
		if i < maxCalls {
			return t.Context()
		}
		return ctx
	})
	asked, ended := make(chan struct{}), make(chan struct{})
	b.change(func(f *fake) {
		f.before["batch"] = func(ctx context.Context) {
			close(asked)
			<-ctx.Done()
			close(ended)
		}
	})
	b.release()
	<-asked
	cancel()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the call goes on")
	}
}

// TestTheContextOfACall checks that it ends with the last of the callers, not with the first.
func TestTheContextOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batch []*derivation
		var cancels []context.CancelFunc
		for n := range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n+1)*time.Hour)
			t.Cleanup(cancel)
			batch, cancels = append(batch, &derivation{ctx: ctx}), append(cancels, cancel)
		}
		ctx, cancel := callOf(batch)
		defer cancel()
		if ends, bounded := ctx.Deadline(); !bounded || time.Until(ends) != 3*time.Hour {
			t.Errorf("it ends at %s, %t", ends, bounded)
		}
		cancels[1]()
		cancels[2]()
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("it has ended, and one caller waits")
		}
		cancels[0]()
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("nobody waits, and it goes on")
		}
		unbounded, end := callOf(append(batch, &derivation{ctx: t.Context()}))
		defer end()
		if ends, bounded := unbounded.Deadline(); bounded {
			t.Errorf("one has no deadline, and it ends at %s", ends)
		}
	})
}

// TestABatchFails checks that all derivations of a call that fails have its error.
func TestABatchFails(t *testing.T) {
	const n = maxCalls + 3
	b := newBatches(t, n, func(int) context.Context { return t.Context() })
	b.change(func(f *fake) { f.fail["batch"] = status.Error(codes.Internal, "gave 2 results for 3 requests") })
	b.release()
	b.all.Wait()
	for i, got := range b.got {
		if i < maxCalls {
			continue
		}
		if status.Code(got.err) != codes.Internal || !strings.Contains(got.err.Error(), "gave 2 results") ||
			got.secret != "" || !b.inDoubt(b.tokens[i].ID) {
			t.Errorf("got %+v, %v", got.derived, got.err)
		}
	}
}

// TestAPluginWithoutBatches checks that it is asked for each token by itself.
func TestAPluginWithoutBatches(t *testing.T) {
	const n, bad = maxCalls + 4, maxCalls + 2
	b := newBatches(t, n, func(int) context.Context { return t.Context() })
	b.change(func(f *fake) { f.fail["batch"] = status.Error(codes.Unimplemented, "unknown method DeriveBatch") })
	b.change(func(f *fake) { f.refuses = b.tokens[bad].ID })
	b.release()
	b.check(t, bad)
	if err := b.got[bad].err; status.Code(err) != codes.PermissionDenied {
		t.Errorf("the one that is refused: %v", err)
	}
}

// TestTheTokenOfAnother checks that a workload does not get it, even if the plugin says that it is the one.
func TestTheTokenOfAnother(t *testing.T) {
	f := newFake()
	w := newWorld(t, f.ask, minting)
	theirs := w.start("theirs", "a", "default", "web")[0]
	w.derive(theirs)
	token := w.start("own", "a", "default", "web")[0]
	w.Authority.derivations["default"].plugin = func(ctx context.Context,
		fn func(context.Context, identity.Client) error,
	) error {
		return fn(ctx, only{token: f.tokens["default"][theirs.ID]})
	}
	if _, secret, err := w.Derive(w.within(), token); status.Code(err) != codes.Internal || secret != "" ||
		!strings.Contains(err.Error(), "of workload default/theirs") {
		t.Errorf("got %v", err)
	}
	if has := f.has("default"); len(has) != 1 {
		t.Errorf("the other's token is gone: %v", has)
	}
}
