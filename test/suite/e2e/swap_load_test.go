package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Workloads start and stop while csi-bridge is replaced by good and bad binaries in turn. No workload fails,
// and the driver sees no call twice or out of order.
func TestSwapsWhileWorkloadsComeAndGo(t *testing.T) {
	t.Parallel()
	const workloads = 3
	h, d, _ := faulty(t)
	c := h.Client()
	hostile, err := os.ReadFile(testbin.BuildDir(t,
		filepath.Join(testbin.Root(), "host/internal/pluginhost/supervisor/testdata/plugin")))
	must(t, err)

	var running sync.WaitGroup
	ended := make(chan struct{})
	var counts [workloads]int
	for n := range workloads {
		id := fmt.Sprint("v", n)
		must(t, register(t.Context(), c, d, id, "single-node-writer"))
		running.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				if err := startAndStop(t.Context(), c, fmt.Sprint("w", n), id); err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				counts[n]++
			}
		})
	}
	defer running.Wait()
	end := sync.OnceFunc(func() { close(ended) })
	defer end()
	for n, mode := range []string{"exit", "plain", "other-certificate", "wrong-kind", "panic", "unwell"} {
		swapBridge(t, h)
		before, err := bridge(h)
		must(t, err)
		sum := putBridge(t, h, append(slices.Clip(hostile), fmt.Sprintf("\n#fixture %s 9.0.%d\n", mode, n)...))
		h.Eventually(mode+" is refused", func() error {
			p, err := bridge(h)
			if err == nil && p.GetRefused()[sum] == "" {
				err = fmt.Errorf("refused are %v", p.GetRefused())
			}
			if err == nil && p.GetPid() != before.GetPid() {
				t.Errorf("%s took over: %v", mode, p)
			}
			return err
		})
		// The new one is csi-bridge with something appended, not the bad binary.
		good, err := os.ReadFile(testbin.Build(t, "plugins/csi-bridge"))
		must(t, err)
		putBridge(t, h, append(good, byte(n)))
	}
	end()
	running.Wait()
	for n, count := range counts {
		if count == 0 {
			t.Errorf("workload %d never started and stopped", n)
		}
	}
	t.Logf("the workloads started and stopped %v times", counts)
	drained(t, h)
	h.NothingInUse()
	lawful(t, d)
}

// A new pannier binary replaces an agent that was stopped, as in an upgrade, or killed. The plugin and driver
// processes stay the same, and a call in flight completes once.
func TestHostIsUpgradedInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*testhost.Host){
		"stopped": (*testhost.Host).Stop,
		"killed":  (*testhost.Host).Kill,
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			h, d, id := faulty(t)
			volume(h, id, "data", "single-node-writer", "")
			spec := workload(h, "w", "data", "")
			release := make(chan struct{})
			letGo := sync.OnceFunc(func() { close(release) })
			defer letGo()
			d.Script("NodeStageVolume", faultydriver.Until(release))
			cmd := h.Command("workload", "start", spec)
			must(t, cmd.Start())
			d.AwaitCalls("NodeStageVolume", 1)
			before, err := bridge(h)
			must(t, err)

			program, err := os.ReadFile(h.Agent)
			must(t, err)
			h.Agent = filepath.Join(h.Dir, "pannier-next")
			must(t, os.WriteFile(h.Agent, append(program, 0), 0o755)) //nolint:gosec // it is an executable
			end(h)
			h.Start()
			_ = cmd.Wait() // the command may have failed with its agent; the operation continues
			letGo()
			h.Eventually("the same process serves", func() error { return samePlugin(h, before) })
			h.Eventually("the operation that the killed host began is completed", func() error {
				s, err := h.Status()
				if err == nil && s.GetReleasing() > 0 {
					err = errors.New("claims are on their way out")
				}
				return err
			})
			h.Run("workload", "stop", spec)
			h.NothingInUse()
			h.Run("workload", "start", spec)
			h.Run("workload", "stop", spec)
			h.NothingInUse()
			lawful(t, d)
		})
	}
}

func samePlugin(h *testhost.Host, before *hostv1.Plugin) error {
	now, err := bridge(h)
	if err == nil && (now.GetPid() != before.GetPid() || now.GetGeneration() != before.GetGeneration()) {
		err = fmt.Errorf("it changed from %v to %v", before, now)
	}
	return err
}
