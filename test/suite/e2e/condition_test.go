package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A volume whose data is lost is shown as abnormal by the controller and by the node, and there is an event when it
// happens and when it is over.
func TestConditionOfAVolume(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	shows := func(lines ...string) {
		t.Helper()
		for _, shown := range []string{h.Run("volume", "status", "data"), h.Run("volume", "explain", "data")} {
			for _, line := range lines {
				if !strings.Contains(strings.Join(strings.Fields(shown), " "), line) {
					t.Errorf("%q is not in:\n%s", line, shown)
				}
			}
		}
	}
	event := func(kind, says string) {
		t.Helper()
		h.Eventually("the event "+kind, func() error {
			for line := range strings.Lines(h.Run("events", "-recent", "100")) {
				if strings.Contains(line, kind) && strings.Contains(line, says) {
					return nil
				}
			}
			return errors.New("there is none")
		})
	}
	shows("Condition normal", "Condition on node "+nodeName(t, h)+" normal")
	id := externalID(t, h, "data")
	image := filepath.Join(h.Path("data"), "volumes", "volumes", id, id+".img")
	check.NoError(t, errors.Join(os.Link(image, image+".kept"), os.Remove(image)))
	shows("Condition abnormal: DATA_LOSS", "Condition on node "+nodeName(t, h)+" abnormal: DATA_LOSS")
	event("abnormal", "DATA_LOSS")
	check.NoError(t, os.Rename(image+".kept", image))
	shows("Condition normal")
	event("normal", "no problem")
	h.Run("workload", "stop", "w")
	h.NothingInUse()
}

func nodeName(t *testing.T, h *testhost.Host) string {
	t.Helper()
	s, err := h.Status()
	check.NoError(t, err)
	return s.GetName()
}

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
