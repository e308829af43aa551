package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testhost"
)

// following writes the spec of a workload with a volume that waits for others. keys are lines of its spec.
func following(h *testhost.Host, id, keys string) string {
	return h.Write(id+".hcl", fmt.Sprintf(`
workload %q {
  %s
  volume "data" {
    source      = "data"
    destination = %q
  }
}
`, id, keys, h.Path("mnt")))
}

// waiting starts a workload in the background and checks that it waits for others. The channel delivers the
// result of its start.
func waiting(t *testing.T, h *testhost.Host, spec, id string, others ...string) (ended chan error) {
	t.Helper()
	cmd := h.Command("workload", "start", spec)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	go func() {
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, said.String())
		}
		ended <- err
	}()
	h.Eventually(fmt.Sprintf("%s waits for %q", id, others), func() error {
		resp, err := h.Client().Workloads.GetWorkload(context.Background(), &hostv1.GetWorkloadRequest{Id: id})
		if err != nil {
			return err
		}
		if w := resp.GetWorkload(); !slices.Equal(w.GetWaitsFor(), others) || w.GetWaitsSince() == nil {
			return fmt.Errorf("it is %s and waits for %q", w.GetState(), w.GetWaitsFor())
		}
		return nil
	})
	return ended
}

// A workload keeps waiting for another one across a restart of the agent. It claims its volume when the other
// one is completely released, and is itself replaced by the next one.
func TestWorkloadsComeOneAfterTheOther(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-single-writer", "")
	h.Run("workload", "start", following(h, "one", ""))
	h.Refused(2, []string{"cannot wait for itself"}, "workload", "start", following(h, "self", `after = ["self"]`))

	second := waiting(t, h, following(h, "two", `after = ["one", "default/unknown"]`), "two", "one")
	if shown := h.Run("workload", "status", "two"); !strings.Contains(shown, "Waits for") ||
		!strings.Contains(shown, "await ... running") {
		t.Errorf("its status is\n%s", shown)
	}
	h.Kill()
	h.Start()
	h.Run("workload", "stop", "one")
	if err := <-second; err != nil {
		t.Error(err)
	}
	h.Run("workload", "start", following(h, "four", `replaces = ["two"]`))
	if shown := h.Run("workload", "status", "two"); !strings.Contains(shown, `replaced by workload "four" on node "a"`) {
		t.Errorf("the status of what was replaced is\n%s", shown)
	}
	fifth := waiting(t, h, following(h, "five", `after = ["four"]`), "five", "four")
	h.Run("workload", "stop", "five")
	if err := <-fifth; err == nil || !strings.Contains(err.Error(), "given up") {
		t.Errorf("a start that was stopped while it waited returned %v", err)
	}
	h.Run("workload", "stop", "four")
	h.NothingInUse()
}
