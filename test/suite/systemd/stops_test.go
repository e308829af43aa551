package systemd

import (
	"errors"
	"fmt"
	"testing"
)

// agentStates are the states of an agent in which something that it serves is stopped.
var agentStates = []struct {
	name  string
	bring func(h *host)
}{
	{"running", func(*host) {}},
	{"stopped", func(h *host) { h.Run("systemctl", "stop", "pannier.service") }},
	{"killed", func(h *host) { h.Run("systemctl", "kill", "--signal=KILL", "pannier.service") }},
	{"restarting", func(h *host) { h.Run("systemctl", "restart", "--no-block", "pannier.service") }},
	{"stopped with its socket", func(h *host) { h.Run("systemctl", "stop", "pannier.socket", "pannier.service") }},
}

// withStops makes a host on which a mount unit and a unit's workload use volumes, also after a boot.
func withStops(t *testing.T) *host {
	t.Helper()
	h := newHost(t, "pannier.socket")
	h.helpers()
	h.packaged("pannier-workload@.service")
	h.unit("data.mount", `[Mount]
What=pannier:data
Where=/data
Type=pannier`)
	h.Write("/etc/pannier/workloads/app.hcl", `workload "app" {
  volume "data" {
    source      = "app"
    destination = "/mnt/app"
  }
}`, 0o644)
	h.unit("app.service", `[Unit]
Requires=pannier-workload@app.service
After=pannier-workload@app.service
[Service]
ExecStart=/bin/sleep infinity`)
	h.Boot()
	h.create("data")
	h.create("app")
	h.inUse()
	return h
}

// inUse starts the units and the agent, and waits until the volumes are used.
func (h *host) inUse() {
	h.t.Helper()
	h.Run("systemctl", "start", "pannier.socket", "pannier.service", "data.mount", "app.service")
	for _, unit := range []string{"data.mount", "app.service", "pannier-workload@app.service"} {
		h.becomes(unit, "active")
	}
	if !h.mounted("/data") || !h.claimed("data") || !h.claimed("app") {
		h.t.Fatalf("the units run; /data is mounted: %t, claimed: data %t, app %t", h.mounted("/data"), h.claimed("data"),
			h.claimed("app"))
	}
}

// TestStops stops what uses volumes in each state of the agent: no stop waits for an agent that systemd starts only
// after it, none fails, and the volumes are released as soon as the agent is up.
func TestStops(t *testing.T) {
	t.Parallel()
	h := withStops(t)
	for _, state := range agentStates {
		for _, c := range []struct{ stop, unit, volume string }{
			{"data.mount", "data.mount", "data"},
			{"app.service", "pannier-workload@app.service", "app"},
		} {
			if c.volume == "app" && state.name == "stopped with its socket" {
				continue // nothing keeps the call until an agent is there: the unit fails, and says so
			}
			t.Logf("%s is stopped; the agent is %s", c.stop, state.name)
			state.bring(h)
			h.Run("systemctl", "stop", c.stop)
			h.becomes(c.unit, "inactive")
			h.Run("systemctl", "start", "pannier.socket", "pannier.service")
			h.released(c.volume)
			h.inUse()
		}
	}
}

// TestShutdowns shuts the machine down in each state of the agent, and finds everything running after the next boot.
func TestShutdowns(t *testing.T) {
	t.Parallel()
	h := withStops(t)
	for _, state := range agentStates {
		t.Logf("the machine is shut down; the agent is %s", state.name)
		state.bring(h)
		h.Reboot()
		t.Logf("it has booted")
		h.Eventually("the units run", func() error {
			if out, err := h.Try("systemctl", "is-active", "data.mount", "app.service"); err != nil {
				return errors.Join(err, fmt.Errorf("%s", out))
			}
			return nil
		})
		h.inUse()
	}
}
