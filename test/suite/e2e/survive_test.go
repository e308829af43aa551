package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testhost"
)

func TestHostIsKilledUnderAWorkload(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-writer", "")
		spec := workload(h, "w", "data", "")
		// The program writes when it gets a signal, so it can write after the host was down.
		cmd, lines := background(t, h, spec,
			"trap 'echo late > "+h.Path("mnt")+"/file; echo written' USR1; echo up; while :; do sleep 0.02; done")
		await(t, lines, "up")
		before, err := h.Status()
		if err != nil {
			t.Fatal(err)
		}
		h.Kill()
		if err := cmd.Process.Signal(unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		await(t, lines, "written")
		h.Start()
		after, err := h.Status()
		if err != nil {
			t.Fatal(err)
		}
		if a, b := before.GetPlugins()[0].GetPid(), after.GetPlugins()[0].GetPid(); a != b {
			t.Errorf("the plugin's process id changed from %d to %d", a, b)
		}
		if a, b := before.GetDrivers()[0].GetPid(), after.GetDrivers()[0].GetPid(); a != b {
			t.Errorf("the driver's process id changed from %d to %d", a, b)
		}
		if got := h.Run("workload", "status", "w"); !strings.Contains(got, "running") {
			t.Errorf("after the restart the workload is:\n%s", got)
		}
		if after.GetClaims() != 1 {
			t.Errorf("%d claims after the restart", after.GetClaims())
		}
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		exitCode(cmd)
		h.NothingInUse()
		if got := h.Run("workload", "run", spec, "--", "cat", h.Path("mnt")+"/file"); got != "late\n" {
			t.Errorf("the content written while the host was down is %q", got)
		}
	})
}

func TestCLIIsKilled(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-writer", "")
		// The grandchild would keep the volume mounted in the workload's namespace if it survived.
		cmd, lines := background(t, h, workload(h, "w", "data", ""),
			"setsid sh -c 'trap : TERM HUP; exec 3> "+h.Path("mnt")+"/held; echo up; while :; do sleep 1; done'")
		await(t, lines, "up")
		if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		exitCode(cmd)
		h.NothingInUse()
	})
}

func TestCLIIsKilledWhileTheHostIsAway(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	cmd, lines := background(t, h, workload(h, "w", "data", ""), "echo up; sleep infinity")
	await(t, lines, "up")
	h.Kill()
	if err := cmd.Process.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	exitCode(cmd)
	h.Start()
	h.NothingInUse()
}

// A stop while the driver is down reports that, continues in the background, and finishes when the driver is
// back.
func TestStopWhileTheDriverIsDown(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, "")
	h.Start()
	d := startLocal(t, h)
	h.Run("driver", "register", "dyn", "-endpoint", d.endpoint, "-health-timeout", "2s")
	volume(h, driver{id: "dyn"}, "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	d.kill()
	stop := h.Command("workload", "stop", "w")
	if err := stop.Start(); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the workload says what it waits for", func() error {
		if got := h.Run("workload", "status", "w"); !strings.Contains(got, "stopping") || !strings.Contains(got, "dyn") {
			return errors.New(got)
		}
		if metric(t, h, `pannier_workload_releases_waiting{reason="driver"}`) != 1 {
			return errors.New("the metrics do not say that it waits for a driver")
		}
		return nil
	})
	if got := h.Run("volume", "status", "data"); !strings.Contains(got, "unpublishing") || !strings.Contains(got, "dyn") {
		t.Errorf("the volume's status does not say what its release waits for:\n%s", got)
	}
	h.Kill() // neither the host nor the command forgets the stop
	h.Launch()
	d.start(t)
	if err := stop.Wait(); err != nil {
		t.Errorf("the stop returned %v", err)
	}
	h.NothingInUse()
	d.kill()
	h.Eventually("the driver is deregistered", func() error {
		if got := h.Run("driver", "status"); strings.Contains(got, "dyn ") {
			return errors.New(got)
		}
		return nil
	})
}

func TestDetach(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-writer", "")
		h.Refused(3, []string{"data", `node "a"`}, "volume", "detach", "data", "a")
		h.Run("workload", "start", workload(h, "w", "data", ""))
		h.Refused(1, []string{"without -force"}, "volume", "detach", "-force", "-yes", "data", "a")
		h.Run("volume", "detach", "data", "a")
		h.NothingInUse()
	})
}

// The journal is lost but the ledger is not. Its claims of this node are released.
func TestJournalIsLost(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-writer", "")
		h.Run("workload", "start", workload(h, "w", "data", ""))
		h.Kill()
		if err := os.RemoveAll(filepath.Join(h.Path("data"), "journal")); err != nil {
			t.Fatal(err)
		}
		h.Start()
		h.NothingInUse()
	})
}
