package stalls

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// mute is a driver that never answers.
const mute = "mute"

// silent accepts connections, reads what comes, and never answers, as a program does that is stopped.
func silent(t *testing.T, network, address string) net.Addr {
	t.Helper()
	l, err := net.Listen(network, address)
	check.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
	}()
	return l.Addr()
}

// TestSilentNeighbours: everything that an agent calls accepts its calls and never answers, from its first start on.
func TestSilentNeighbours(t *testing.T) {
	t.Parallel()
	var n tally
	t.Cleanup(func() { fmt.Println(&n) })
	sockets := t.TempDir()
	driver := silent(t, "unix", filepath.Join(sockets, "csi.sock"))
	r := prepareRig(t, fmt.Sprintf(`
consul {
  address = "http://%s"
}
traces {
  endpoint = "http://%s"
}
csi_driver %q {
  endpoint = "unix://%s"
}
`, silent(t, "tcp", "127.0.0.1:0"), silent(t, "tcp", "127.0.0.1:0"), mute, driver),
		"docker-volume", "sids", "consul-services", "envoy-bootstrap")
	r.try(t, &n, stall{name: "nobody answers", restarts: true, sees: mute + " is not healthy", begin: func(r *rig) func() {
		r.h.Begin()
		r.h.Eventually("the agent answers", func() error { _, err := r.h.Status(); return err })
		r.use()
		return nil
	}}, false)
}
