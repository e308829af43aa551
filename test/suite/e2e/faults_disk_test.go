package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/powerloss"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The disk of the data directory fills up. The host refuses starts and reports why, continues to release
// volumes while some space is left, survives without any, and recovers by itself when there is space again.
// No claim is lost.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	d := faultydriver.Start(t, faultydriver.Config{Mounts: true, NodeID: "faulty-a"})
	h := testhost.New(t, fmt.Sprintf("csi_driver \"faulty\" {\n  endpoint = %q\n  settle_time = \"1s\"\n}\n", d.Endpoint()))
	disk := h.NewDisk(t, 256<<20)
	h.Start()
	c := h.Client()
	for _, id := range []string{"a", "b", "c"} {
		must(t, register(t.Context(), c, d, id, "single-node-writer"))
	}
	must(t, start(t.Context(), c, "one", "a"))
	must(t, start(t.Context(), c, "two", "b"))

	disk.Leave(40 << 20)
	full(t, "a start on a disk that is nearly full", start(t.Context(), c, "three", "c"))
	full(t, "a new volume", register(t.Context(), c, d, "d", "single-node-writer"))
	h.Refused(1, []string{"nearly full", "data"}, "workload", "start", workload(h, "four", "c", ""))
	must(t, stop(t.Context(), c, "one"))

	disk.Leave(0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := stop(ctx, c, "two"); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("a stop on a full disk returned %v", err)
	}
	full(t, "a start on a full disk", start(t.Context(), c, "three", "c"))
	claims(t, h, 1)
	h.Kill()
	cmd := h.Command("agent", "-config", h.Path("agent.hcl"))
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "nearly full") {
		t.Errorf("an agent on a full disk ended with %v: %s", err, out)
	}

	disk.Leave(256 << 20)
	h.Start()
	must(t, stop(t.Context(), c, "two"))
	claims(t, h, 0)
	must(t, startAndStop(t.Context(), c, "three", "a", "b", "c"))
	claims(t, h, 0)
	if got := h.Mounts(); len(got) != 1 { // the disk's own
		t.Errorf("what is mounted is %q", got)
	}
	lawful(t, d)
}

func full(t *testing.T, what string, err error) {
	t.Helper()
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "nearly full") {
		t.Errorf("%s returned %v", what, err)
	}
}

func claims(t *testing.T, h *testhost.Host, want int64) {
	t.Helper()
	if s, err := h.Status(); err != nil || s.GetClaims() != want {
		t.Errorf("%d claims, want %d (%v)", s.GetClaims(), want, err)
	}
}

// After a loss of power the agent starts, with all that was acknowledged.
func TestLossOfPower(t *testing.T) {
	t.Parallel()
	for _, fstype := range powerloss.FileSystems {
		t.Run(fstype, func(t *testing.T) {
			t.Parallel()
			h := testhost.New(t, testhost.LocalDriver(t))
			must(t, os.Mkdir(h.Path("data"), 0o700))
			cut := powerloss.DiskAt(t, fstype, h.Path("data"))
			h.Start()
			for _, id := range []string{"first", "second", "third"} {
				volume(h, drivers[0], id, "single-node-writer", "")
				w := workload(h, "w", id, "")
				h.Run("workload", "start", w)
				h.Run("workload", "stop", "w")
				h.Kill()
				for _, pid := range h.Processes() {
					must(t, unix.Kill(pid, unix.SIGKILL))
				}
				h.Eventually("the end of all processes", func() error {
					if left := h.Processes(); len(left) > 0 {
						return fmt.Errorf("processes %v", left)
					}
					return nil
				})
				for _, path := range slices.Backward(h.Mounts()) {
					if path != h.Path("data") {
						must(t, unix.Unmount(path, 0))
					}
				}
				cut()
				h.Start()
				h.Run("workload", "start", w)
				h.Run("workload", "stop", "w")
				if s, err := h.Status(); err != nil || s.GetClaims() != 0 {
					t.Errorf("%d claims are left (%v)", s.GetClaims(), err)
				}
			}
		})
	}
}
