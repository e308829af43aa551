package bench

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/usage"
)

// measureIdle measures what a host does that has nothing to do, without its driver.
func measureIdle(b *testing.B, r *table.Section) {
	const workloads, idling = 10, time.Minute
	plugins := []string{"csi-bridge", "sids", "consul-services", "envoy-bootstrap"}
	h := newHostWith(b, testhost.LocalDriver(b), plugins[1:]...)
	h.Start()
	h.Eventually("all plugins run", pluginsRun(h, len(plugins)))
	c := caller{b, h.Client()}
	for n := range workloads {
		volume := fmt.Sprintf("volume-%d", n)
		c.create(b.Context(), volume)
		took(b)(c.start(b.Context(), volume))
	}
	pids := []int{h.PID()}
	for _, plugin := range plugins {
		pids = append(pids, processOf(b, h, plugin))
	}
	driver := processOf(b, h, "csi-local")
	time.Sleep(rest)
	began := time.Now()
	cpu, drivers := usage.CPU(b, pids...), usage.CPU(b, driver)
	wakeUps, agents := usage.WakeUps(b, pids...), usage.WakeUps(b, pids[0])
	resident := map[int][]float64{} // what a collection takes away now and then
	for time.Since(began) < idling {
		time.Sleep(time.Second)
		for _, pid := range pids {
			resident[pid] = append(resident[pid], usage.Memory(b, pid, "VmRSS"))
		}
	}
	memory := func(pid int) float64 {
		slices.Sort(resident[pid])
		return resident[pid][len(resident[pid])/2]
	}
	seconds := time.Since(began).Seconds()
	share := func(used time.Duration) float64 { return 100 * used.Seconds() / seconds }
	r.Add(
		table.Row{What: "agent and plugins, of a core", Value: share(usage.CPU(b, pids...) - cpu), Unit: "%", AtMost: 0.3},
		table.Row{
			What:  "their wake-ups (voluntary context switches of all threads) per second",
			Value: float64(usage.WakeUps(b, pids...)-wakeUps) / seconds, AtMost: 60,
		},
		table.Row{What: "of that the agent", Value: float64(usage.WakeUps(b, pids[0])-agents) / seconds},
		table.Row{What: "csi-local, of a core", Value: share(usage.CPU(b, driver) - drivers), Unit: "%"},
		table.Row{What: "resident memory of the agent", Value: memory(pids[0]), Unit: "MiB", AtMost: 64},
	)
	for n, plugin := range plugins {
		r.Add(table.Row{
			What: "resident memory of " + plugin, Value: memory(pids[n+1]), Unit: "MiB", AtMost: 24,
		})
	}
	for n := range workloads {
		took(b)(c.stop(b.Context(), fmt.Sprintf("volume-%d", n)))
	}
}
