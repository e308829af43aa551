package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The disk of the data directory fills up. The host refuses starts and reports why, continues to release
// volumes while some space is left, survives without any, and recovers by itself when there is space again.
// No claim is lost.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	d := faultydriver.Start(t, faultydriver.Config{Mounts: true, NodeID: "faulty-a"})
	h := testhost.New(t, fmt.Sprintf("csi_driver \"faulty\" {\n  endpoint = %q\n}\n", d.Endpoint()))
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
