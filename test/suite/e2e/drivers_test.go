package e2e

import (
	"fmt"
	"testing"

	"github.com/pannier/pannier/test/lib/hostpath"
	"github.com/pannier/pannier/test/lib/testhost"
)

// driver is a CSI driver that the tests run with.
type driver struct {
	id    string
	block func(t testing.TB) string // its csi_driver block
	// enforces is set if a volume cannot hold more than its capacity.
	enforces bool
	expands  bool // expands is set if volumes can grow while mounted.
}

var drivers = []driver{
	{id: "local", block: testhost.LocalDriver, enforces: true, expands: true},
	{id: "hostpath", block: foreignDriver},
}

// foreignDriver runs csi-driver-host-path, with its controller attaching volumes.
func foreignDriver(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf(`
csi_driver "hostpath" {
  command = [%q, "-drivername", "hostpath.csi.k8s.io", "-endpoint", "${endpoint}", "-nodeid", "${node.name}-at-hostpath", "-statedir", "${data_dir}/volumes", "-enable-attach"]
  settle_time = "1s"
}
`, hostpath.Binary(t))
}

// eachDriver runs a test with every driver, each on a separate host.
func eachDriver(t *testing.T, test func(t *testing.T, h *testhost.Host, d driver)) {
	t.Parallel()
	for _, d := range drivers {
		t.Run(d.id, func(t *testing.T) {
			t.Parallel()
			h := testhost.New(t, d.block(t))
			h.Start()
			test(t, h, d)
		})
	}
}

// volume writes a volume's specification and creates it.
func volume(h *testhost.Host, d driver, id, access, more string) {
	h.Run("volume", "create", h.Write(id+".hcl", volumeSpec(d, id, access, "file-system", more)))
}

func volumeSpec(d driver, id, access, attachment, more string) string {
	return fmt.Sprintf(`
id           = %q
type         = "csi"
plugin_id    = %q
capacity_min = "64MiB"
capacity_max = "64MiB"
capability {
  access_mode     = %q
  attachment_mode = %q
}
%s`, id, d.id, access, attachment, more)
}

// workload writes a workload's specification with one volume, and returns its path.
func workload(h *testhost.Host, id, source, more string) string {
	return h.Write(id+".hcl", fmt.Sprintf(`
workload %q {
  volume "data" {
    source      = %q
    destination = %q
    %s
  }
}
`, id, source, h.Path("mnt"), more))
}
