package e2e

import (
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/xds"
)

// TestAdminOfAProxy listens where a bootstrap says that the proxy's admin API listens, as the workload's user: another
// user of the machine does not reach it, unless the spec asks for ports. There is no Envoy in this test: that Envoy
// takes such addresses is not covered.
func TestAdminOfAProxy(t *testing.T) {
	t.Parallel()
	c := consul.Start(t, consul.Options{})
	m := &mesh{consul: c, reach: c.Service("", ""), t: t}
	m.Host = testhost.New(t, consul.Config(m.reach), "sids", "consul-services", "envoy-bootstrap")
	m.Start()
	const stranger = 64099
	for _, admin := range []string{"unix", "tcp"} {
		spec := strings.Replace(sidecarService("web", `
          upstreams {
            destination_name       = "db"
            local_bind_socket_path = "${secrets_dir}/web/db.sock"
          }`), "connect {", "connect {\n      admin = \""+admin+"\"", 1)
		m.Run("workload", "start", m.meshWorkload(admin, spec))
		s := m.service(admin)
		folder := filepath.Dir(s.GetBootstrapFile())
		b, err := xds.Read(s.GetBootstrapFile())
		check.NoError(t, err)
		listeners := map[string]*corev3.Address{"admin.sock": b.GetAdmin().GetAddress()}
		for _, l := range b.GetStaticResources().GetListeners() {
			listeners["ready.sock"] = l.GetAddress()
		}
		for name, at := range listeners {
			network, address := "unix", at.GetPipe().GetPath()
			if admin == "tcp" {
				network = "tcp"
				address = net.JoinHostPort(at.GetSocketAddress().GetAddress(),
					strconv.Itoa(int(at.GetSocketAddress().GetPortValue())))
			} else if address != filepath.Join(folder, name) || at.GetPipe().GetMode() != 0o600 {
				t.Errorf("%s: %v", name, at)
			}
			var l net.Listener
			as(secretsUID, func() { l, err = net.Listen(network, address) })
			check.NoError(t, err)
			t.Cleanup(func() { _ = l.Close() })
			dial := func(uid int) (err error) {
				as(uid, func() {
					var conn net.Conn
					if conn, err = net.Dial(network, address); err == nil {
						_ = conn.Close()
					}
				})
				return err
			}
			check.NoError(t, dial(secretsUID))
			if err := dial(stranger); (err == nil) != (admin == "tcp") || err != nil && !errors.Is(err, unix.EACCES) {
				t.Errorf("%s by %s: another user gets %v", name, admin, err)
			}
		}
		proxy := c.Services(t)[s.GetProxyId()]
		if got, want := proxy.Proxy.Upstreams[0].LocalBindSocketPath, filepath.Join(folder, "db.sock"); got != want {
			t.Errorf("the upstream listens on %q, want %q", got, want)
		}
		m.Run("workload", "stop", admin)
	}
	m.NothingInUse()
	if left := c.Services(t); len(left) > 0 {
		t.Errorf("Consul has the services %v", left)
	}
}

// as runs fn with the rights of a user on files.
func as(uid int, fn func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Setfsuid(uid)
	defer func() { _ = unix.Setfsuid(0) }()
	fn()
}
