package systemd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestAfterTheAgent boots a host with a unit that is started after the agent: the API answers by then.
func TestAfterTheAgent(t *testing.T) {
	t.Parallel()
	h := newHost(t) // without the socket's unit, so that nothing is there before the agent
	h.unit("uses.service", `[Unit]
After=pannier.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/test -S `+socket)
	for _, engine := range []string{"docker.service", "podman-restart.service"} {
		h.unit(engine, `[Unit]
After=network-online.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/test -S `+socket)
	}
	h.Boot()
	h.is("pannier.service", "active")
	h.is("uses.service", "active")
	h.is("docker.service", "active")
	h.is("podman-restart.service", "active")
}

// TestStopWhileItStarts checks that nothing revokes a stop of an agent that starts: it does not start itself by a call
// on the socket, where systemd listens until it is ready.
func TestStopWhileItStarts(t *testing.T) {
	t.Parallel()
	h := newHost(t, "pannier.socket")
	h.Boot()
	h.Run("systemctl", "stop", "pannier.service")
	h.Run("systemctl", "log-level", "debug")
	h.Run("systemctl", "start", "pannier.service")
	h.Run("systemctl", "log-level", "info")
	const passes, called = "pannier.service: Passing 2 fds to service", "pannier.socket: Incoming traffic"
	if log := h.Journal(); !strings.Contains(log, passes) || strings.Contains(log, called) {
		t.Errorf("systemd was to say %q, and not %q:\n%s", passes, called, log)
	}
	h.Run("systemctl", "restart", "--no-block", "pannier.service")
	h.Run("systemctl", "stop", "pannier.service")
	h.is("pannier.service", "inactive")
}

// TestStalledInit stops systemd (SIGSTOP): the agent goes on, and gives a workload its volume.
func TestStalledInit(t *testing.T) {
	t.Parallel()
	h := withUnit(t)
	unit := h.started(1)
	agent := h.pid()
	h.Write("/root/workload.hcl", `workload "other" {
  volume "data" {
    source      = "other"
    destination = "/mnt/other"
  }
}`, 0o644)
	h.create("other")
	check.Stop(t, h.PID())
	for _, command := range []string{
		"status", "doctor", "workload status redis", "workload start /root/workload.hcl", "workload stop other",
	} {
		if out, err := h.Try(append([]string{"timeout", "30", "pannier"}, strings.Fields(command)...)...); err != nil {
			t.Errorf("pannier %s: %v\n%s", command, err, out)
		}
	}
	h.released("other")
	check.NoError(t, unix.Kill(h.PID(), unix.SIGCONT))
	if now := h.started(1); now != unit {
		t.Errorf("the unit's process was %s and is %s", unit, now)
	}
	if now := h.pid(); now != agent {
		t.Errorf("the agent was process %d and is %d", agent, now)
	}
}

// TestSocket restarts, stops and upgrades the agent: nobody who calls it is refused, and a call starts it.
func TestSocket(t *testing.T) {
	t.Parallel()
	h := newHost(t, "pannier.socket")
	h.unit("early.service", `[Unit]
After=pannier.socket
Before=pannier.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/test -S `+socket)
	h.Boot()
	h.is("early.service", "active")
	h.is("pannier.service", "active")

	h.while("the agent is restarted", lost, func() { h.Run("systemctl", "restart", "pannier.service") })
	before := h.pid()
	program := testbin.BuildVersion(t, "host/cmd/pannier-agent", "9.9.9")
	h.while("the agent is upgraded", nil, func() {
		h.Install(program, "/usr/lib/pannier/pannier-agent")
		if out := h.Run("pannier", "agent", "upgrade"); !strings.Contains(out, "9.9.9") {
			t.Errorf("the upgrade says %s", out)
		}
	})
	if after := h.pid(); after != before {
		t.Errorf("the agent's process was %d, and is %d", before, after)
	}
	h.Run("pannier", "agent", "stop")
	h.becomes("pannier.service", "inactive")
	if err := h.answers(); err != nil {
		t.Errorf("a call does not start the agent: %v\n%s", err, h.Journal())
	}
	h.Run("systemctl", "stop", "pannier.socket", "pannier.service")
	if err := h.answers(); !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without socket and agent a call has %v", err)
	}
	h.Run("systemctl", "start", "pannier.service") // it wants its socket
	h.is("pannier.socket", "active")
	if err := h.answers(); err != nil {
		t.Error(err)
	}
}

