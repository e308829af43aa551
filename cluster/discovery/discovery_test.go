package discovery_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
	"go.uber.org/goleak"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/test/lib/check"
)

// memberlist's shutdown does not wait for a probe in progress.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// deadline is the maximum time that gossip may need.
const deadline = 60 * time.Second

func self(name string) discovery.Self {
	return discovery.Self{
		Name: name, Role: discovery.Server, Datacenter: "dc1", RPC: "127.0.0.1:1",
		Version: "1",
	}
}

// quick returns timings for loopback.
func quick() *memberlist.Config {
	c := memberlist.DefaultLocalConfig()
	c.ProbeInterval, c.ProbeTimeout = 200*time.Millisecond, 100*time.Millisecond
	c.GossipInterval = 20 * time.Millisecond
	c.PushPullInterval = 2 * time.Second
	c.TCPTimeout = time.Second
	return c
}

func open(t testing.TB, cfg discovery.Config) *discovery.Discovery {
	t.Helper()
	cfg.Bind = "127.0.0.1"
	if cfg.Memberlist == nil {
		cfg.Memberlist = quick()
	}
	d, err := discovery.Open(cfg)
	check.NoError(t, err)
	t.Cleanup(func() { shut(t, d) })
	return d
}

func shut(t testing.TB, d *discovery.Discovery) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// until waits until the members that d sees fulfil a condition. It checks after each notification.
func until(t *testing.T, d *discovery.Discovery, what string, ok func([]discovery.Member) bool) {
	t.Helper()
	late := time.After(deadline)
	for {
		changed := d.Changed()
		if ok(d.Members()) {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%s did not happen: the members are %+v", what, d.Members())
		}
	}
}

func sees(name string, status discovery.Status) func([]discovery.Member) bool {
	return func(all []discovery.Member) bool {
		return slices.ContainsFunc(all, func(m discovery.Member) bool { return m.Name == name && m.Status == status })
	}
}

func TestFindOneAnother(t *testing.T) {
	a := open(t, discovery.Config{Self: self("a")})
	node := discovery.Self{Name: "b", Role: discovery.Node, Datacenter: "dc1", RPC: "127.0.0.1:2", Version: "1"}
	b := open(t, discovery.Config{Self: node, RetryJoin: []string{a.Addr()}})
	until(t, a, "b", sees("b", discovery.Alive))
	until(t, b, "a", sees("a", discovery.Alive))
	m, ok := b.Member("a")
	if !ok || m.Self != self("a") || m.Gossip != a.Addr() {
		t.Errorf("b knows a as %+v", m)
	}
	if m, _ := a.Member("b"); m.Self != node {
		t.Errorf("a knows b as %+v", m)
	}
	if servers := b.Servers(); len(servers) != 1 || servers[0] != m {
		t.Errorf("b knows the servers %+v", servers)
	}
	if _, ok := a.Member("c"); ok || a.Alive() != 2 || b.Alive() != 2 {
		t.Errorf("of two, a knows %d and b %d", a.Alive(), b.Alive())
	}
	a.SetCluster("c1")
	until(t, b, "b learns a's cluster", func([]discovery.Member) bool { m, _ := b.Member("a"); return m.Cluster == "c1" })
	check.NoError(t, b.Leave())
	until(t, a, "the leave", sees("b", discovery.Left))
}

// TestNobodyIsJoinedAfterLeave: Leave stops the attempts to join an address that never answers.
func TestNobodyIsJoinedAfterLeave(t *testing.T) {
	d := open(t, discovery.Config{Self: self("a"), RetryJoin: []string{"127.0.0.1:1"}})
	await := func(joins bool) {
		t.Helper()
		stacks, late := make([]byte, 1<<20), time.Now().Add(deadline)
		for strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "keepJoined(") != joins {
			if time.Now().After(late) {
				t.Fatalf("joining: %v", !joins)
			}
			time.Sleep(time.Millisecond)
		}
	}
	await(true)
	check.NoError(t, d.Leave())
	await(false)
}

// TestForceLeave makes a failed member count as a member that has left.
func TestForceLeave(t *testing.T) {
	a := open(t, discovery.Config{Self: self("a")})
	b := open(t, discovery.Config{Self: self("b"), RetryJoin: []string{a.Addr()}})
	until(t, a, "b", sees("b", discovery.Alive))
	shut(t, b)
	until(t, a, "the failure", sees("b", discovery.Failed))
	check.NoError(t, a.ForceLeave("b", false))
	until(t, a, "the leave", sees("b", discovery.Left))
	check.NoError(t, a.ForceLeave("b", true))
	until(t, a, "its end", func(all []discovery.Member) bool { return len(all) == 1 })
	if err := a.ForceLeave("b", true); err == nil || !strings.Contains(err.Error(), "no such member") {
		t.Errorf("an unknown member: %v", err)
	}
}

