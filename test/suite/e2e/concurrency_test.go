package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// storm is 64 workloads that start and stop concurrently on 32 volumes. Half of the volumes allow one user at
// a time, half are shared.
type storm struct {
	h    *testhost.Host
	d    *faultydriver.Driver
	c    *api.Client
	seed uint64

	started, refused atomic.Int64
}

const (
	stormWorkloads = 64
	stormVolumes   = 32
)

func newStorm(t *testing.T) *storm {
	t.Helper()
	h, d, _ := faulty(t)
	s := &storm{h: h, d: d, c: h.Client(), seed: rand.Uint64()}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the seed of the storm was %d", s.seed)
		}
	})
	all := cases{t: t}
	for n := range stormVolumes {
		all.run("register", func() error { return register(t.Context(), s.c, d, volumeName(n), access(n)) })
	}
	all.wg.Wait()
	return s
}

func volumeName(n int) string { return fmt.Sprintf("v%d", n) }

func access(n int) string {
	if n%2 == 0 {
		return "single-node-single-writer"
	}
	return "single-node-multi-writer"
}

// rounds lets every workload repeatedly start with one to three volumes and stop. Calls that fail because the
// agent is down are repeated.
func (s *storm) rounds(ctx context.Context, rounds int) error {
	var wg sync.WaitGroup
	errs := make([]error, stormWorkloads)
	for n := range stormWorkloads {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(s.seed, uint64(n)))
			for range rounds {
				if errs[n] = s.round(ctx, fmt.Sprintf("w%d", n), r); errs[n] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s *storm) round(ctx context.Context, workload string, r *rand.Rand) error {
	var volumes []string
	for _, n := range r.Perm(stormVolumes)[:1+r.IntN(3)] {
		volumes = append(volumes, volumeName(n))
	}
	err := s.persist(ctx, func() error { return start(ctx, s.c, workload, volumes...) })
	switch {
	case connect.CodeOf(err) == connect.CodeFailedPrecondition && strings.Contains(err.Error(), "held by"):
		s.refused.Add(1)
		return nil
	case err != nil:
		return fmt.Errorf("start %s with %q: %w", workload, volumes, err)
	}
	s.started.Add(1)
	err = s.persist(ctx, func() error { return stop(ctx, s.c, workload) })
	if connect.CodeOf(err) == connect.CodeNotFound { // it ended while the agent was down
		err = nil
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", workload, err)
	}
	return nil
}

// persist repeats a call while the agent is down.
func (s *storm) persist(ctx context.Context, call func() error) error {
	for {
		err := call()
		if !cutOff(err) || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// cutOff reports whether the agent was down, or went down in the middle of a call.
func cutOff(err error) bool {
	if err == nil {
		return false
	}
	return errors.As(err, new(*api.UnreachableError)) || connect.CodeOf(err) == connect.CodeUnavailable ||
		slices.ContainsFunc([]string{"EOF", "connection reset", "broken pipe"},
			func(s string) bool { return strings.Contains(err.Error(), s) })
}

// watch reads the ledger until the context ends, and returns all violations of its rules.
func (s *storm) watch(ctx context.Context) (forbidden []string) {
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		list, err := s.c.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{})
		if err != nil {
			continue // the agent is down
		}
		for _, v := range list.GetVolumes() {
			exclusive := v.GetSpec().GetCapabilities()[0].GetAccessMode() == "single-node-single-writer"
			if exclusive && len(v.GetClaims()) > 1 {
				forbidden = append(forbidden, fmt.Sprintf("volume %s has the claims %v", v.GetSpec().GetId(), v.GetClaims()))
			}
		}
	}
	return forbidden
}

// run runs the storm, with a fault in the middle of it, and checks every invariant.
func (s *storm) run(t *testing.T, rounds int, meanwhile func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*testhost.Wait)
	defer cancel()
	watching, enough := context.WithCancel(ctx)
	defer enough()
	seen := make(chan []string, 1)
	go func() { seen <- s.watch(watching) }()
	done := make(chan error, 1)
	go func() { done <- s.rounds(ctx, rounds) }()
	meanwhile()
	if err := <-done; err != nil {
		t.Error(err)
	}
	enough()
	if forbidden := <-seen; len(forbidden) > 0 {
		t.Errorf("the ledger showed what it must never show:\n%s", strings.Join(forbidden, "\n"))
	}
	if s.started.Load() == 0 || s.refused.Load() == 0 {
		t.Errorf("%d starts and %d refusals: too few to test anything", s.started.Load(), s.refused.Load())
	}
	t.Logf("%d starts, %d refusals", s.started.Load(), s.refused.Load())
	s.h.NothingInUse()
	lawful(t, s.d)
	for n := range stormVolumes {
		if most := s.d.MostInFlight(volumeName(n)); most > 1 {
			t.Errorf("volume %s had %d calls at one time", volumeName(n), most)
		}
		if at := s.d.AttachedTo(volumeName(n)); len(at) > 0 {
			t.Errorf("volume %s is still attached to %q", volumeName(n), at)
		}
	}
}

// No volume is used by two workloads that must not share it, staged twice, or left behind.
func TestStorm(t *testing.T) {
	t.Parallel()
	s := newStorm(t)
	s.run(t, 3, func() {})
	if again := s.d.Repeats(); len(again) > 0 {
		t.Errorf("without a fault, these were done twice:\n%s", strings.Join(again, "\n"))
	}
}

// A shared volume stays staged across a restart, until its last user stops.
func TestSharedStagingOverARestart(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t)
	c := h.Client()
	must(t, register(t.Context(), c, d, "v", "single-node-multi-writer"))
	users := []string{"a", "b", "c", "d"}
	for _, w := range users {
		must(t, start(t.Context(), c, w, "v"))
	}
	for _, w := range users {
		h.Kill()
		h.Start()
		if n := len(d.Calls("NodeUnstageVolume")); n != 0 {
			t.Errorf("unstaged %d times before %s stopped", n, w)
		}
		must(t, stop(t.Context(), c, w))
	}
	if staged, unstaged := len(d.Calls("NodeStageVolume")), len(d.Calls("NodeUnstageVolume")); staged != 1 ||
		unstaged != 1 {
		t.Errorf("staged %d times and unstaged %d times", staged, unstaged)
	}
	h.NothingInUse()
	lawful(t, d)
}