// lost reports whether a call had reached an agent that ended.
func lost(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) }

// while calls the API without pause as long as fn runs. No call may fail but with a tolerated error.
func (h *host) while(what string, tolerated func(error) bool, fn func()) {
	h.t.Helper()
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		for calls := 0; ; calls++ {
			select {
			case <-stop:
				if calls == 0 {
					ended <- errors.New("no call was made")
				}
				ended <- nil
				return
			default:
			}
			if err := h.answers(); err != nil && (tolerated == nil || !tolerated(err)) {
				ended <- fmt.Errorf("call %d: %w", calls, err)
				return
			}
		}
	}()
	fn()
	close(stop)
	if err := <-ended; err != nil {
		h.t.Errorf("while %s: %v\n%s", what, err, h.Journal())
	}
}

// TestWatchdog stops the agent's process: systemd starts another one. One that was upgraded or has read its
// configuration again is alive.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	h := newHost(t, "pannier.socket")
	h.Write("/etc/systemd/system/pannier.service.d/test.conf", "[Service]\nWatchdogSec=3s\n", 0o644)
	h.Boot()
	first := h.pid()
	h.Run("pannier", "agent", "upgrade")
	h.Run("systemctl", "reload", "pannier.service")
	h.becomes("pannier.service", "active")
	told := func() (n int) {
		n, err := strconv.Atoi(h.show("pannier.service", "WatchdogTimestampMonotonic"))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 3 {
		last := told()
		h.Eventually("the agent says that it lives", func() error {
			if told() == last {
				return errors.New("it is silent")
			}
			return nil
		})
	}
	if now := h.pid(); now != first {
		t.Fatalf("the agent's process was %d, and is %d\n%s", first, now, h.Journal())
	}
	h.reportsItself()
	h.Run("kill", "-STOP", strconv.Itoa(first))
	h.Eventually("systemd has started another agent", func() error {
		now := h.show("pannier.service", "MainPID") // 0 while the old one ends
		if h.show("pannier.service", "ActiveState") != "active" || now == "0" || now == strconv.Itoa(first) {
			return errors.New("it has not")
		}
		return nil
	})
	if err := h.answers(); err != nil {
		t.Error(err)
	}
	if err := unix.Access(h.Path(socket), unix.F_OK); err != nil {
		t.Error(err)
	}
}

// reportsItself fails if a plugin or driver could report to systemd for the agent.
func (h *host) reportsItself() {
	h.t.Helper()
	found, err := filepath.Glob(h.Path("/proc/[0-9]*"))
	if err != nil {
		h.t.Fatal(err)
	}
	ours := 0
	for _, dir := range found {
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		environment, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if !bytes.HasPrefix(name, []byte("csi-")) {
			continue
		}
		ours++
		if bytes.Contains(environment, []byte("NOTIFY_SOCKET=")) {
			h.t.Errorf("%s could report for the agent", bytes.TrimSpace(name))
		}
	}
	if ours < 2 {
		h.t.Errorf("%d processes of the agent's plugin and driver are found", ours)
	}
}

// TestBrokenConfiguration starts an agent with a mistake in its configuration: it stays down, and each call is answered
// with the mistake. The first call after it is corrected starts the agent.
func TestBrokenConfiguration(t *testing.T) {
	t.Parallel()
	h := newHost(t, "pannier.socket")
	h.Boot()
	h.is("pannier.service", "active")
	h.Write("/etc/pannier/x.hcl", "bind_adr = \"127.0.0.1\"\n", 0o644)
	if out, err := h.Try("systemctl", "restart", "pannier.service"); err == nil {
		t.Errorf("the service has started: %s", out)
	}
	for range 2 {
		h.refused(5, []string{"pannier.service does not come up", "/etc/pannier/x.hcl:1", `"bind_adr"`, `"bind_addr"`}, "pannier", "status")
		h.becomes("pannier.service", "failed")
	}
	if n := h.show("pannier.service", "NRestarts"); n != "0" {
		t.Errorf("it was restarted %s times", n)
	}
	h.is("pannier.socket", "active")
	h.Write("/etc/pannier/x.hcl", "", 0o644)
	if err := h.answers(); err != nil {
		t.Errorf("a call does not start the agent: %v\n%s", err, h.Journal())
	}
	h.becomes("pannier.service", "active")
}
