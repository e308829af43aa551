package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/host/internal/fencing/lease"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/test/lib/check"
)

// guards is a node's lease with its fence, which outlives the host. The lease lasts until a test ends it.
type guards struct {
	*hooks
	file string

	mu    sync.Mutex
	state guardsState
	epoch uint64
	over  bool
}

type guardsState struct {
	Mounts    map[string]fence.Mount
	Processes map[int]fence.Process
}

func openGuards(file string, h *hooks) (*guards, error) {
	g := &guards{
		hooks: h, file: file, epoch: 1,
		state: guardsState{Mounts: map[string]fence.Mount{}, Processes: map[int]fence.Process{}},
	}
	raw, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return nil, err
	}
	return g, json.Unmarshal(raw, &g.state)
}

func (g *guards) change(ctx context.Context, label string, do func(s *guardsState)) error {
	if err := g.reach(ctx, label, ""); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	do(&g.state)
	raw, err := json.Marshal(g.state)
	if err == nil {
		err = os.WriteFile(g.file+".new", raw, 0o600)
	}
	if err == nil {
		err = os.Rename(g.file+".new", g.file)
	}
	return err
}

func (g *guards) Valid() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return fmt.Errorf("%w: the test wants it so", lease.ErrNoLease)
	}
	return nil
}

func (g *guards) Epoch() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.epoch
}

// end ends the lease; renew gives the node another one.
func (g *guards) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
}

func (g *guards) renew() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = false
	g.epoch++
}

func (g *guards) Protect(ctx context.Context, mounts ...fence.Mount) error {
	if err := g.Valid(); err != nil {
		return err
	}
	return g.change(ctx, "protect:before", func(s *guardsState) {
		for _, m := range mounts {
			s.Mounts[m.Path] = m
		}
	})
}

func (g *guards) Release(ctx context.Context, mounts ...fence.Mount) error {
	return g.change(ctx, "unprotect:before", func(s *guardsState) {
		for _, m := range mounts {
			delete(s.Mounts, m.Path)
		}
	})
}

func (g *guards) ProtectProcess(ctx context.Context, p fence.Process) error {
	if err := g.Valid(); err != nil {
		return err
	}
	return g.change(ctx, "protect-process:before", func(s *guardsState) { s.Processes[p.PID] = p })
}

func (g *guards) ReleaseProcess(ctx context.Context, p fence.Process) error {
	return g.change(ctx, "unprotect-process:before", func(s *guardsState) { delete(s.Processes, p.PID) })
}

// guarded returns everything that the fence knows.
func (g *guards) guarded() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := slices.Sorted(maps.Keys(g.state.Mounts))
	for pid := range g.state.Processes {
		all = append(all, fmt.Sprint("process ", pid))
	}
	return all
}

func (g *guards) guards(path string) bool { return slices.Contains(g.guarded(), path) }

