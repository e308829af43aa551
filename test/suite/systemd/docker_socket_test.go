package systemd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testbin"
)

// asDocker makes a call as dockerd does when it looks for the driver, and returns the answer.
func (h *host) asDocker() string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", h.Path("/run/docker/plugins/pannier.sock"))
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://plugin/Plugin.Activate", http.NoBody)
	if err != nil {
		h.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		h.t.Fatalf("%v\n%s", err, h.Journal())
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(text))
}

// TestDockerSocket calls Docker's plugin in each state of the agent: dockerd never finds no socket, for which it would
// look 15 seconds for each of its volumes.
func TestDockerSocket(t *testing.T) {
	t.Parallel()
	h := newHost(t, "pannier.socket")
	h.packaged("pannier-docker.socket")
	h.Install(testbin.Build(t, "plugins/docker-volume"), "/usr/lib/pannier/plugins/docker-volume")
	h.Write("/etc/pannier/docker.hcl", docpages.Block(t, "docker.md", "config", "docker-volume"), 0o644)
	h.Boot()
	const serves = `200 {"Implements":["VolumeDriver"]}`
	served := func(when string) {
		t.Helper()
		if got := strings.TrimSpace(h.asDocker()); got != serves {
			t.Errorf("%s the answer is %s\n%s", when, got, h.Journal())
		}
	}
	h.Run("systemctl", "enable", "pannier-docker.socket")
	h.Run("pannier", "agent", "stop", "-plugins")
	h.Run("systemctl", "restart", "pannier-docker.socket", "pannier")
	served("of systemd's socket")
	h.Reboot()
	served("after a boot")
	h.Run("systemctl", "restart", "pannier.service")
	served("after a restart")
	h.Run("pannier", "agent", "upgrade")
	served("after an upgrade")
	h.Run("systemctl", "kill", "--signal=KILL", "pannier.service")
	served("after the agent was killed")
	h.Run("pannier", "agent", "stop", "-plugins")
	served("after a stop of the plugin too")
	h.Run("pannier", "agent", "stop", "-plugins")
	good := h.Read("/etc/pannier/agent.hcl")
	h.Write("/etc/pannier/agent.hcl", "nonsense = 1\n"+good, 0o644)
	if got := h.asDocker(); !strings.HasPrefix(got, "503 pannier.service does not come up") || !strings.Contains(got, "nonsense") {
		t.Errorf("with a wrong configuration the answer is %s", got)
	}
	h.becomes("pannier.service", "failed") // it has answered all who waited
	h.Write("/etc/pannier/agent.hcl", good, 0o644)
	served("after the configuration was corrected")
	if log := h.Journal(); strings.Contains(log, "listens where the configuration does not say") {
		t.Errorf("a socket is not used:\n%s", log)
	}
}
