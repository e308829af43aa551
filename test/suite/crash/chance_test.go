package crash

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// chances are random crashes: several workloads that share volumes start and stop in parallel while
// anything is killed at any time. Each case has its seed.
func (p *rigs) chances(t *testing.T, m *matrix) {
	if p.forgets {
		return // its starts may fail, see kind
	}
	for n := range few(8, make([]int, 12)) {
		mine := *seed*1000 + uint64(n)
		m.add(t, fmt.Sprint(mine), fmt.Sprintf("%s: seed %d: three workloads on two volumes, kills at random", family(t),
			mine), func(t *testing.T) {
			p.take(t).chance(t, rand.New(rand.NewPCG(mine, 0)))
		})
	}
}

func (r *rig) chance(t *testing.T, rng *rand.Rand) {
	for _, id := range []string{"one", "two"} {
		r.h.Run("volume", "create", r.writeShared(id))
	}
	before := r.look()
	var specs []string
	for n, sources := range [][]string{{"one"}, {"two", "one"}, {"one", "two"}} {
		specs = append(specs, r.writeSharing(fmt.Sprint("s", n), sources))
	}
	for range 4 {
		r.sideBySide(t, rng, "start", specs)
		r.sideBySide(t, rng, "stop", specs)
	}
	r.equals(t, "after all of them have stopped", before)
	for _, id := range []string{"one", "two"} {
		r.h.Run("volume", "delete", id)
	}
	r.equals(t, "in the end", r.stopped)
}

// sideBySide runs a command for each workload while it kills one or two components.
func (r *rig) sideBySide(t *testing.T, rng *rand.Rand, name string, specs []string) {
	pids := r.pids(t)
	var all []*command
	for _, spec := range specs {
		all = append(all, r.run(t, "workload", name, spec))
	}
	everyone := []string{"host", "bridge", "driver"}
	victims := []string{everyone[rng.IntN(3)], everyone[rng.IntN(3)]}
	var kills sync.WaitGroup
	for _, who := range victims {
		after := time.Duration(rng.IntN(120)) * time.Millisecond
		kills.Go(func() {
			time.Sleep(after) // at any time is the point
			r.kill(pids, []string{who})
		})
	}
	kills.Wait()
	r.restart(victims)
	for _, cmd := range all {
		cmd.succeeds(t)
	}
	r.settle()
}

func (r *rig) writeShared(id string) string {
	return r.h.Write(id+".hcl", fmt.Sprintf(`
id           = %q
type         = "csi"
plugin_id    = %q
capacity_min = "16MiB"
capacity_max = "64MiB"
capability {
  access_mode     = "single-node-multi-writer"
  attachment_mode = "file-system"
}
`, id, front))
}

func (r *rig) writeSharing(id string, sources []string) string {
	spec := fmt.Sprintf("workload %q {\n", id)
	for _, s := range sources {
		spec += fmt.Sprintf("  volume %q {\n    source      = %q\n    destination = %q\n  }\n", s, s, r.h.Path("mnt-"+s))
	}
	return r.h.Write(id+".hcl", spec+"}\n")
}
