package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// pages are the pages of docs/operations.
type pages struct {
	*docpages.Pages
	t   *testing.T
	c   *testcluster.Cluster
	dir string // working directory of the lines
}

func readPages(t *testing.T, c *testcluster.Cluster) *pages {
	t.Helper()
	p := &pages{Pages: docpages.Read(t, "operations/*.md"), t: t, c: c, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(p.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(c.Hosts[0].Pannier, filepath.Join(p.dir, "bin", "pannier")); err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs the commands of a block on a host, with the usual paths replaced by this host's, and further
// replacements. The test itself implements systemctl.
func (p *pages) run(on *testhost.Host, page, name string, replace ...string) {
	p.t.Helper()
	where := page + ", " + name
	lines := p.Block(page, "run", name)
	replace = append(replace, "/var/lib/pannier", on.Path("data"), "/etc/pannier", p.c.Dir, "/run/pannier/pannier.sock",
		on.Socket())
	var shell strings.Builder
	finish := func() {
		p.t.Helper()
		if shell.Len() > 0 {
			p.shell(on, where, shell.String())
			shell.Reset()
		}
	}
	for line := range strings.Lines(strings.NewReplacer(replace...).Replace(lines)) {
		verb, isService := strings.CutPrefix(strings.TrimSpace(line), "systemctl ")
		if !isService {
			shell.WriteString(line)
			continue
		}
		finish()
		switch verb {
		case "enable --now pannier", "start pannier":
			on.Begin()
		case "stop pannier":
			on.Stop()
		case "restart pannier":
			on.Stop()
			on.Begin()
		default:
			p.t.Fatalf("docs/operations/%s: systemctl %s is not known here", where, verb)
		}
	}
	finish()
}

func (p *pages) shell(on *testhost.Host, where, lines string) {
	p.t.Helper()
	cmd := exec.Command("timeout", "180", "sh", "-euc", lines)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"),
		"PANNIER_ADDR=unix://"+on.Socket())
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("docs/operations/%s, on %s: %v\n%s%s\n%s", where, on.Name, err, lines, out, on.LogTail())
	}
	p.t.Logf("%s:\n%s%s", where, lines, out)
}

// copyFile copies a file within the pages' directory.
func (p *pages) copyFile(from, to string) {
	p.t.Helper()
	found, err := filepath.Glob(filepath.Join(p.dir, from))
	if err != nil || len(found) != 1 {
		p.t.Fatalf("%d files %s: %v", len(found), from, err)
	}
	data, err := os.ReadFile(found[0])
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, to), data, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

const volumeWithSecret = `
id           = "data"
type         = "csi"
plugin_id    = "shared"
capacity_min = "1MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
secrets {
  password = "sealed in the ledger"
}
`

// TestOperations runs all commands in the pages for operators against a cluster, in an order in which an
// operator could need them.
func TestOperations(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{
		Servers: 3, Nodes: 1,
		ServerConfig: "heartbeat_ttl = \"1s\"\nstop_after = \"5s\"\nstop_margin = \"4s\"",
		Config:       "autopilot {\n  server_stabilization_time = \"1s\"\n  last_contact_threshold = \"2s\"\n}\n",
	})
	p := readPages(t, c)
	node := c.Host("node-1")

	p.run(node, "forming.md", "authority")
	for _, h := range c.Hosts {
		p.run(h, "forming.md", "start")
	}
	ready := func(hosts ...*testhost.Host) {
		t.Helper()
		for _, h := range hosts {
			h.AwaitReady()
			h.AwaitDrivers()
		}
	}
	ready(c.Hosts...)
	server := c.Hosts[0]
	p.run(server, "forming.md", "check")
	node.Run("volume", "create", node.Write("data.volume.hcl", volumeWithSecret))
	// The pages call this node web-1.
	here := []string{"web-1", "node-1"}

	p.run(server, "tuning.md", "autopilot")
	p.run(server, "tuning.md", "gc")
	p.run(server, "tuning.md", "metrics")

	p.run(server, "security.md", "inspect")
	authority := []string{"-dir new", "-dir new -ca " + c.Dir + "/ca.pem -ca-key " + c.Dir + "/ca-key.pem"}
	p.run(server, "security.md", "renew", authority...)
	p.gossipKey(server)
	p.run(server, "security.md", "secrets-key")
	p.shows(server, "^KEY.*\n.*active.*\n$", "operator", "secrets", "status") // the old key is gone

	p.run(server, "security.md", "bind-node", here...)
	node.Refused(4, []string{"bound to the namespaces"}, "volume", "status", "data")
	server.Run("node", "namespaces", "-any", node.Name)

	p.run(node, "forming.md", "maintenance", here...)
	ready(node)

	p.run(server, "upgrading.md", "before")
	leader := c.Leader()
	for _, h := range c.Servers() {
		if h != leader {
			p.run(h, "upgrading.md", "server")
		}
	}
	p.run(leader, "upgrading.md", "leader")
	p.run(node, "upgrading.md", "node")
	p.run(node, "upgrading.md", "versions")
	ready(c.Hosts...)

	p.run(server, "backup.md", "save")
	p.copyFile("ledger-*.snapshot", "ledger.snapshot")
	p.run(server, "backup.md", "keys")
	p.run(server, "backup.md", "restore", here...)
	p.sees(node, "data")

	fourth := c.Add("server-4", true)
	p.run(fourth, "forming.md", "further-server")
	ready(fourth)
	p.voters(server, 4)
	p.run(fourth, "forming.md", "leave")
	fourth.AwaitEnd()
	p.run(server, "forming.md", "forget")
	p.voters(server, 3)

	p.lose(here)
}

