package doctor

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// defaultDocker is where dockerd listens unless it is told otherwise.
const defaultDocker = "unix:///run/docker.sock"

// docker: a dockerd without live-restore ends its containers when it is restarted, and one that starts before the
// agent does not start containers whose volumes it has.
func (p *Patient) docker(ctx context.Context) []Finding {
	dockerSocket, local := strings.CutPrefix(cmp.Or(os.Getenv("DOCKER_HOST"), defaultDocker), "unix://")
	if !local {
		return skipped("DOCKER_HOST leads to another machine")
	}
	if _, err := os.Stat(dockerSocket); err != nil {
		return skipped("no dockerd listens on %s", dockerSocket)
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", dockerSocket)
		},
	}}
	var info struct {
		ServerVersion      string
		LiveRestoreEnabled bool
	}
	if err := call(ctx, client, http.MethodGet, "http://docker/info", "", nil, &info); err != nil {
		return one(Fail, fmt.Sprintf("dockerd does not answer on %s: %v", dockerSocket, err), "systemctl status docker")
	}
	var problems []Finding
	if !info.LiveRestoreEnabled {
		problems = append(problems, one(Warn, "a restart of dockerd ends its containers: live-restore is off",
			`echo '{"live-restore": true}'  # merge into /etc/docker/daemon.json, then systemctl reload docker`)...)
	}
	out, err := exec.CommandContext(ctx, "systemctl", "show", "-p", "After", "--value", "docker.service").Output()
	if order := strings.Fields(string(out)); err == nil && len(order) > 0 && !slices.Contains(order, "pannier.service") {
		problems = append(problems, one(Warn, "dockerd does not wait for the agent at boot: containers with its volumes fail to"+
			" start then", "systemctl edit docker  # [Unit] After=pannier.service Wants=pannier.service")...)
	}
	return or(problems, "version %s", info.ServerVersion)
}
