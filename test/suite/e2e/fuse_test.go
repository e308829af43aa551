package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// fuseHost is a host with the driver "fuse", whose children serve volumes, and with a workload that uses one.
type fuseHost struct {
	*testhost.Host
	t *testing.T
}

func newFuseHost(t *testing.T) fuseHost {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skipf("needs /dev/fuse (%v); not covered: children of a driver that serve mounts", err)
	}
	h := fuseHost{testhost.New(t, fmt.Sprintf(`
csi_driver "fuse" {
  command = [%q, "-endpoint", "${endpoint}", "-dir", "${data_dir}/volumes", "-version", "1"]
}
`, testbin.Build(t, "test/suite/fusedriver"))), t}
	h.Start()
	h.register("v")
	h.Run("workload", "start", workload(h.Host, "w", "v", ""))
	h.write("first")
	return h
}

// register makes a volume known.
func (h fuseHost) register(id string) {
	h.t.Helper()
	h.Run("volume", "register", h.Write(id+".hcl", fmt.Sprintf(`
id          = %q
type        = "csi"
plugin_id   = "fuse"
external_id = %q
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`, id, id)))
}

// configure changes the driver's command.
func (h fuseHost) configure(old, now string) {
	h.t.Helper()
	text, err := os.ReadFile(h.Path("agent.hcl"))
	if err != nil || !strings.Contains(string(text), old) {
		h.t.Fatalf("%q is not in the configuration (%v)", old, err)
	}
	h.Write("agent.hcl", strings.ReplaceAll(string(text), old, now))
}

func (h fuseHost) target() string {
	return h.Path("data/csi/fuse/per-workload/w/default/v/rw-file-system-single-node-writer/data")
}

// write writes into the volume, as the workload does.
func (h fuseHost) write(name string) {
	h.t.Helper()
	if err := os.WriteFile(h.target()+"/"+name, []byte(name), 0o600); err != nil {
		h.t.Fatalf("the workload cannot write: %v", err)
	}
	if _, err := os.Stat(h.Path("data/volumes/v/" + name)); err != nil {
		h.t.Fatalf("it is not in the volume: %v", err)
	}
}

func (h fuseHost) driver() *hostv1.Driver {
	h.t.Helper()
	resp, err := h.Client().Drivers.GetDriver(h.t.Context(), &hostv1.GetDriverRequest{Id: "fuse"})
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.GetDriver()
}

// daemon is the process that serves the volume; 0: there is none.
func (h fuseHost) daemon() int {
	h.t.Helper()
	all, err := os.ReadDir("/proc")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range all {
		args, _ := os.ReadFile("/proc/" + p.Name() + "/cmdline")
		if strings.HasSuffix(string(args), "\x00mount\x00"+h.Path("data/volumes/v")+"\x00"+h.target()+"\x00") {
			pid := 0
			_, _ = fmt.Sscan(p.Name(), &pid)
			return pid
		}
	}
	return 0
}

// A changed command does not restart a driver in use, whatever becomes of the agent. A forced restart keeps the child
// that serves the volume, and so does a crash of the driver. When the volume is unmounted nothing of it is left.
func TestDriverInUseIsNotRestarted(t *testing.T) {
	t.Parallel()
	h := newFuseHost(t)
	first, daemon := h.driver(), h.daemon()
	if daemon == 0 {
		t.Fatal("no process serves the volume")
	}
	h.configure(`"-version", "1"`, `"-version", "2"`)
	for name, end := range map[string]func(){"stopped": h.Stop, "killed": h.Kill} {
		end()
		h.Start()
		if d := h.driver(); d.GetPid() != first.GetPid() || d.GetProviderVersion() != "1" || !d.GetConfigurationWaits() {
			t.Fatalf("after the agent was %s: %v", name, d)
		}
		h.write("agent-" + name)
	}
	if text := h.Run("driver", "status", "fuse"); !strings.Contains(text, "pannier driver restart -force fuse") {
		t.Errorf("the status is %s", text)
	}
	h.Refused(4, []string{"in use", `volume "v" of workload "w"`, "-force"}, "driver", "restart", "fuse")

	kept := func(when string) {
		t.Helper()
		if d := h.driver(); len(d.GetLeftPids()) != 1 || d.GetLeftPids()[0] != int64(daemon) {
			t.Errorf("%s the status has processes %v, want %d", when, d.GetLeftPids(), daemon)
		}
		h.write("after")
	}
	h.Run("driver", "restart", "-force", "fuse")
	d := h.driver()
	if d.GetPid() == first.GetPid() || d.GetProviderVersion() != "2" || d.GetConfigurationWaits() || !d.GetHealthy() {
		t.Errorf("after the restart: %v", d)
	}
	kept("after the restart")
	if err := syscall.Kill(int(d.GetPid()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the driver is back", func() error {
		if now := h.driver(); !now.GetHealthy() || now.GetPid() == d.GetPid() {
			return fmt.Errorf("it is %v", now)
		}
		return nil
	})
	kept("after the driver was killed")
	h.Kill()
	h.Start()
	kept("after the agent was killed")

	h.Run("workload", "stop", "w")
	h.Eventually("the process that served the volume has ended, and is forgotten", func() error {
		if pid, d := h.daemon(), h.driver(); pid != 0 || len(d.GetLeftPids()) > 0 {
			return fmt.Errorf("process %d, left %v", pid, d.GetLeftPids())
		}
		return nil
	})
	h.NothingInUse()

	h.configure(`"-version", "2"`, `"-version", "3"`)
	h.Stop()
	h.Start()
	h.Eventually("an unused driver is restarted", func() error {
		if d := h.driver(); d.GetProviderVersion() != "3" || d.GetConfigurationWaits() {
			return errors.New(d.String())
		}
		return nil
	})
}

