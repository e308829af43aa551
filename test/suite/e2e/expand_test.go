package e2e

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// A driver fails to expand what is mounted of a volume. Starts go on with the old size, and say what to do; the next
// start and volume expand try again. It is done once, where a workload may write.
func TestExpansionThatFails(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t)
	c := h.Client()
	const rpc = "NodeExpandVolume"
	fails := faultydriver.Code(codes.Internal, "no room for the new size")
	must(t, register(t.Context(), c, d, "v", "single-node-multi-writer"))
	must(t, expand(t.Context(), c.Volumes, "v"))
	d.Script(rpc, fails)
	must(t, start(t.Context(), c, "w", "v"))
	says := []string{`volume "v" is used with its old size on node "a"`, "no room for the new size", "pannier volume expand v 1048576"}
	shows(t, h, append(says, "running"), "workload", "status", "w")
	shows(t, h, append(says, "abnormal"), "volume", "status", "v")
	shows(t, h, []string{"not-expanded"}, "events", "-recent", "100")
	h.Kill()
	h.Start()
	shows(t, h, append(says, "running"), "workload", "status", "w")

	read := &hostv1.WorkloadSpec{Id: "a-reader", Volumes: []*hostv1.VolumeRequest{{
		Name: "v", Source: "v", Destination: "/mnt/v", ReadOnly: true,
	}}}
	h.Eventually("a reader starts beside it", func() error {
		stream, err := h.Client().Workloads.StartWorkload(t.Context(), &hostv1.StartWorkloadRequest{Spec: read})
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
		}
		return stream.Err()
	})
	before := len(d.Calls(rpc))
	h.Run("volume", "expand", "v", "1048576")
	calls := d.Calls(rpc)[before:]
	if len(calls) != 1 || !strings.Contains(fmt.Sprint(calls[0].Request), "/w/") {
		t.Errorf("it was expanded by %v", calls)
	}
	for _, args := range [][]string{{"workload", "status", "w"}, {"volume", "status", "v"}} {
		if text := h.Run(args...); strings.Contains(text, "old size") {
			t.Errorf("pannier %s still says\n%s", strings.Join(args, " "), text)
		}
	}

	h.Run("workload", "stop", "w")
	d.Script(rpc, fails)
	h.Run("workload", "start", workload(h, "w", "v", ""))
	shows(t, h, says, "workload", "status", "w")
	h.Run("workload", "stop", "w")
	h.Run("workload", "start", workload(h, "w", "v", ""))
	if text := h.Run("workload", "status", "w"); strings.Contains(text, "old size") {
		t.Errorf("after a start that expanded it:\n%s", text)
	}
	h.Run("workload", "stop", "w")
	h.Run("workload", "stop", "a-reader")
	h.NothingInUse()
}
