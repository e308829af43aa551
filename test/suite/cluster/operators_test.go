package cluster_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

// TestOperators runs the operations of operators on a cluster: leadership moves, the ledger is saved and
// restored, keys and certificates are replaced, hosts move, leave, fail and come back. Meanwhile a program on
// one node writes into its volume.
func TestOperators(t *testing.T) {
	t.Parallel()
	config := strings.Replace(quickVotes, "autopilot {", "autopilot {\n  cleanup_dead_servers = false", 1)
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 1, Config: config, ServerConfig: longLeases})
	o := operators{c, c.Host("server-1"), c.Host("server-2"), c.Host("server-3"), c.Host("node-1")}
	awaitVoters(t, o.n1, "server-1", "server-2", "server-3")
	c.Stage(t, "leadership is transferred to the requested server", o.transfer)
	c.Stage(t, "the doctor finds a server that is gone", o.doctor)
	c.Stage(t, "the ledger is saved and restored, on all servers", o.restore)
	c.Stage(t, "a server that was away for long gets a snapshot", o.away)
	c.Volume(o.n1, "busy", "single-node-writer")
	p := run(t, c, o.n1, "busy", "busy")
	c.Stage(t, "all get another key and other certificates", o.renew)
	c.Stage(t, "hosts get other addresses", o.move)
	c.Stage(t, "a host that fails can be taken for one that has left", o.forceLeave)
	c.Stage(t, "a server that is gone is taken out, and one that goes leaves", o.leave)
	c.Stage(t, "the program was never disturbed", func(t *testing.T) {
		p.writesOn(t)
		for _, d := range driverLog(t, c, "busy") {
			if d.what != "attach" && d.what != "publish" {
				t.Errorf("while it ran, its volume was touched: %v", d)
			}
		}
		o.n1.Run("workload", "stop", "busy")
	})
}

// operators are the hosts of TestOperators.
type operators struct {
	c              *testcluster.Cluster
	s1, s2, s3, n1 *testhost.Host
}

func (o operators) transfer(t *testing.T) {
	for _, name := range []string{"server-2", "server-3", "server-1"} {
		leadThrough(o.c, o.n1, name)
	}
	o.n1.Refused(3, []string{"server-9"}, "operator", "raft", "transfer-leadership", "server-9")
	o.n1.Refused(4, []string{"server-2", "agent leave"}, "operator", "raft", "remove-peer", "server-2")
}