// TestJoinsLater starts an agent before the one that it must join. That one then starts, stops and starts
// again.
func TestJoinsLater(t *testing.T) {
	first := open(t, discovery.Config{Self: self("a")})
	address := first.Addr()
	shut(t, first)
	b := open(t, discovery.Config{Self: self("b"), RetryJoin: []string{address}})
	a := open(t, discovery.Config{Self: self("a"), Port: port(t, address)})
	until(t, b, "a", sees("a", discovery.Alive))
	shut(t, a)
	until(t, b, "a's failure", sees("a", discovery.Failed))
	open(t, discovery.Config{Self: self("a"), Port: port(t, address)})
	until(t, b, "a again", sees("a", discovery.Alive))
}

// TestComesBack restarts an agent at another address. It finds the other members only through its snapshot,
// although nobody answered when it was stopped.
func TestComesBack(t *testing.T) {
	snapshot := filepath.Join(t.TempDir(), "serf.snapshot")
	a := open(t, discovery.Config{Self: self("a")})
	b := open(t, discovery.Config{Self: self("b"), RetryJoin: []string{a.Addr()}, SnapshotFile: snapshot})
	until(t, b, "a", sees("a", discovery.Alive))
	address := a.Addr()
	shut(t, a)
	until(t, b, "a's failure", sees("a", discovery.Failed))
	before := b.Addr()
	shut(t, b)
	b = open(t, discovery.Config{Self: self("b"), SnapshotFile: snapshot})
	a = open(t, discovery.Config{Self: self("a"), Port: port(t, address)})
	until(t, a, "b under its new address", func([]discovery.Member) bool {
		m, _ := a.Member("b")
		return m.Status == discovery.Alive && m.Gossip == b.Addr()
	})
	if before == b.Addr() {
		t.Errorf("b is still at %s", before)
	}
}

// TestMoves restarts an agent at another address. The others accept it as soon as the old address has failed,
// and learn of it even though members exchange their full state only when one of them joins.
func TestMoves(t *testing.T) {
	rare := quick()
	rare.PushPullInterval, rare.GossipToTheDeadTime = time.Hour, time.Hour
	a := open(t, discovery.Config{Self: self("a"), Memberlist: rare})
	c := open(t, discovery.Config{Self: self("c"), Memberlist: rare, RetryJoin: []string{a.Addr()}})
	b := open(t, discovery.Config{Self: self("b"), Memberlist: rare, RetryJoin: []string{a.Addr()}})
	until(t, c, "b", sees("b", discovery.Alive))
	before := b.Addr()
	shut(t, b)
	b = open(t, discovery.Config{Self: self("b"), Memberlist: rare, RetryJoin: []string{a.Addr()}})
	for _, other := range []*discovery.Discovery{a, c} {
		until(t, other, "b under its new address", func([]discovery.Member) bool {
			m, _ := other.Member("b")
			return m.Status == discovery.Alive && m.Gossip == b.Addr()
		})
	}
	if before == b.Addr() {
		t.Errorf("b is still at %s", before)
	}
}

func key(b byte) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{b}, 32)) }

// TestOthersAreKeptOut tries to join without the key, with another key, and from another datacenter.
func TestOthersAreKeptOut(t *testing.T) {
	a := open(t, discovery.Config{Self: self("a"), Key: key(1)})
	open(t, discovery.Config{Self: self("b"), Key: key(1), RetryJoin: []string{a.Addr()}})
	until(t, a, "b", sees("b", discovery.Alive))
	for name, k := range map[string]string{"clear": "", "other": key(2)} {
		d := open(t, discovery.Config{Self: self(name), Key: k})
		if n, err := d.Join(a.Addr()); err == nil || n != 0 {
			t.Errorf("%s: joined %d, %v", name, n, err)
		}
	}
	elsewhere := self("elsewhere")
	elsewhere.Datacenter = "dc2"
	d := open(t, discovery.Config{Self: elsewhere, Key: key(1)})
	if n, err := d.Join(a.Addr()); err == nil || n != 0 {
		t.Errorf("another datacenter: joined %d, %v", n, err)
	}
	if all := a.Members(); len(all) != 2 {
		t.Errorf("a knows %+v", all)
	}
}

