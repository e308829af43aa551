package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// local is a csi-local that the test runs itself, as an operator would.
type local struct {
	program, endpoint, dataDir string
	cmd                        *exec.Cmd
}

func startLocal(t *testing.T, h *testhost.Host) *local {
	t.Helper()
	l := &local{
		program:  testbin.Build(t, "drivers/csi-local"),
		endpoint: "unix://" + h.Path("dyn/csi.sock"), dataDir: h.Path("volumes"),
	}
	t.Cleanup(l.kill)
	l.start(t)
	return l
}

func (l *local) start(t *testing.T) {
	t.Helper()
	l.cmd = exec.Command(l.program, "-endpoint", l.endpoint, "-node-id", "dyn-a", "-data-dir", l.dataDir)
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (l *local) kill() {
	if l.cmd.ProcessState == nil {
		_ = l.cmd.Process.Signal(unix.SIGKILL)
		_ = l.cmd.Wait()
	}
}

func TestDynamicDriver(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, "")
	h.Start()
	l := startLocal(t, h)
	h.Refused(3, []string{"dyn", "driver register"}, "driver", "status", "dyn")
	h.Run("driver", "register", "dyn", "-endpoint", l.endpoint)
	if got := h.Run("driver", "status", "dyn"); !strings.Contains(got, "local.csi.pannier.dev") ||
		!strings.Contains(got, "dyn-a") {
		t.Errorf("the driver's status is\n%s", got)
	}
	volume(h, driver{id: "dyn"}, "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	h.Refused(4, []string{`workload "w"`}, "driver", "deregister", "dyn")
	h.Kill()
	h.Start()
	h.Run("workload", "stop", "w")
	h.Run("driver", "deregister", "dyn")
	h.Refused(3, []string{"dyn"}, "driver", "status", "dyn")
	h.NothingInUse()
}