// Without a lease no driver is asked to mount, and what was mounted when the lease ended is unmounted.
func TestNothingIsMountedWithoutALease(t *testing.T) {
	for _, at := range []string{"stage:before", "stage:after", "attach:after", "publish:before", "publish:after"} {
		t.Run(at, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			h.on(at, 1, func(context.Context) error { h.fence.end(); return nil })
			w, err := h.Start(t.Context(), spec("w", "a"), Options{})
			if !errors.Is(err, lease.ErrNoLease) || w.State != Failed {
				t.Errorf("%s, %v", w.State, err)
			}
			if next := map[string]string{"attach": "stage a", "stage": "publish a"}[strings.Split(at, ":")[0]]; next != "" &&
				h.count(next) > 0 {
				t.Errorf("the driver was asked: %v", h.happened())
			}
			h.clean(t)
			h.fence.renew()
			h.start(t, spec("w", "a"))
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// The fence guards a mount before the driver is called, and the workload's process before it runs. If the
// fence is unavailable, nothing is started.
func TestNothingBeginsWithoutTheFence(t *testing.T) {
	h, p := newHost(t), runScript(t, false, idle)
	h.volume(t, full, "a")
	h.on("protect:before", 2, fail(codes.Unavailable))
	if _, err := h.Start(t.Context(), spec("w", "a"), Options{}); !errors.Is(err, ErrFailed) || h.count("publish a") > 0 {
		t.Errorf("%v: %v", err, h.happened())
	}
	h.start(t, spec("w", "a"))
	h.on("protect-process:before", 1, fail(codes.Unavailable))
	if err := h.Running(ref("w"), p.pid(), process.Ref{}); err == nil || !strings.Contains(err.Error(), "its process may not begin") {
		t.Errorf("the process may begin: %v", err)
	}
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	if !h.fence.guards(fmt.Sprint("process ", p.pid())) {
		t.Error("the fence does not know the process")
	}
	h.on("unprotect:before", 1, fail(codes.Unavailable)) // is tried again
	h.stop(t, "w")
	h.clean(t)
}

// After a restart the host sends the fence the mounts of the previous process again.
func TestTheFenceIsToldAgainAfterARestart(t *testing.T) {
	h, p := newHost(t), runScript(t, false, idle)
	h.volume(t, full, "a")
	w := h.start(t, spec("w", "a"))
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	want := h.fence.guarded()
	if len(want) != 3 || !h.fence.guards(w.Mounts[0].HostPath) {
		t.Errorf("the fence guards %v", want)
	}
	h = h.next(t)
	h.fence.state = guardsState{Mounts: map[string]fence.Mount{}, Processes: map[int]fence.Process{}} // it is a new one
	h.on("protect:before", 1, fail(codes.Unavailable))
	h.open(t)
	h.eventually(t, "w", "guarded", func(Workload) bool { return slices.Equal(h.fence.guarded(), want) })
	h.stop(t, "w")
	h.clean(t)
}

// The lease was lost and granted again while a workload starts: its claims are compared with the ledger before
// anything is mounted.
func TestLeaseIsLostDuringAStart(t *testing.T) {
	for name, c := range map[string]struct {
		away func(h *host) error
		want error
	}{
		"with the claims": {func(*host) error { return nil }, nil},
		"without the claims": {
			func(h *host) error { return h.ledger.takeAway("w", "") },
			volumesteps.ErrClaimsLost,
		},
		"and the claims are another's": {
			func(h *host) error { return h.ledger.takeAway("w", "there") },
			volumesteps.ErrClaimsLost,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a", exclusive)
			h.on("attach:after", 1, func(context.Context) error {
				h.fence.end()
				h.fence.renew()
				return c.away(h)
			})
			w, err := h.Start(t.Context(), spec("w", "a"), Options{})
			if !errors.Is(err, c.want) || (w.State == Running) != (c.want == nil) {
				t.Errorf("%s, %v", w.State, err)
			}
			if c.want != nil && h.count("stage a")+h.count("publish a") > 0 {
				t.Errorf("the driver was asked: %v", h.happened())
			}
			if c.want == nil {
				h.stop(t, "w")
				h.clean(t)
				return
			}
			h.elsewhere(t, "there", map[string]bool{"and the claims are another's": true}[name])
		})
	}
}

// elsewhere checks whether the workload w runs, with its claim, on another node.
func (h *host) elsewhere(t *testing.T, node string, want bool) {
	t.Helper()
	claims := h.ledger.claims()
	if !want {
		if len(claims) > 0 {
			t.Errorf("claims are left: %+v", claims)
		}
		return
	}
	w, err := h.ledger.workload(ref("w"))
	check.NoError(t, err)
	if w.Status != claim.Running || w.Node != node || len(claims) != 1 || claims[0].State != claim.Taken ||
		claims[0].Node != node {
		t.Errorf("the other's was touched: %+v, %+v", w, claims)
	}
}
