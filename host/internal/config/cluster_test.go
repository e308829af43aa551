package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/test/lib/check"
)

// tlsBlock is the TLS configuration that a host in a cluster requires.
const tlsBlock = certificates + "encrypt_file = \"/g\"\n"

// certificates is tlsBlock without the gossip key.
const certificates = "tls {\n  ca_file = \"ca.pem\"\n  cert_file = \"/c.pem\"\n  key_file = \"/k.pem\"\n}\n"

// testKey is a key of 32 bytes, in base64.
const testKey = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

func TestCluster(t *testing.T) {
	a, dir, err := load(t, Source{}, map[string]string{
		"10.hcl": `
name = "s1"
bind_addr = "0.0.0.0"
advertise_addr = "192.0.2.1"
retry_join = ["192.0.2.1", "192.0.2.2:1", "s3.example.com", "::1", "[2001:db8::1]:2", "[2001:db8::2]"]
encrypt_file = "gossip.key"
ports {
  rpc  = 1
  serf = 2
}
server {
  bootstrap_expect = 3
  election_timeout = "2s"
  heartbeat_ttl    = "10s"
}
tls {
  ca_file   = "ca.pem"
  cert_file = "/c.pem"
}
autopilot { cleanup_dead_servers = false }
ledger_encryption { key_file = "ledger.key" }
acl { enabled = true }
audit { path = "audit.log" }
gc { node_threshold = "1h" }
`,
		"20.json": `{
  "server": {"stop_after": "20s", "stop_margin": "15s"},
  "tls": {"key_file": "k.pem"},
  "autopilot": {"last_contact_threshold": "1s", "server_stabilization_time": "2s", "min_quorum": 3}
}`,
	})
	check.NoError(t, err)
	type part struct {
		TLS        pki.Files
		Server     Server
		Autopilot  claim.Autopilot
		ACL        ACL
		Join       []string
		Keys       [2]KeySource
		Audit, Adv string
		Ports      [2]int
		Nodes      time.Duration
	}
	want := part{
		TLS: pki.Files{CA: dir + "/ca.pem", Cert: "/c.pem", Key: dir + "/k.pem"},
		Server: Server{
			Enabled: true, BootstrapExpect: 3, ElectionTimeout: 2 * time.Second,
			Liveness: claim.Liveness{HeartbeatTTL: 10 * time.Second, StopAfter: 20 * time.Second, Margin: 15 * time.Second},
		},
		Autopilot: claim.Autopilot{
			LastContactThreshold: time.Second, MaxTrailingLogs: 2000, MinQuorum: 3, ServerStabilizationTime: 2 * time.Second,
		},
		ACL: ACL{Enabled: true}, // in a cluster, root on a host has no rights
		Join: []string{
			"192.0.2.1:7422", "192.0.2.2:1", "s3.example.com:7422", "[::1]:7422", "[2001:db8::1]:2",
			"[2001:db8::2]:7422",
		},
		Keys:  [2]KeySource{{File: dir + "/gossip.key"}, {File: dir + "/ledger.key"}},
		Audit: dir + "/audit.log", Adv: "192.0.2.1", Ports: [2]int{1, 2}, Nodes: time.Hour,
	}
	got := part{
		*a.TLS, a.Server, a.Autopilot, a.ACL, a.RetryJoin,
		[2]KeySource{a.Gossip, a.Ledger},
		a.AuditPath, a.AdvertiseAddr,
		[2]int{a.RPCPort, a.SerfPort},
		a.GC.NodeThreshold,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestANodeOnly(t *testing.T) {
	no, three := false, 3
	a, _, err := load(t, Source{Flags: Overrides{Server: &no, Join: []string{"127.0.0.1:5"}}}, map[string]string{
		"a.hcl": tlsBlock + "name = \"n\"\nretry_join = [\"192.0.2.7\"]\n",
	})
	if err != nil || a.Server.Enabled || !reflect.DeepEqual(a.RetryJoin, []string{"127.0.0.1:5"}) {
		t.Errorf("got %+v, %v", a, err)
	}
	a, _, err = load(t, Source{Flags: Overrides{BootstrapExpect: &three}},
		map[string]string{"a.hcl": tlsBlock + "name = \"n\""})
	if err != nil || a.Server.BootstrapExpect != 3 {
		t.Errorf("got %+v, %v", a, err)
	}
	_, _, err = load(t, Source{Flags: Overrides{BootstrapExpect: &three, Join: []string{}}}, nil)
	wantProblems(t, err, "server: bootstrap_expect: "+needsTLS)
}

const needsTLS = "other agents are reached over TLS only: add a tls block with ca_file, cert_file and key_file (pannier tls ca create and pannier tls cert create make them), or leave this out"

const needsKey = "encrypt_file: is required with a tls block, for without a key anyone can make hosts look dead: make a key with: head -c 32 /dev/urandom | base64 >gossip.key, and give that file, 0600, to all hosts"

func TestBadClusters(t *testing.T) {
	for pair := range slices.Chunk([]string{
		"server {\n  bootstrap_expect = 3\n}", `2: server: bootstrap_expect: ` + needsTLS,
		"server {\n  enabled = false\n}", `2: server: enabled: ` + needsTLS,
		`retry_join = ["a"]`, `1: retry_join: ` + needsTLS,
		`advertise_addr = "192.0.2.1"`, `1: advertise_addr: ` + needsTLS,
		`encrypt_file = "/k"`, `1: encrypt_file: ` + needsTLS,
		`autopilot {}`, `1: autopilot: ` + needsTLS,
		`tls {}`,
		"1: tls: ca_file: is required: pannier cluster init or join writes the block; pannier tls ca create and pannier tls cert create make the files by hand\n" +
			"DIR/a.hcl:1: tls: cert_file: is required: pannier cluster init or join writes the block; pannier tls ca create and pannier tls cert create make the files by hand\n" +
			"DIR/a.hcl:1: tls: key_file: is required: pannier cluster init or join writes the block; pannier tls ca create and pannier tls cert create make the files by hand\n" +
			"DIR/a.hcl:1: " + needsKey,
		certificates, "1: " + needsKey,
		"server {\n  enabled = false\n}\n" + tlsBlock,
		`2: retry_join: is required where server { enabled = false }: name one server of the cluster at least`,
		"server {\n  enabled = false\n  bootstrap_expect = 3\n}\nretry_join = [\"a\"]\n" +
			tlsBlock,
		`3: server: bootstrap_expect: is of servers only; leave it out where enabled = false`,
		"server {\n  bootstrap_expect = 0\n}\n" + tlsBlock,
		`2: retry_join: is required where bootstrap_expect = 0: such a server waits until the others add it; name one of them`,
		"server {\n  bootstrap_expect = 16\n}", `2: server: bootstrap_expect: a whole number from 0 to 15 is required`,
		"server {\n  election_timeout = \"1m\"\n}", `2: server: election_timeout: 50ms to 10s is required, not 1m0s`,
		"name = \"a_b\"\n" + tlsBlock, `1: name: "a_b" may not have _ in a cluster; write - in its place`,
		tlsBlock + "acl {\n  socket_root = true\n}",
		`8: acl: socket_root: root of one host would rule the whole cluster; leave it out, and use a token`,
		"bind_addr = \"0.0.0.0\"\n" + tlsBlock,
		`1: bind_addr: "0.0.0.0" is no address that other agents can dial: set advertise_addr to that of this host, or bind_addr itself`,
		"retry_join = [\"127.0.0.1\", \"192.0.2.1\"]\n" + tlsBlock,
		`1: retry_join: 192.0.2.1:7422 is on another host, and bind_addr is 127.0.0.1, which only this one can dial: set bind_addr to an address of this host`,
		"advertise_addr = \"::\"\n" + tlsBlock, `1: advertise_addr: "::" is not the IP address of one host`,
		"advertise_addr = \"host\"\n" + tlsBlock, `1: advertise_addr: "host" is not the IP address of one host`,
		"ports {\n  rpc = 7422\n}\n" + tlsBlock, `1: ports: serf: 7422 is that of rpc too`,
		"retry_join = [\"unix:///a\"]\n" + tlsBlock, `1: retry_join: "unix:///a" is not HOST or HOST:PORT`,
		"retry_join = [\"a:0\"]\n" + tlsBlock, `1: retry_join: "a:0" is not HOST or HOST:PORT`,
		"retry_join = [\"\"]\n" + tlsBlock, `1: retry_join: "" is not HOST or HOST:PORT`,
		"encrypt = \"" + testKey + "\"\nencrypt_file = \"/k\"\n" + certificates,
		`2: encrypt_file: is given as well as encrypt; leave one of them out`,
		"encrypt = \"AAAA\"\n" + certificates,
		`1: encrypt: the base64 of 16, 24 or 32 bytes is required: make a key with: head -c 32 /dev/urandom | base64`,
		"encrypt = \"" + testKey + "\"\n" + certificates,
		`1: encrypt: every user of this machine can read the key in DIR/a.hcl (mode 0644): run chmod 600 DIR/a.hcl, or keep the key in a file of its own and name that in encrypt_file`,
		"ledger_encryption {}",
		`1: ledger_encryption: key_file: is required: make a key with: head -c 32 /dev/urandom | base64`,
		"server {\n  stop_margin = \"1s\"\n}",
		"2: server: " + claim.CheckLiveness(claim.Liveness{
			HeartbeatTTL: 30 * time.Second, StopAfter: time.Minute,
			Margin: time.Second,
		}).Error(),
		"server {\n  heartbeat_ttl = \"2m\"\n}",
		"2: server: " + claim.CheckLiveness(claim.Liveness{
			HeartbeatTTL: 2 * time.Minute, StopAfter: time.Minute,
			Margin: 30 * time.Second,
		}).Error(),
		"autopilot {\n  min_quorun = 1\n}\n" + tlsBlock,
		`2: autopilot: unsupported argument "min_quorun"; did you mean "min_quorum"?`,
		certificates + "tls {}", `6: tls: block given twice, first on line 1`,
	}, 2) {
		src, want := pair[0], pair[1]
		_, dir, err := load(t, Source{}, map[string]string{"a.hcl": src})
		wantProblems(t, err, strings.ReplaceAll("DIR/a.hcl:"+want, "DIR", dir))
		if err != nil && strings.Contains(err.Error(), testKey) {
			t.Errorf("the error contains the key: %v", err)
		}
	}
}

// Keys are read from the configuration or from a file that only its owner can read. They never appear in
// printed output.
func TestKeys(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		check.NoError(t, os.WriteFile(path, []byte(text), mode))
		return path
	}
	inline := write("a.hcl", "name = \"n\"\nencrypt = \""+testKey+"\"\n"+certificates, 0o640)
	a := check.Must(Load(Source{Paths: []string{inline}, Environment: environment(nil)}))(t)
	key, err := a.Gossip.Read()
	if err != nil || string(key) != testKey || len(key.Bytes()) != 32 {
		t.Errorf("got a key of %d bytes, %v", len(key.Bytes()), err)
	}
	text := check.Must(json.Marshal(map[string]any{"agent": a, "key": key}))(t)
	for _, printed := range []string{
		fmt.Sprintf("%v %+v %#v %s %q %x", a.Gossip, a.Gossip, key, key, key, key),
		string(text),
	} {
		if strings.Contains(printed, testKey[:8]) || strings.Contains(printed, fmt.Sprintf("%x", testKey)[:8]) {
			t.Errorf("printed output contains a key: %s", printed)
		}
	}
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string // empty: the key is accepted
	}{
		"good":     {testKey + "\n", 0o600, ""},
		"of group": {testKey, 0o640, ""},
		"public":   {testKey, 0o644, "every user of this machine can read"},
		"short":    {testKey[:8], 0o600, "the base64 of 16, 24 or 32 bytes is required"},
		"raw":      {strings.Repeat("\x01", 32), 0o600, "the base64 of 16, 24 or 32 bytes is required"},
		"empty":    {"", 0o600, "the base64 of 16, 24 or 32 bytes is required"},
	} {
		source := KeySource{File: write(name, c.text, c.mode)}
		key, err := source.Read()
		if c.want == "" && (err != nil || string(key) != testKey) ||
			c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), source.File) || strings.Contains(err.Error(), testKey[:8])) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (KeySource{File: dir + "/none"}).Read(); err == nil {
		t.Error("a file that is not there was read")
	}
	if key, err := (KeySource{}).Read(); err != nil || key != "" || key.Bytes() != nil {
		t.Error("the empty key counts as a key")
	}
}
