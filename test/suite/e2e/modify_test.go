package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Mutable parameters of a volume are changed while it is mounted, and shown; those that the driver does not have are
// refused.
func TestModifyAVolume(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	target := field(t, h.Run("workload", "start", "-o", "docker", workload(h, "w", "data", "")), "source=")
	h.Run("volume", "modify", "data", "-parameter", "readAheadKiB=2048")
	if got := readAhead(t, target); got != "2048" {
		t.Errorf("the kernel reads %s KiB ahead", got)
	}
	h.Refused(2, []string{"colour", "readAheadKiB"}, "volume", "modify", "data", "-parameter", "colour=red")
	h.Kill()
	h.Start()
	if got := h.Run("volume", "status", "data"); !strings.Contains(got, "readAheadKiB=2048") {
		t.Errorf("the status does not show the parameter:\n%s", got)
	}
	h.Run("workload", "stop", "w")
	target = field(t, h.Run("workload", "start", "-o", "docker", workload(h, "w", "data", "")), "source=")
	if got := readAhead(t, target); got != "2048" {
		t.Errorf("after the next mount the kernel reads %s KiB ahead", got)
	}
	h.Run("workload", "stop", "w")
	h.Run("volume", "delete", "data")
	h.NothingInUse()
}

// readAhead returns the read-ahead of a mounted file system's device, in KiB.
func readAhead(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	check.NoError(t, unix.Stat(path, &st))
	text, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/queue/read_ahead_kb", unix.Major(st.Dev),
		unix.Minor(st.Dev)))
	check.NoError(t, err)
	return strings.TrimSpace(string(text))
}
