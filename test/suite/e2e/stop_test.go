package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

// A stop of a workload whose volume is in use ends when its time is over, and explains why; that of another one is not
// delayed by it. The agent continues, and finishes when the volume is not in use any more.
func TestStopWithinATime(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	paths := map[string]string{}
	for _, id := range []string{"busy", "free"} {
		volume(h, drivers[0], id, "single-node-writer", "")
		spec := workload(h, "w-"+id, id, "")
		h.Run("workload", "start", spec)
		paths[id] = strings.TrimSpace(h.Run("workload", "status", "-o", "docker", "w-"+id))
	}
	_, rest, _ := strings.Cut(paths["busy"], "source=")
	path, _, _ := strings.Cut(rest, ",")
	used, err := os.Create(filepath.Join(path, "file"))
	must(t, err)
	defer used.Close()

	waits := func(args ...string) {
		t.Helper()
		r := h.Try(append([]string{"workload", "stop", "-timeout", "2s"}, args...)...)
		if r.Code != 1 || !strings.Contains(r.Stderr, `"w-busy" is not stopped within 2s; the agent continues, and waits for: `) ||
			!strings.Contains(r.Stderr, "busy") {
			t.Errorf("exit code %d: %s", r.Code, r.Stderr)
		}
	}
	waits("-all")
	if r := h.Try("workload", "status", "w-free"); r.Code == 0 && !strings.Contains(r.Stdout, "stopped") {
		t.Errorf("the other workload is not stopped: %s", r.Stdout)
	}
	waits("w-busy")
	must(t, used.Close())
	h.Eventually("the agent has stopped it", func() error {
		if r := h.Try("workload", "stop", "-all"); r.Code != 0 || !strings.Contains(r.Stderr, "0 workloads were stopped") {
			return fmt.Errorf("exit code %d: %s", r.Code, r.Stderr)
		}
		return nil
	})
	if r := h.Try("workload", "stop", "-all", "w-busy"); r.Code != 2 {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
	if r := h.Try("workload", "stop"); r.Code != 2 || !strings.Contains(r.Stderr, "-all stops all") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
}
