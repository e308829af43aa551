package security_test

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The secrets of volumes and tokens are in no file, log, event, argument, environment, snapshot, metric, stack or core
// file of a cluster that uses them; keys are in their own files only.
func TestASecretIsNowhere(t *testing.T) {
	t.Parallel()
	cores(t)
	c := testcluster.New(t, testcluster.Options{Servers: 1, Nodes: 1, Config: `
acl {
  enabled = true
}
audit {
  path = "audit.log"
}
`})
	server, node := c.Host("server-1"), c.Host("node-1")
	for _, h := range c.Hosts {
		h.Env = []string{"GOTRACEBACK=crash"} // an agent that is told to says all, and leaves a core file where it may
	}
	management := withTokens(t, c)
	weak := token(t, server, "default")
	secretVolume(t, node, "v")
	node.Token = weak
	node.Run("workload", "start", c.Workload(node, "w", "v"))
	node.Refused(4, nil, "workload", "start", c.Workload(node, "other", "v"))
	node.Token = management

	backup := server.Path("ledger.snapshot")
	server.Run("operator", "snapshot", "save", backup)
	var shown []string
	for _, h := range c.Hosts {
		for _, command := range [][]string{
			{"volume", "status", "v"},
			{"volume", "explain", "v"},
			{"workload", "status", "w"},
			{"node", "status"},
			{"operator", "secrets", "status"},
			{"operator", "raft", "list-peers"},
			{"acl", "token", "list"},
			{"plugin", "log", "csi-bridge"},
		} {
			out := h.Try(command...)
			shown = append(shown, out.Stdout+out.Stderr, h.Try(append(slices.Clone(command), "-o", "json")...).Stdout)
		}
		shown = append(shown, served(t, h, "/v1/metrics"), served(t, h, "/v1/health"), served(t, h, "/.well-known/jwks.json"))
	}
	keys := keysOf(t, c)
	for _, h := range c.Hosts {
		for _, place := range h.Leaks([]string{password, management, weak}, shown...) {
			t.Errorf("%s: a secret is in %s", h.Name, place)
		}
		keysStay(t, h, keys, shown)
	}

	node.Run("workload", "stop", "w")
	for _, h := range c.Hosts {
		h.Dump()
		for _, secret := range append([]string{password, management, weak}, keys...) {
			if text, err := os.ReadFile(h.Path("agent.log")); err != nil || strings.Contains(string(text), secret) {
				t.Errorf("%s: a secret is in the stacks in the log: %v", h.Name, err)
			}
		}
		if h.LeftCore() {
			t.Errorf("%s: the agent leaves a core file", h.Name)
		}
	}
	for _, h := range c.Hosts {
		left := h.Processes()
		if len(left) == 0 {
			t.Errorf("%s: no plugin goes on without the agent", h.Name)
		}
		for _, pid := range left {
			limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid)) // it has ended
			for line := range strings.Lines(string(limits)) {
				if rest, ok := strings.CutPrefix(line, "Max core file size"); ok && strings.Fields(rest)[1] != "0" {
					t.Errorf("%s: process %d may leave a core file: %s", h.Name, pid, line)
				}
			}
		}
	}
}

// cores lets programs that this process starts leave core files, and removes those that they leave here.
func cores(t *testing.T) {
	t.Helper()
	var before unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_CORE, &before)
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: before.Max, Max: before.Max})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &before); err != nil {
			t.Error(err)
		}
		left, _ := filepath.Glob("core*")
		for _, file := range left {
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
		}
	})
}

// served returns what an agent serves on a path of its socket.
func served(t *testing.T, h *testhost.Host, path string) string {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.Socket())
	}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("http://localhost" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keysOf returns the keys of a cluster: of gossip, of secrets, and of nodes.
func keysOf(t *testing.T, c *testcluster.Cluster) (keys []string) {
	t.Helper()
	paths := []string{filepath.Join(c.Dir, "gossip.key")}
	for _, h := range c.Hosts {
		paths = append(paths, h.Path("data/node.secret"))
	}
	sealing, err := filepath.Glob(c.Servers()[0].Path("data/secrets.keys/*"))
	if err != nil || len(sealing) == 0 {
		t.Fatalf("no secrets keys: %v", err)
	}
	for _, path := range append(paths, sealing...) {
		key, err := os.ReadFile(path)
		if err != nil || len(key) == 0 {
			t.Fatalf("%s: %v", path, err)
		}
		keys = append(keys, strings.TrimSpace(string(key)))
	}
	return keys
}

// keysStay checks that keys are in no log, no process's arguments or environment, and not in shown.
func keysStay(t *testing.T, h *testhost.Host, keys, shown []string) {
	t.Helper()
	texts := map[string]string{"what is shown": strings.Join(shown, "\n")}
	err := filepath.WalkDir(h.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".log") && d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			texts[path] = string(text)
			return err
		}
		return nil // it is gone
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range append(h.Processes(), h.PID()) {
		for _, name := range []string{"cmdline", "environ"} {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name)) // it has ended
			texts[fmt.Sprintf("%s of process %d", name, pid)] = string(text)
		}
	}
	for place, text := range texts {
		for _, key := range keys {
			if strings.Contains(text, key) {
				t.Errorf("%s: a key is in %s", h.Name, place)
			}
		}
	}
}