// TestForeignSerf receives members from another program's serf, which compresses its packets. Members whose
// names no agent may have are refused.
func TestForeignSerf(t *testing.T) {
	a := open(t, discovery.Config{Self: self("a")})
	for _, name := range []string{"b", "b_1", "b\nc", strings.Repeat("b", 129)} {
		conf := serf.DefaultConfig()
		conf.NodeName, conf.LogOutput, conf.MemberlistConfig = name, io.Discard, quick()
		conf.MemberlistConfig.LogOutput = io.Discard
		conf.MemberlistConfig.BindAddr, conf.MemberlistConfig.BindPort, conf.MemberlistConfig.AdvertisePort = "127.0.0.1", 0,
			0
		conf.MemberlistConfig.EnableCompression = true
		conf.Tags = map[string]string{
			"role": string(discovery.Node), "id": name, "dc": "dc1", "rpc": "127.0.0.1:2",
			"version": "1",
		}
		foreign, err := serf.Create(conf)
		check.NoError(t, err)
		t.Cleanup(func() {
			if err := foreign.Shutdown(); err != nil {
				t.Error(err)
			}
		})
		m := foreign.LocalMember()
		n, err := a.Join(net.JoinHostPort(m.Addr.String(), strconv.Itoa(int(m.Port))))
		if good := name == "b"; (err == nil) != good || (n == 1) != good {
			t.Errorf("%q: joined %d, %v", name, n, err)
		}
	}
	until(t, a, "b", sees("b", discovery.Alive))
	if all := a.Members(); len(all) != 2 {
		t.Errorf("a knows %+v", all)
	}
}

// TestRotateKeys changes the key of a running cluster, and restarts a member whose configuration has the old key.
func TestRotateKeys(t *testing.T) {
	dir := t.TempDir()
	config := func(name string, join ...string) discovery.Config {
		return discovery.Config{Self: self(name), Key: key(1), KeyringFile: filepath.Join(dir, name), RetryJoin: join}
	}
	a := open(t, config("a"))
	b := open(t, config("b", a.Addr()))
	until(t, a, "b", sees("b", discovery.Alive))
	until(t, b, "a", sees("a", discovery.Alive))
	if _, err := a.InstallKey("short"); err == nil {
		t.Error("an invalid key is accepted")
	}
	if _, err := a.RemoveKey(key(1)); err == nil {
		t.Error("the key in use was removed")
	}
	// Serf may time out on a busy machine before all answers have arrived, so each step is repeated.
	step := func(do func() (discovery.Keys, error)) discovery.Keys {
		t.Helper()
		for late := time.Now().Add(deadline); ; {
			keys, err := do()
			if err == nil && keys.Members == 2 {
				return keys
			}
			if time.Now().After(late) {
				t.Fatalf("%+v, %v", keys, err)
			}
		}
	}
	step(func() (discovery.Keys, error) { return a.InstallKey(key(2)) })
	step(func() (discovery.Keys, error) { return b.UseKey(key(2)) })
	step(func() (discovery.Keys, error) { return a.RemoveKey(key(1)) })
	keys := step(b.ListKeys)
	if len(keys.Keys) != 1 || keys.Keys[key(2)] != 2 || keys.Primary[key(2)] != 2 {
		t.Errorf("the keys are %+v", keys)
	}
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the keyring file: %v, %v", info, err)
	}
	shut(t, b)
	until(t, a, "b's failure", sees("b", discovery.Failed))
	open(t, config("b", a.Addr()))
	until(t, a, "b again", sees("b", discovery.Alive))
	if _, err := open(t, discovery.Config{Self: self("c")}).ListKeys(); err == nil ||
		!strings.Contains(err.Error(), "not encrypted") {
		t.Errorf("keys of an agent without encryption: %v", err)
	}
}

func TestBadNames(t *testing.T) {
	for _, name := range []string{"", "b_1", "b c", strings.Repeat("b", 129)} {
		d, err := discovery.Open(discovery.Config{Self: self(name), Bind: "127.0.0.1"})
		if err == nil {
			shut(t, d)
			t.Errorf("%q: opened", name)
		} else if !strings.Contains(err.Error(), "letters, digits, dashes and dots") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestBadKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keyring")
	secret := "c2hvcnQ="
	for name, cfg := range map[string]discovery.Config{
		"no base64": {Key: "%%%"}, "short": {Key: secret}, "file": {KeyringFile: file},
	} {
		check.NoError(t, os.WriteFile(file, []byte(`["`+secret+`"]`), 0o600))
		cfg.Self, cfg.Bind = self("a"), "127.0.0.1"
		d, err := discovery.Open(cfg)
		if err == nil {
			shut(t, d)
			t.Errorf("%s: opened", name)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the key is in the error", name)
		}
	}
}

// An empty keyring file, which a loss of power may leave, is as good as none, if there is another key.
func TestEmptyKeyring(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keyring")
	for _, configured := range []string{key(1), ""} {
		check.NoError(t, os.WriteFile(file, nil, 0o600))
		d, err := discovery.Open(discovery.Config{
			Self: self("a"), Bind: "127.0.0.1", KeyringFile: file, Key: configured,
		})
		if err == nil {
			shut(t, d)
		}
		if (err == nil) != (configured != "") {
			t.Errorf("with the key %q: %v", configured, err)
		}
	}
}

func port(t *testing.T, address string) int {
	t.Helper()
	_, after, _ := strings.Cut(address, ":")
	n := 0
	for _, c := range after {
		n = 10*n + int(c-'0')
	}
	return n
}
