package systemd

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
	"github.com/pannier/pannier/test/lib/testsystemd"
)

// socket is the API's.
const socket = "/run/pannier/pannier.sock"

var (
	bootCount = flag.Int("boots", 2, "how often TestBoots boots its host again")
	bootSeed  = flag.Uint64("boot-seed", 0, "of the moments at which TestBoots kills; 0: a new one")
)

func TestMain(m *testing.M) { testns.Main(m, 2) }

// host is a machine with an agent, installed as the documentation says.
type host struct {
	*testsystemd.Machine
	t *testing.T
}

// newHost prepares a machine whose units of the agent are enabled: pannier.service and what is given.
func newHost(t *testing.T, units ...string) *host {
	t.Helper()
	h := &host{testsystemd.New(t, "the agent under systemd"), t}
	h.Install(testbin.Build(t, "host/cmd/pannier"), "/usr/bin/pannier")
	h.Install(testbin.Build(t, "host/cmd/pannier-agent"), "/usr/lib/pannier/pannier-agent")
	h.Install(testbin.Build(t, "plugins/csi-bridge"), "/usr/lib/pannier/plugins/csi-bridge")
	h.Install(testbin.Build(t, "drivers/csi-local"), "/usr/lib/pannier/csi-local")
	for _, unit := range append([]string{"pannier.service"}, units...) {
		h.packaged(unit)
	}
	h.Write("/etc/pannier/agent.hcl", `
name = "a"
ports {
  http = 0
}
csi_driver "local" {
  command = ["/usr/lib/pannier/csi-local", "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-data-dir", "/srv/volumes"]
}
`, 0o644)
	for _, unit := range append([]string{"pannier.service"}, units...) {
		h.Run("systemctl", "enable", unit)
	}
	return h
}

// packaged writes one of the package's units.
func (h *host) packaged(unit string) {
	h.t.Helper()
	text, err := os.ReadFile(filepath.Join(testbin.Root(), "packaging/systemd", unit))
	if err != nil {
		h.t.Fatal(err)
	}
	h.Write("/usr/lib/systemd/system/"+unit, string(text), 0o644)
}

// unit writes a unit that is started at the boot.
func (h *host) unit(name, text string) {
	h.t.Helper()
	h.Write("/etc/systemd/system/"+name, text+"\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	h.Run("systemctl", "enable", name)
}

// show returns a property of a unit.
func (h *host) show(unit, property string) string {
	h.t.Helper()
	return strings.TrimSpace(h.Run("systemctl", "show", "--value", "--property="+property, unit))
}

// pid returns the agent's.
func (h *host) pid() int {
	h.t.Helper()
	pid, err := strconv.Atoi(h.show("pannier.service", "MainPID"))
	if err != nil || pid == 0 {
		h.t.Fatalf("the agent's process is %d: %v\n%s", pid, err, h.Journal())
	}
	return pid
}

// answers calls the API once.
func (h *host) answers() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", h.Path(socket))
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pannier/v1/health", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// is fails unless a unit is in a state.
func (h *host) is(unit, state string) {
	h.t.Helper()
	if got := h.show(unit, "ActiveState"); got != state {
		h.t.Errorf("%s is %s, not %s\n%s", unit, got, state, h.Journal())
	}
}

// becomes waits until a unit is in a state.
func (h *host) becomes(unit, state string) {
	h.t.Helper()
	h.Eventually(unit+" is "+state, func() error {
		out, err := h.Try("systemctl", "show", "--value", "--property=ActiveState", unit)
		if got := strings.TrimSpace(out); err != nil || got != state {
			return errors.Join(err, fmt.Errorf("it is %s", got))
		}
		return nil
	})
}
