package e2e

import (
	"fmt"
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
