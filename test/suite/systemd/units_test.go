package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
)

// redis is the program of the documented unit, which says in its volume that it was started.
const redis = `#!/bin/sh
echo "$*" >>/data/starts && exec sleep infinity
`

// page returns what a page has after some text, up to the end of its code block.
func page(t *testing.T, name, start string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(testbin.Root(), "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(raw), start)
	text, _, ended := strings.Cut(after, "```\n")
	if !found || !ended {
		t.Fatalf("docs/%s has no block that begins with %q", name, start)
	}
	return text
}

// withUnit makes a host with the documented unit of docs/workloads.md, enabled and started as it says there.
func withUnit(t *testing.T) *host {
	t.Helper()
	h := newHost(t, "pannier.socket")
	h.packaged("pannier-workload@.service")
	h.Run("sh", "-c", "echo redis:x:800:800::/:/bin/sh >>/etc/passwd; echo redis:x:800: >>/etc/group")
	h.Write("/usr/bin/redis-server", redis, 0o755)
	h.Write("/etc/systemd/system/redis.service", page(t, "workloads.md", "# /etc/systemd/system/redis.service\n"), 0o644)
	h.Write("/etc/pannier/workloads/redis.hcl", `
workload "redis" {
  volume "data" {
    source      = "redis-data"
    destination = "/data"
    mount_options {
      volume_mount_group = "800"
    }
  }
}
`, 0o644)
	h.Boot()
	h.create("redis-data")
	h.Run("sh", "-c", page(t, "workloads.md", "<!-- run: unit -->\n```sh\n"))
	return h
}

// started checks that the unit runs with its volume, and was started so many times. It returns its process.
func (h *host) started(times int) (pid string) {
	h.t.Helper()
	h.Eventually(fmt.Sprintf("it has started %d times in its volume", times), func() error {
		pid = h.show("redis.service", "MainPID")
		out, err := h.Try("nsenter", "--mount", "--target", pid, "cat", "/data/starts")
		if err != nil || strings.Count(out, "--dir /data\n") != times {
			return fmt.Errorf("its file has %q: %w", out, err)
		}
		return nil
	})
	if !h.claimed("redis-data") {
		h.t.Error("the unit runs, and its volume is not claimed")
	}
	return pid
}

// TestWorkloadUnit runs a unit with a volume as the documentation says: it lives as long as it should, and so does the
// claim of its volume.
func TestWorkloadUnit(t *testing.T) {
	t.Parallel()
	h := withUnit(t)
	const dropin = "[Unit]\nRequires=pannier-workload@redis.service\nAfter=pannier-workload@redis.service\n\n[Service]\nBindPaths="
	if lines := h.Read("/etc/systemd/system/redis.service.d/pannier.conf"); !strings.HasPrefix(lines, dropin) ||
		strings.Count(lines, "=") != 3 {
		t.Errorf("the drop-in is %s", lines)
	}
	first := h.started(1)
	const call = "/StartWorkload object=redis"
	fields := h.Run("journalctl", "--no-pager", "--output=cat", "--unit=pannier.service", "--priority=info", "PANNIER_OBJECT=redis")
	all := h.Journal()
	calls := strings.Count(fields, call)
	if calls == 0 || calls != strings.Count(all, call) || strings.Contains(all, "[INFO]") {
		t.Errorf("by fields the journal has %d lines of the call:\n%s\nof all:\n%s", calls, fields, all)
	}

	h.Run("systemctl", "restart", "pannier.service")
	agent := strconv.Itoa(h.pid())
	h.Run("kill", "-KILL", agent)
	h.Eventually("another agent runs", func() error {
		if now := h.show("pannier.service", "MainPID"); now == agent || now == "0" {
			return errors.New("it does not")
		}
		return nil
	})
	h.Run("systemctl", "stop", "pannier.service")
	h.is("pannier-workload@redis.service", "active")
	h.Run("systemctl", "start", "pannier.service")
	if now := h.started(1); now != first {
		t.Errorf("the unit's process was %s, and is %s", first, now)
	}

	h.Run("systemctl", "kill", "--signal=KILL", "redis.service") // is started again
	h.started(2)
	h.Run("systemctl", "stop", "redis.service")
	h.becomes("pannier-workload@redis.service", "inactive")
	h.released("redis-data")

	h.Write("/root/other.hcl", `workload "other" {
  volume "data" {
    source      = "redis-data"
    destination = "/data"
  }
}`, 0o644)
	h.Run("pannier", "workload", "start", "/root/other.hcl")
	h.refused(1, []string{"dependency job"}, "systemctl", "start", "redis.service")
	h.refused(3, []string{`held by workload "other"`}, "systemctl", "status", "--lines=20", "pannier-workload@redis.service")
	h.is("redis.service", "inactive")
	h.Run("pannier", "workload", "stop", "other")
	h.Run("systemctl", "start", "redis.service")
	h.started(3)

	h.PowerCycle()
	h.started(4)
	h.Reboot()
	h.started(5)
}

// TestWorkloadUnitWithACLs gives a unit's workload a token as the documentation says. Without it, it is refused.
func TestWorkloadUnitWithACLs(t *testing.T) {
	t.Parallel()
	h := withUnit(t)
	h.started(1)
	h.Run("systemctl", "stop", "redis.service")
	h.released("redis-data")
	h.Write("/etc/pannier/agent.hcl", h.Read("/etc/pannier/agent.hcl")+"acl {\n  enabled = true\n  socket_root = false\n}\n", 0o644)
	h.Run("systemctl", "restart", "pannier.service")
	h.refused(1, nil, "systemctl", "start", "redis.service")
	h.refused(3, []string{"this call has no token"}, "systemctl", "status", "--lines=20", "pannier-workload@redis.service")

	h.Write("/root/mount.hcl", page(t, "mount.md", "<!-- policy: mount -->\n```hcl\n"), 0o600)
	h.Run("sh", "-c", "PANNIER_TOKEN=$(pannier acl bootstrap | sed -n 's/^Secret *//p') && export PANNIER_TOKEN\n"+
		"pannier acl policy apply mount /root/mount.hcl &&"+page(t, "workloads.md", "<!-- run: unit-token -->\n  ```sh\n"))
	h.Run("systemctl", "start", "redis.service")
	h.becomes("redis.service", "active")
	h.Run("systemctl", "stop", "redis.service")
	h.becomes("pannier-workload@redis.service", "inactive")
	h.Eventually("the volume is released", func() error {
		if out, err := h.Try("findmnt", "--noheadings", "--list", "--output", "TARGET"); err != nil || strings.Contains(out, "redis-data") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}