// gossipKey replaces the gossip key.
func (p *pages) gossipKey(on *testhost.Host) {
	p.t.Helper()
	ids := func() (ids []string) {
		for line := range strings.Lines(on.Run("keyring", "list")) {
			ids = append(ids, strings.Fields(line)[0])
		}
		return ids[1:] // without the header
	}
	old := ids()
	p.run(on, "security.md", "new-gossip-key")
	both := ids()
	if len(old) != 1 || len(both) != 2 {
		p.t.Fatalf("the keys %q were %q", both, old)
	}
	next := both[slices.IndexFunc(both, func(id string) bool { return id != old[0] })]
	p.run(on, "security.md", "use-gossip-key", "NEW", next, "OLD", old[0])
	if now := ids(); !slices.Equal(now, []string{next}) {
		p.t.Errorf("the keys are %q, not %q alone", now, next)
	}
	p.run(on, "security.md", "replace-gossip-key")
}

// sees waits until a host knows a volume.
func (p *pages) sees(on *testhost.Host, volume string) {
	p.t.Helper()
	on.Eventually("the volume is there", func() error {
		if r := on.Try("volume", "status", volume); r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
}

// shows waits until a command's output matches a regular expression.
func (p *pages) shows(on *testhost.Host, text string, command ...string) {
	p.t.Helper()
	on.Eventually(text, func() error {
		if r := on.Try(command...); !regexp.MustCompile(text).MatchString(r.Stdout) {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
}

// voters waits until that many servers vote.
func (p *pages) voters(on *testhost.Host, n int) {
	p.t.Helper()
	on.Eventually("servers vote", func() error {
		out := on.Try("operator", "raft", "list-peers").Stdout
		if got := strings.Count(out, " yes "); got != n {
			return fmt.Errorf("%d of %d:\n%s", got, n, out)
		}
		return nil
	})
}

// lose makes the cluster lose a node, then a server, and then the majority of the remaining servers.
func (p *pages) lose(here []string) {
	p.t.Helper()
	c := p.c
	node, first := c.Host("node-1"), c.Host("server-1")
	p.run(first, "disaster-recovery.md", "look")
	node.Run("workload", "start", c.Workload(node, "user", "data"))
	node.Kill()
	p.run(first, "disaster-recovery.md", "detach", here...)
	first.Eventually("the volume is free", func() error {
		if claims := first.Claims("data"); len(claims) > 0 {
			return fmt.Errorf("claims %v", claims)
		}
		return nil
	})
	p.shows(first, "node-1 +disconnected", "node", "status")
	p.run(first, "disaster-recovery.md", "purge", here...)

	c.Host("server-3").Kill()
	p.shows(first, "server-3 +server +failed", "server", "members")
	p.run(first, "disaster-recovery.md", "remove")
	p.run(first, "disaster-recovery.md", "forget")

	c.Host("server-2").Kill()
	p.run(first, "disaster-recovery.md", "majority")
	first.AwaitReady()
	p.sees(first, "data")
	second := c.Host("server-2")
	p.run(second, "disaster-recovery.md", "rejoin")
	second.AwaitReady()
	p.voters(first, 2)
}
