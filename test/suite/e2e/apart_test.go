package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// apartHost is a host with the driver "shared", whose node service and controller are two processes: each answers
// Unimplemented to the other's calls.
type apartHost struct {
	*testhost.Host
	t *testing.T
}

func (h apartHost) driver() *hostv1.Driver {
	h.t.Helper()
	resp, err := h.Client().Drivers.GetDriver(h.t.Context(), &hostv1.GetDriverRequest{Id: "shared"})
	if err != nil {
		h.t.Fatal(err)
	}
	return resp.GetDriver()
}

// await waits until both processes are healthy and as is says, and returns their ids.
func (h apartHost) await(what string, is func(node, controller int64) bool) (node, controller int64) {
	h.t.Helper()
	h.Eventually(what, func() error {
		d := h.driver()
		node, controller = d.GetPid(), d.GetController().GetPid()
		if !d.GetHealthy() || !d.GetController().GetHealthy() || !is(node, controller) {
			return fmt.Errorf("it is %v", d)
		}
		return nil
	})
	return node, controller
}

func apartDriver(t *testing.T, more string) string {
	program := testbin.Build(t, "test/lib/shareddriver")
	return fmt.Sprintf(`
csi_driver "shared" {
  command     = [%q, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-dir", "${data_dir}/volumes", "-part", "node"]
  settle_time = "1s"
  controller {
    command = [%q, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-dir", "${data_dir}/volumes", "-part", "controller"]
    %s
  }
}
`, program, program, more)
}

// A volume is created, used, grown and deleted by a driver whose controller is another process than its node service,
// while each of them and the agent end.
func TestControllerApart(t *testing.T) {
	t.Parallel()
	h := apartHost{testhost.New(t, apartDriver(t, "")), t}
	h.Start()
	node, controller := h.await("both are healthy", func(node, controller int64) bool { return node != controller })
	d := driver{id: "shared"}
	volume(h.Host, d, "v", "single-node-writer", "")
	h.Run("workload", "start", workload(h.Host, "w", "v", ""))
	file := h.Path("data/csi/shared/per-workload/w/default/v/rw-file-system-single-node-writer/data/file")
	write := func(when string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(when), 0o600); err != nil {
			t.Fatalf("%s the workload cannot write: %v", when, err)
		}
	}
	write("at first")

	kill := func(pid int64) {
		t.Helper()
		if err := syscall.Kill(int(pid), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	kill(controller)
	was, old := node, controller
	node, controller = h.await("the controller is back", func(_, controller int64) bool { return controller != old })
	if node != was {
		t.Errorf("the end of the controller ended the node service: %d, now %d", was, node)
	}
	write("after the controller was killed")
	kill(node)
	was, old = node, controller
	node, controller = h.await("the node service is back", func(node, _ int64) bool { return node != was })
	if controller != old {
		t.Errorf("the end of the node service ended the controller: %d, now %d", old, controller)
	}
	write("after the node service was killed")

	h.Kill()
	h.Start()
	h.await("both are found", func(n, c int64) bool { return n == node && c == controller })
	h.Refused(4, []string{"in use", "-type controller"}, "driver", "restart", "shared")
	h.Refused(3, []string{`"monolith"`}, "driver", "restart", "-type", "monolith", "shared")
	if text := h.Run("driver", "restart", "-type", "controller", "shared"); !strings.Contains(text, "healthy") {
		t.Errorf("restart: %s", text)
	}
	old = controller
	_, controller = h.await("the controller alone is restarted", func(n, c int64) bool { return n == node && c != old })
	write("after the controller was restarted")

	// A changed configuration of the controller is applied although the driver is in use.
	text, err := os.ReadFile(h.Path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	h.Write("agent.hcl", strings.Replace(string(text), apartDriver(t, ""), apartDriver(t, `env = { "X" = "1" }`), 1))
	h.Stop()
	h.Start()
	old = controller
	h.await("the controller alone is changed", func(n, c int64) bool { return n == node && c != old })
	write("after the configuration was changed")
	h.Eventually("the ledger has both as they are", func() error { // it hears of them a moment later
		if d := h.driver(); d.GetConfigurationWaits() || d.GetType() != "node" || d.GetController().GetType() != "controller" ||
			d.GetControllersHealthy() != 1 || d.GetNodesHealthy() != 1 || len(d.GetControllerCapabilities()) == 0 {
			return fmt.Errorf("it is %v", d)
		}
		return nil
	})
	if out := h.Run("driver", "status"); strings.Count(out, "shared") < 2 || !strings.Contains(out, "controller") {
		t.Errorf("the status is %s", out)
	}
	if out := h.Run("driver", "status", "shared"); strings.Count(out, "csi.sock") != 2 ||
		!strings.Contains(out, "csi/shared/controller/csi.sock") {
		t.Errorf("the status is %s", out)
	}
	h.Run("volume", "expand", "-capacity-min", "96MiB", "-capacity-max", "96MiB", "v")
	h.Run("workload", "stop", "w")
	h.Run("volume", "delete", "v")
	h.Run("driver", "restart", "shared")
	h.await("both are restarted", func(n, c int64) bool { return n != node && c != controller })
	h.NothingInUse()
}

// Two drivers that something else runs are registered under one id, in either order.
func TestControllerApartRegistered(t *testing.T) {
	t.Parallel()
	h := apartHost{testhost.New(t, ""), t}
	h.Launch()
	program := testbin.Build(t, "test/lib/shareddriver")
	for _, part := range []string{"controller", "node"} {
		endpoint := "unix://" + h.Path(part+".sock")
		driver := h.InNamespace(program, "-endpoint", endpoint, "-node-id", "n", "-dir", h.Path("shared"), "-part", part)
		if err := driver.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = driver.Process.Kill()
			_ = driver.Wait()
		})
		h.Run("driver", "register", "shared", "-type", part, "-endpoint", endpoint)
	}
	h.await("both are healthy", func(int64, int64) bool { return true })
	h.Stop()
	h.Start() // they are remembered
	h.await("both are healthy", func(int64, int64) bool { return true })
	volume(h.Host, driver{id: "shared"}, "v", "single-node-writer", "")
	h.Run("workload", "start", workload(h.Host, "w", "v", ""))
	h.Refused(4, []string{"in use"}, "driver", "deregister", "shared")
	h.Run("workload", "stop", "w")
	h.Run("volume", "delete", "v")
	h.Run("driver", "deregister", "-type", "controller", "shared")
	if d := h.driver(); d.GetController() != nil || !d.GetHealthy() {
		t.Errorf("after the controller is deregistered: %v", d)
	}
	h.Run("driver", "deregister", "shared")
	h.NothingInUse()
}
