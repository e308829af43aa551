package workload

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// timeout bounds every wait of these tests. Nothing is measured by it.
const timeout = 30 * time.Second

// hooks are the labelled calls of the fakes: what happened in which order, and what a test wants to happen at one of
// them. A label is such as "stage:before", or "stage:before data" for only one volume.
type hooks struct {
	mu    sync.Mutex
	log   []string
	rules []*rule
}

type rule struct {
	label     string
	nth, seen int // nth 0: every time
	do        func(ctx context.Context) error
}

func (h *hooks) on(label string, nth int, do func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rules = append(h.rules, &rule{label: label, nth: nth, do: do})
}

// call makes one call of a fake: its effect, and what tests want before and after it.
func (h *hooks) call(ctx context.Context, kind, subject string, effect func() error) error {
	if err := h.reach(ctx, kind+":before", subject); err != nil {
		return err
	}
	if err := effect(); err != nil {
		return err
	}
	h.note(strings.TrimSpace(kind + " " + subject))
	return h.reach(ctx, kind+":after", subject)
}

func (h *hooks) reach(ctx context.Context, label, subject string) error {
	var todo []func(context.Context) error
	h.mu.Lock()
	for _, r := range h.rules {
		if r.label == label || r.label == label+" "+subject {
			if r.seen++; r.nth == 0 || r.seen == r.nth {
				todo = append(todo, r.do)
			}
		}
	}
	h.mu.Unlock()
	for _, do := range todo {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (h *hooks) note(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log = append(h.log, what)
}

// happened returns what the fakes did, in order.
func (h *hooks) happened() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.log)
}

func (h *hooks) count(what string) (n int) {
	for _, s := range h.happened() {
		if s == what {
			n++
		}
	}
	return n
}

// forget drops the rules and the log.
func (h *hooks) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.log, h.rules = nil, nil
}

// fail returns an error with a code: before a call that has done nothing, after one whose effect is uncertain.
func fail(code codes.Code) func(context.Context) error {
	return func(context.Context) error { return status.Error(code, "the test wants it so") }
}

// gate holds a call until the test opens it or the call's context ends.
type gate struct {
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) hold(ctx context.Context) error {
	g.once.Do(func() { close(g.reached) })
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *gate) await(t *testing.T) {
	t.Helper()
	awaitClosed(t, g.reached, "the call that the test holds")
}

func awaitClosed(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(timeout):
		t.Fatalf("waited in vain for %s", what)
	}
}
