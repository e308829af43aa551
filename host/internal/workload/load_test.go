package workload

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// Many workloads share few volumes. The fakes check at each call that nothing is staged twice, unstaged while it is
// published, or released while it is mounted.
func TestManyWorkloadsOnFewVolumes(t *testing.T) {
	h := newHost(t)
	const volumes, workloads, rounds = 8, 32, 3
	for n := range volumes {
		h.volume(t, []string{full, staged, plain}[n%3], fmt.Sprint("v", n))
	}
	ctx := t.Context()
	var wg sync.WaitGroup
	for n := range workloads {
		rng := rand.New(rand.NewPCG(1, uint64(n)))
		wg.Go(func() {
			for range rounds {
				var use []string
				for _, v := range rng.Perm(volumes)[:1+rng.IntN(3)] {
					use = append(use, fmt.Sprint("v", v))
				}
				s := spec(fmt.Sprint("w", n), use...)
				if w, err := h.Start(ctx, s, Options{}); err != nil || w.State != Running {
					t.Errorf("start %s: %s, %v", s.ID, w.State, err)
					return
				}
				for _, m := range h.mountsOf(s.ID) {
					if at(m.HostPath) == nil {
						t.Errorf("%s runs and %s is not mounted", s.ID, m.HostPath)
					}
				}
				if w, err := h.Stop(ctx, s.WorkloadRef, "the test stops it", nil); err != nil || w.State != Stopped {
					t.Errorf("stop %s: %s, %v", s.ID, w.State, err)
					return
				}
			}
		})
	}
	wg.Wait()
	h.clean(t)
}

func (h *host) mountsOf(id string) []MountPoint {
	w, _ := h.Get(ref(id))
	return w.Mounts
}

func TestOldestEndedWorkloadsAreForgotten(t *testing.T) {
	h := newHost(t)
	for n := range maxEnded + 3 {
		i := newInstance(record{Spec: spec(fmt.Sprint("old", n)), State: Stopped}, nil)
		i.endedAt = i.endedAt.AddDate(2000, 0, n)
		h.known.workloads[i.ref] = i
	}
	h.start(t, spec("w"))
	if n := len(h.List()); n != maxEnded+1 {
		t.Errorf("%d workloads are remembered, want %d and the one that runs", n, maxEnded)
	}
	for n, want := range map[int]bool{0: false, 2: false, 3: true, maxEnded + 2: true} {
		if _, err := h.Get(ref(fmt.Sprint("old", n))); (err == nil) != want {
			t.Errorf("the %dth that ended is remembered: %t", n, !want)
		}
	}
}