func (o operators) doctor(t *testing.T) {
	rows := func(words ...string) error {
		var out string
		err := o.n1.Net.Do(func() error { // in the node's network
			text, err := o.n1.Command("doctor", "-config", o.n1.Path("agent.hcl")).Output()
			out = string(text)
			return err
		})
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			return err
		}
		for _, want := range words {
			if !regexp.MustCompile("(?m)^" + want).MatchString(out) {
				return fmt.Errorf("no row is %q:\n%s", want, out)
			}
		}
		return nil
	}
	well := []string{
		`ok +peers +6 ports of other agents reached$`, `ok +quorum +3 voting servers, of which 1 may fail$`,
		`ok +gossip keys +1, the same on 4 agents$`, `ok +secrets keys `, `(ok|warn) +certificates `, `ok +agent `,
	}
	o.n1.Eventually("all is well", func() error { return rows(well...) })
	udp := func(change string) {
		t.Helper()
		err := o.s2.Net.Do(func() error { // in the server's network
			if out, err := exec.Command("iptables", change, "INPUT", "-p", "udp", "-j", "DROP").CombinedOutput(); err != nil {
				return fmt.Errorf("iptables %s: %w: %s", change, err, out)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Logf("a server that only TCP reaches is not tried: %v", err)
	} else {
		udp("-A")
		o.n1.Eventually("UDP is missed", func() error { return rows(`warn +peers +server-2 cannot be reached by UDP at `) })
		udp("-D")
		o.n1.Eventually("all is well without the rule", func() error { return rows(well...) })
	}
	o.s3.Kill()
	o.n1.Eventually("the server is missed", func() error {
		return rows(`fail +peers +server-3 is failed`, `fail +peers +server-3 cannot be reached for gossip: `,
			`fail +peers +server-3 cannot be reached for calls: `, `fail +quorum .*not healthy: server-3$`)
	})
	o.s3.Start()
	o.n1.Eventually("all is well again", func() error { return rows(well...) })
}

func (o operators) restore(t *testing.T) {
	o.c.Volume(o.n1, "before", "single-node-writer")
	o.c.AwaitStarted(o.n1, "before", "before")
	file := o.n1.Path("ledger.snapshot")
	o.n1.Run("operator", "snapshot", "save", file)
	o.n1.Run("workload", "stop", "before")
	o.c.Volume(o.n1, "later", "single-node-writer")
	if out := o.n1.Run("operator", "snapshot", "inspect", file); !strings.Contains(out, clusterOf(t, o.n1)) {
		t.Errorf("the snapshot does not say of which cluster it is:\n%s", out)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	o.n1.Refused(2, []string{"damaged"}, "operator", "snapshot", "restore", "-yes", o.n1.Write("damaged.snapshot", string(raw)))
	o.n1.Run("volume", "status", "later")
	o.n1.Run("operator", "snapshot", "restore", "-yes", file)
	o.n1.Eventually("the claim of the workload that ended after the snapshot is released", func() error {
		if out := o.n1.Run("volume", "status", "before"); !strings.Contains(out, "No claims") {
			return errors.New(out)
		}
		return nil
	})
	for _, leader := range []string{"server-1", "server-2", "server-3"} {
		lead(o.c, leader)
		o.n1.Run("volume", "status", "before")
		o.n1.Refused(3, []string{"later"}, "volume", "status", "later")
	}
}

// away brings back a server that needs log entries that no other server has any more, as after weeks of
// downtime: a restore leaves a gap in the log that only a snapshot bridges.
func (o operators) away(t *testing.T) {
	o.s2.Kill()
	o.c.Leader()
	file := o.n1.Path("away.snapshot")
	o.n1.Run("operator", "snapshot", "save", file)
	o.n1.Run("operator", "snapshot", "restore", "-yes", file)
	o.c.Volume(o.n1, "away", "single-node-writer")
	log := func() string {
		text, err := os.ReadFile(o.s2.Path("agent.log"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	before := len(log())
	launch(o.s2)
	awaitVoters(t, o.n1, "server-1", "server-2", "server-3")
	lead(o.c, o.s2.Name)
	for _, volume := range []string{"before", "away"} {
		o.s2.Run("volume", "status", volume)
	}
	if !strings.Contains(log()[before:], "Installed remote snapshot") {
		t.Error("it got no snapshot")
	}
}

// renew replaces the gossip key and all certificates without a restart.
func (o operators) renew(t *testing.T) {
	ids := func() (ids []string) {
		for line := range strings.Lines(o.s1.Run("keyring", "list")) {
			ids = append(ids, strings.Fields(line)[0])
		}
		return ids[1:] // without the header
	}
	old := ids()
	file := filepath.Join(o.c.Dir, "gossip.key")
	if err := os.WriteFile(file, []byte("bmV3IGtleSBvZiBnb3NzaXAgb2YgMzIgYnl0ZXMuLi4=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.s1.Run("keyring", "add", file)
	for _, id := range ids() {
		if id != old[0] {
			o.n1.Run("keyring", "use", id)
		}
	}
	o.s2.Run("keyring", "remove", old[0])

	dir := t.TempDir()
	for _, h := range o.c.Hosts {
		role, _, _ := strings.Cut(h.Name, "-")
		o.c.Cert(role, h.Name, "-dir", dir)
		base := "dc1-" + role + "-" + h.Name
		for _, name := range []string{base + "-key.pem", base + ".pem"} {
			if err := os.Rename(filepath.Join(dir, name), filepath.Join(o.c.Dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if shown, want := shows(t, o.s1, h), certificate(t, filepath.Join(o.c.Dir, base+".pem")); !shown.Equal(want) {
			t.Errorf("%s shows the certificate %d, not %d", h.Name, shown.SerialNumber, want.SerialNumber)
		}
	}
	lead(o.c, o.s1.Name)
	for _, h := range o.c.Hosts {
		o.c.Volume(h, "renewed-"+h.Name, "single-node-writer")
		awaitMember(t, h, o.n1.Name, "alive")
	}
}

// certificate reads a certificate from a file.
func certificate(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s has no certificate", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// shows returns the certificate that a host presents to another one.
func shows(t *testing.T, to, h *testhost.Host) (cert *x509.Certificate) {
	t.Helper()
	err := to.Net.Do(func() error {
		//nolint:gosec // only the presented certificate matters
		conn, err := tls.Dial("tcp", netip.AddrPortFrom(h.Net.Addr, testcluster.RPCPort).String(),
			&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			return err
		}
		cert = conn.ConnectionState().PeerCertificates[0]
		return conn.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// move changes the addresses of a server and then of a node. The configurations contain only host names.
func (o operators) move(t *testing.T) {
	for _, moved := range []*testhost.Host{o.s3, o.n1} {
		moved.Stop()
		old := moved.Net.Addr.String()
		moved.Net = o.c.Net.Host(moved.Name + "-moved")
		rewrite(t, moved, fmt.Sprintf("bind_addr = %q", old), fmt.Sprintf("bind_addr = %q", moved.Net.Addr))
		launch(moved)
		for _, h := range o.c.Hosts {
			h.Eventually("it knows the new address", func() error {
				row := table(h.Run("server", "members"))[moved.Name]
				if len(row) < 3 || row[2] != "alive" || !strings.Contains(strings.Join(row, " "), " "+moved.Net.Addr.String()+":") {
					return fmt.Errorf("%s: %q", moved.Name, row)
				}
				return nil
			})
		}
	}
	awaitVoters(t, o.n1, "server-1", "server-2", "server-3")
	lead(o.c, o.s3.Name)
	if got := o.s1.Holder("busy"); got.GetNode() != o.n1.Name {
		t.Errorf("the claim of a node that has moved is %v", got)
	}
	o.c.Volume(o.n1, "moved", "single-node-writer")
}

func (o operators) forceLeave(t *testing.T) {
	o.n1.Refused(4, []string{"alive"}, "server", "force-leave", "server-2")
	o.n1.Kill()
	awaitMember(t, o.s2, "node-1", "failed")
	o.s2.Run("server", "force-leave", "node-1")
	awaitMember(t, o.s1, "node-1", "left")
	launch(o.n1)
	awaitMember(t, o.s1, "node-1", "alive")
}

func (o operators) leave(t *testing.T) {
	s4 := o.c.Add("server-4", true)
	s4.Use(t)
	launch(s4)
	awaitVoters(t, o.n1, "server-1", "server-2", "server-3", "server-4")
	s4.Kill()
	awaitMember(t, o.c.Leader(), "server-4", "failed")
	o.n1.Run("operator", "raft", "remove-peer", "server-4")
	awaitVoters(t, o.n1, "server-1", "server-2", "server-3")
	o.n1.Refused(3, []string{"server-4"}, "operator", "raft", "remove-peer", "server-4")
	lead(o.c, o.s3.Name)
	o.s3.Run("agent", "leave")
	o.s3.AwaitEnd()
	awaitMember(t, o.s1, "server-3", "left")
	awaitVoters(t, o.n1, "server-1", "server-2")
	o.c.Volume(o.n1, "left", "single-node-writer")
	launch(o.s3)
	awaitVoters(t, o.n1, "server-1", "server-2", "server-3")
	o.s3.Run("volume", "status", "left")
}
