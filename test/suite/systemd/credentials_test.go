package systemd

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/envoy"
	"github.com/pannier/pannier/test/lib/testbin"
)

// credentials is the socket from which units load the secrets of their workloads.
const credentials = "/run/pannier/pannier-credentials.sock"

// management is the token of the machine's Consul that may do everything.
const management = "8a1c7f0e-93a4-4c6a-9f59-0e0c2f6a7b11"

// web is the program of the documented units. It says what it has loaded: the token and its user.
const web = `#!/bin/sh
cat "$CONSUL_HTTP_TOKEN_FILE" >&2 || exit 1
id -un >&2
exec sleep infinity
`

// withConsul makes a host with a Consul that has ACLs, and the documented units of docs/consul.md, started as it says
// there.
func withConsul(t *testing.T) *host {
	t.Helper()
	program := envoy.Program(t, "the documented units")
	h := newHost(t, "pannier.socket")
	h.packaged("pannier-workload@.service")
	h.Install(consul.Binary(t), "/usr/bin/consul")
	for _, plugin := range []string{"consul-services", "sids", "envoy-bootstrap"} {
		h.Install(testbin.Build(t, "plugins/"+plugin), "/usr/lib/pannier/plugins/"+plugin)
	}
	h.Write("/etc/hosts", "127.0.0.1 localhost\n", 0o644)
	h.Write("/etc/consul.hcl", fmt.Sprintf(`
disable_update_check = true
acl {
  enabled        = true
  default_policy = "deny"
  tokens {
    initial_management = %[1]q
    agent              = %[1]q
  }
}
`, management), 0o644)
	h.unit("consul.service", `[Service]
ExecStart=/usr/bin/consul agent -dev -log-level=warn -config-file=/etc/consul.hcl
`)
	h.Write("/etc/pannier/consul.token", management, 0o600)
	h.Write("/etc/pannier/consul.hcl", `
consul {
  address    = "127.0.0.1:8500"
  token_file = "/etc/pannier/consul.token"
}
plugin "sids" {
  config {
    token_file = "/etc/pannier/consul.token"
  }
}
`, 0o644)
	h.Install(program, "/usr/bin/envoy")
	for _, name := range []string{"web", "shop"} { // the same again, for a second one of this host
		again := strings.NewReplacer("web", name, "8080", map[string]string{"web": "8080", "shop": "8081"}[name])
		h.Write("/usr/bin/"+name, web, 0o755)
		h.Write("/etc/pannier/workloads/"+name+".hcl",
			again.Replace(page(t, "consul.md", "# /etc/pannier/workloads/web.hcl\n")), 0o644)
		for _, unit := range []string{".service", "-envoy.service", "-restart.path", "-restart.service"} {
			h.Write("/etc/systemd/system/"+name+unit,
				again.Replace(page(t, "consul.md", "# /etc/systemd/system/web"+unit+"\n")), 0o644)
		}
	}
	h.Boot()
	commands := page(t, "consul.md", "<!-- run: units -->\n```sh\n")
	h.Run("sh", "-c", commands)
	h.Run("sh", "-c", strings.ReplaceAll(commands, "web", "shop"))
	return h
}

// token returns what the workload's token is, from the file that the host keeps.
func (h *host) token() string {
	h.t.Helper()
	return strings.TrimSpace(h.Read("/var/lib/pannier/secrets/default/web/web/si_token"))
}

// said returns what a unit's processes have written.
func (h *host) said(unit string) string {
	h.t.Helper()
	return h.Run("journalctl", "--no-pager", "--output=cat", "--unit="+unit)
}

// refusedCredential checks that a unit fails for want of a credential, with nothing of the secret, and that the agent
// explains why.
func (h *host) refusedCredential(unit, secret string, words ...string) {
	h.t.Helper()
	if out, err := h.Try("systemctl", "start", unit); err == nil {
		h.t.Errorf("%s has started: %s", unit, out)
	}
	if state := h.show(unit, "ExecMainStatus"); state != "243" {
		h.t.Errorf("%s has ended with %s, not 243/CREDENTIALS\n%s", unit, state, h.Journal())
	}
	said := h.Run("journalctl", "--no-pager", "--output=cat", "_SYSTEMD_INVOCATION_ID="+h.show(unit, "InvocationID"))
	if strings.Contains(said, secret) {
		h.t.Errorf("%s has the token: %s", unit, said)
	}
	h.loggedOf(append(words, unit)...)
}

// loggedOf waits until a line of the agent's log has some words.
func (h *host) loggedOf(words ...string) {
	h.t.Helper()
	h.Eventually(fmt.Sprintf("the agent logs %q", words), func() error {
	lines:
		for line := range strings.Lines(h.said("pannier.service")) {
			for _, word := range words {
				if !strings.Contains(line, word) {
					continue lines
				}
			}
			return nil
		}
		return errors.New("it does not")
	})
}