// The server of a volume was killed, and then its driver does not answer any more. An operator's force ends the
// release, but not while a process has a file of it open.
func TestForcedStopOfADeadFileSystem(t *testing.T) {
	t.Parallel()
	h := newFuseHost(t)
	file, err := os.Create(h.target() + "/open")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := syscall.Kill(h.daemon(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	says := func(what string, words ...string) {
		t.Helper()
		h.Eventually(what, func() error {
			text := h.Run("workload", "status", "w")
			for _, word := range words {
				if !strings.Contains(text, word) {
					return errors.New(text)
				}
			}
			return nil
		})
	}
	plain := h.Command("workload", "stop", "w")
	if err := plain.Start(); err != nil {
		t.Fatal(err)
	}
	says("the stop says what can be done", "busy", "pannier workload stop -force w")
	driver := int(h.driver().GetPid())
	if err := syscall.Kill(driver, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(driver, syscall.SIGCONT) }()
	forced := h.Command("workload", "stop", "-force", "w")
	if err := forced.Start(); err != nil {
		t.Fatal(err)
	}
	says("the forced stop waits for the file", "busy", "the driver:", fmt.Sprintf("process %d", os.Getpid()))
	_ = file.Close() // it cannot be flushed, and is closed
	if err := errors.Join(forced.Wait(), plain.Wait()); err != nil {
		t.Error(err)
	}
	h.NothingInUse()
	forcedEvent(h)
}

// A driver lets no volume be unpublished. An operator's force unmounts it, but not while a process can write to it.
func TestForcedStopOfALiveFileSystem(t *testing.T) {
	t.Parallel()
	h := newFuseHost(t)
	h.configure(`"-version", "1"`, `"-stuck"`)
	h.Stop()
	h.Start()
	h.Run("driver", "restart", "-force", "fuse")
	file, err := os.Create(h.target() + "/open")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stop := h.Command("workload", "stop", "-force", "w")
	if err := stop.Start(); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the stop waits for the file", func() error {
		if text := h.Run("workload", "status", "w"); !strings.Contains(text, "busy") || !strings.Contains(text, "in use by") {
			return errors.New(text)
		}
		return nil
	})
	h.write("still")
	if s, err := h.Status(); err != nil || s.GetClaims() != 1 {
		t.Errorf("%d claims while the volume is in use (%v)", s.GetClaims(), err)
	}
	if err := errors.Join(file.Close(), stop.Wait()); err != nil {
		t.Error(err)
	}
	if pid := h.daemon(); pid != 0 {
		t.Errorf("process %d still serves the volume", pid)
	}
	h.NothingInUse()
	forcedEvent(h)
}

// forcedEvent checks that the event says who forced what.
func forcedEvent(h fuseHost) {
	h.t.Helper()
	text := h.Run("events", "-recent", "100")
	if !strings.Contains(text, "forced") || !strings.Contains(text, h.target()) {
		h.t.Errorf("the events are\n%s", text)
	}
}
