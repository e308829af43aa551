package faults

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testhost"
)

// TestNoexec puts the data directory on a mount from which nothing can be run. The agent says so and ends, and the
// doctor finds it.
func TestNoexec(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	dir := h.Path("data")
	err := os.Mkdir(dir, 0o711)
	if err == nil {
		err = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "size=2g,mode=711")
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err := h.Command("agent", "-config", h.Config).CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "data_dir "+dir+" is on a mount with the option noexec") {
		t.Errorf("the agent ended with %v: %s", err, out)
	}
	h.Refused(1, []string{"is on a mount with the option noexec", "remount,exec"}, "doctor", "-config", h.Config)
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	h.Start()
}