// TestCredentials starts units that load the token of their workload, as the documentation says. Nobody else gets it.
func TestCredentials(t *testing.T) {
	t.Parallel()
	h := withConsul(t)
	started := func(unit string, times int, words ...string) {
		t.Helper()
		h.Eventually(fmt.Sprintf("%s has started %d times", unit, times), func() error {
			said := h.said(unit)
			for _, word := range words {
				if n := strings.Count(said, word); n != times {
					return fmt.Errorf("%q is there %d times in %s", word, n, said)
				}
			}
			return nil
		})
		h.is(unit, "active")
	}
	dropin := page(t, "consul.md", "systemctl enable --now web.service\n```\n\n```ini\n")
	if lines := h.Read("/etc/systemd/system/web.service.d/pannier.conf"); lines != dropin {
		t.Errorf("the drop-in is\n%s, and the documentation has\n%s", lines, dropin)
	}
	token := h.token()
	if !strings.Contains(h.Run("consul", "acl", "token", "read", "-self", "-token="+token), "web") {
		t.Error("it is no token of web")
	}
	started("web.service", 1, token, "web\n") // its dynamic user
	started("web-envoy.service", 1, "add/update listener 'public_listener")
	started("shop-envoy.service", 1, "add/update listener 'public_listener")
	h.loggedOf("a unit has loaded a credential", "unit=web.service", "credential=web.si_token", "workload=web")

	const other = `[Service]
Type=exec
Environment=CONSUL_HTTP_TOKEN_FILE=%%d/%[1]s
LoadCredential=%[1]s:` + credentials + `
ExecStart=/usr/bin/web
`
	h.Write("/etc/systemd/system/other.service", fmt.Sprintf(other, "web.si_token"), 0o644)
	h.Run("systemctl", "daemon-reload")
	h.refusedCredential("other.service", token, "web.si_token", "units = [")

	h.Install(testbin.Build(t, "test/suite/systemd/internal/asks"), "/usr/bin/asks")
	forged := func(n int) string { return fmt.Sprintf("@0123456789abcde%d/unit/web.service/web.si_token", n) }
	nobody := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"}
	h.refused(1, []string{"permission denied"}, append(nobody, "asks", forged(1), credentials)...)
	h.Run("chmod", "666", credentials)
	for n, as := range [][]string{nobody, nil} { // root, too, but not in the unit's control group
		if out := h.Run(append(as, "asks", forged(n), credentials)...); out != "0 bytes: \n" {
			t.Errorf("as %v: it gets %q", as, out)
		}
	}
	h.loggedOf("gets nothing", "uid=65534", "it is not root")
	h.loggedOf("gets nothing", "uid=0", "which are not the unit's")
	if out := h.Run("asks", "@just/any/address", credentials); out != "0 bytes: \n" {
		t.Errorf("from another address: it gets %q", out)
	}

	// It may have it once the spec says so, which needs no restart of the workload; but not another secret.
	h.Run("sed", "-i", `s/units = \[/&"other.service", /`, "/etc/pannier/workloads/web.hcl")
	h.Run("pannier", "workload", "start", "/etc/pannier/workloads/web.hcl")
	h.Run("systemctl", "start", "other.service")
	started("other.service", 1, token)
	h.Run("systemctl", "stop", "other.service")
	h.Write("/etc/systemd/system/other.service", fmt.Sprintf(other, "db.si_token"), 0o644)
	h.Run("systemctl", "daemon-reload")
	h.refusedCredential("other.service", token, "db.si_token", "no such secret", "web.si_token")

	// The socket stays: a unit that starts while the agent does not run waits for it.
	h.Run("systemctl", "stop", "pannier.service")
	h.Run("systemctl", "restart", "web.service") // starts the agent
	started("web.service", 2, token)
	h.Run("pannier", "agent", "upgrade")
	h.Run("systemctl", "restart", "web.service")
	started("web.service", 3, token)
	h.Eventually("the service is in the catalog again", func() error {
		if there := h.Run("consul", "catalog", "services", "-token="+management); !strings.Contains(there, "web\n") {
			return errors.New(there)
		}
		return nil
	})

	h.Write("/etc/systemd/system/other.service", fmt.Sprintf(other, "web.si_token"), 0o644)
	h.Run("systemctl", "daemon-reload")
	h.Run("systemctl", "enable", "--now", "web-restart.path")
	h.Run("systemctl", "stop", "web.service") // stops the path, which would keep the workload
	h.becomes("pannier-workload@web.service", "inactive")
	if out, err := h.Try("consul", "acl", "token", "read", "-self", "-token="+token); err == nil {
		t.Errorf("the token is not revoked: %s", out)
	}
	h.refusedCredential("other.service", token, "web.si_token")
}
