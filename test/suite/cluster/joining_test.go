package cluster_test

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testnet"
)

// single prepares a host that is in no cluster, with a folder for its configuration.
func single(t *testing.T, net *testnet.TestNet, name string) *testhost.Host {
	t.Helper()
	h := testhost.NewNamed(t, name, "ports {\n  http = 7420\n}\n"+testhost.LocalDriver(t))
	h.Net = net.Host(name)
	h.Config = h.Path("etc")
	err := os.Mkdir(h.Config, 0o755)
	if err == nil {
		err = os.Rename(h.Path("agent.hcl"), h.Path("etc/agent.hcl"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// member is a command that makes a host one of a cluster.
type member struct {
	on    *testhost.Host
	cmd   *exec.Cmd
	said  *bufio.Scanner
	heard []string
	out   strings.Builder
}

// becomes runs pannier cluster init or join on a host.
func becomes(t *testing.T, on *testhost.Host, args ...string) *member {
	t.Helper()
	input := ""
	if n := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "join-node.") }); n >= 0 {
		input, args[n] = args[n]+"\n", "-"
	}
	m := &member{on: on, cmd: on.Command(append([]string{"-o", "json"}, args...)...)}
	m.cmd.Args = append(m.cmd.Args, "-config", on.Config, "-own-address", on.Net.Addr.String())
	m.cmd.Stdout, m.cmd.Stdin = &m.out, strings.NewReader(input)
	stderr, err := m.cmd.StderrPipe()
	if err == nil {
		err = on.Net.Do(m.cmd.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.cmd.Process.Kill() })
	m.said = bufio.NewScanner(stderr)
	return m
}

// says waits until the command says something.
func (m *member) says(t *testing.T, words string) {
	t.Helper()
	for m.said.Scan() {
		if m.heard = append(m.heard, m.said.Text()); strings.Contains(m.said.Text(), words) {
			return
		}
	}
	t.Fatalf("%s: it never said %q, but\n%s\n%s", m.on.Name, words, strings.Join(m.heard, "\n"), m.on.LogTail())
}

// done waits until the command has succeeded.
func (m *member) done(t *testing.T) string {
	t.Helper()
	for m.said.Scan() {
		m.heard = append(m.heard, m.said.Text())
	}
	if err := m.cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", m.on.Name, err, strings.Join(m.heard, "\n"), m.on.LogTail())
	}
	return m.out.String()
}

// refused checks that the command fails with a code and words, and leaves no file.
func (m *member) refused(t *testing.T, code int, words ...string) {
	t.Helper()
	for m.said.Scan() {
		m.heard = append(m.heard, m.said.Text())
	}
	text := strings.Join(m.heard, "\n")
	if _ = m.cmd.Wait(); m.cmd.ProcessState.ExitCode() != code {
		t.Errorf("%s: %v, want the code %d: %s", m.on.Name, m.cmd.ProcessState, code, text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%s: it does not say %q, but %s", m.on.Name, w, text)
		}
	}
	if _, err := os.Stat(filepath.Join(m.on.Config, "cluster.hcl")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: cluster.hcl: %v", m.on.Name, err)
	}
}

// TestJoining forms a cluster of hosts that were alone before: a first server with a volume, two more servers, a node.
func TestJoining(t *testing.T) {
	t.Parallel()
	net := testnet.New(t, 1)
	s1, s2, s3, n1 := single(t, net, "server-1"), single(t, net, "server-2"), single(t, net, "server-3"), single(t, net, "node-1")

	s1.Start()
	s1.Run("volume", "create", s1.Write("kept.hcl", localVolume("kept")))
	m := becomes(t, s1, "cluster", "init")
	m.says(t, "stop the agent")
	s1.Stop()
	m.says(t, "start the agent")
	s1.Begin()
	var made struct {
		Secret string `json:"management_token"`
		File   string `json:"management_token_file"`
		Server string `json:"server_token"`
		Node   string `json:"node_token"`
		Own    string `json:"address"`
	}
	if err := json.Unmarshal([]byte(m.done(t)), &made); err != nil {
		t.Fatal(err)
	}
	s1.Token = made.Secret
	s1.Run("operator", "autopilot", "set", "-server-stabilization-time=1s", "-last-contact-threshold=5s")
	if out := s1.Run("volume", "status"); !strings.Contains(out, "kept") {
		t.Errorf("the first server's volume is gone: %s", out)
	}
	for name, mode := range map[string]os.FileMode{
		"management.token": 0o600, "ca-key.pem": 0o600, "host.pem": 0o600, "gossip.key": 0o600,
	} {
		if info, err := os.Stat(filepath.Join(s1.Config, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if r := s1.Try("cluster", "init", "-config", s1.Config); r.Code != 4 || !strings.Contains(r.Stderr, "pannier cluster token create") {
		t.Errorf("a second init: %+v", r)
	}

	// A token is for one thing only, and the authority must be the token's.
	becomes(t, s2, "cluster", "join", made.Node, made.Own).refused(t, 2, "the token is for nodes", "-node")
	becomes(t, s2, "cluster", "join", "-node", made.Server, made.Own).refused(t, 2, "the token is for servers")
	becomes(t, s2, "cluster", "join", made.Secret, made.Own).refused(t, 2, "no token to join", "pannier cluster token create")
	typ, rest, _ := strings.Cut(made.Server, ".")
	authority, secret, _ := strings.Cut(rest, ".")
	other := strings.Repeat("0", len(authority))
	becomes(t, s2, "cluster", "join", typ+"."+other+"."+secret, made.Own).refused(t, 4, "another authority", other)

	// A token to join allows nothing else.
	thief := s1.Command("volume", "status")
	thief.Env = append(thief.Env, "PANNIER_TOKEN="+secret)
	if out, err := thief.CombinedOutput(); err == nil || !strings.Contains(string(out), "is missing") {
		t.Errorf("with a token to join: %v: %s", err, out)
	}

	// A server that was never started, and one with an empty ledger.
	m = becomes(t, s2, "cluster", "join", made.Server, made.Own)
	m.says(t, "start the agent")
	s2.Begin()
	m.done(t)
	s3.Start()
	m = becomes(t, s3, "cluster", "join", made.Server, made.Own)
	m.says(t, "stop the agent")
	s3.Stop()
	m.says(t, "start the agent")
	s3.Begin()
	m.done(t)
	if _, err := os.Stat(s3.Path("data/ledger.single")); err != nil {
		t.Error(err)
	}
	awaitVoters(t, s1, "server-1", "server-2", "server-3")

	// A node: what it has keeps it out, as does a name that there is, a server without the authority's key, and a token
	// that was revoked.
	n1.Start()
	n1.Run("volume", "create", n1.Write("old.hcl", localVolume("old")))
	becomes(t, n1, "cluster", "join", "-node", made.Node, made.Own).refused(t, 4, `volume "old"`, "pannier cluster init")
	n1.Run("volume", "delete", "old")
	join := func() *member { // any server signs
		return becomes(t, n1, "cluster", "join", "-node", made.Node, s2.Net.Addr.String())
	}
	agent, err := os.ReadFile(filepath.Join(n1.Config, "agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	n1.Write("etc/agent.hcl", strings.Replace(string(agent), `"node-1"`, `"server-3"`, 1))
	join().refused(t, 4, `join as "server-3"`, "pannier node purge server-3")
	n1.Write("etc/agent.hcl", string(agent))
	m = join()
	m.says(t, "stop the agent")
	n1.Stop()
	m.says(t, "start the agent")
	n1.Begin()
	m.done(t)
	n1.Token = made.Secret
	n1.AwaitReady()
	if _, err := os.Stat(filepath.Join(n1.Config, "ca-key.pem")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the authority's key on a node: %v", err)
	}
	tokens := table(s1.Run("cluster", "token", "list"))
	for accessor, row := range tokens {
		if !strings.HasPrefix(row[1], "join-") {
			t.Errorf("the token %q", row)
		}
		s1.Run("cluster", "token", "revoke", accessor)
	}
	if len(tokens) != 2 {
		t.Errorf("the tokens are %q", tokens)
	}
	n2 := single(t, net, "node-2")
	becomes(t, n2, "cluster", "join", "-node", made.Node, made.Own).refused(t, 4, "not known")
	again := strings.TrimSpace(s1.Run("cluster", "token", "create", "-node", "-ttl", "10m"))
	becomes(t, n2, "cluster", "join", "-node", again, n1.Net.Addr.String()).refused(t, 4, "signs no certificates")

	renews(t, s1, n1)
	allServersAreLost(t, net, n1, s1, s2, s3)
}

// allServersAreLost wipes all servers, recovers the first one on a machine that is new, by an archive, and has another
// server join it. The node and its claim are there again.
func allServersAreLost(t *testing.T, net *testnet.TestNet, node *testhost.Host, servers ...*testhost.Host) {
	t.Helper()
	first := servers[0]
	first.Run("driver", "approve", "local", node.Name)
	node.Run("volume", "create", node.Write("sealed.hcl", localVolume("sealed")+"secrets {\n  password = \"sealed\"\n}\n"))
	// The node follows a leader of a later term than the first one of a new cluster.
	for _, s := range []*testhost.Host{servers[1], servers[2], servers[0]} {
		leads := func() error {
			r := node.Try("operator", "raft", "transfer-leadership", s.Name)
			if out := node.Try("operator", "raft", "list-peers"); len(table(out.Stdout)[s.Name]) < 3 || !strings.Contains(strings.Join(
				table(out.Stdout)[s.Name], " "), "leader") {
				return errors.New(r.Stderr + out.Stdout)
			}
			return nil
		}
		node.Eventually(s.Name+" leads", leads)
	}
	dir := t.TempDir()
	passphrase, archive := filepath.Join(dir, "passphrase"), filepath.Join(dir, "archive")
	if err := os.WriteFile(passphrase, []byte("correct horse\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	first.Run("operator", "backup", "-config", first.Config, "-passphrase-file", passphrase, archive)
	if data, err := os.ReadFile(archive); err != nil || strings.Contains(string(data), "PRIVATE KEY") || !strings.HasPrefix(string(data), "age-") {
		t.Errorf("the archive is not sealed: %v", err)
	}
	node.Refused(4, []string{"no server of a cluster"}, "operator", "backup", "-config", node.Config, "-passphrase-file", passphrase,
		filepath.Join(dir, "none"))
	ids := func(command string) []string {
		return slices.Sorted(maps.Keys(table(first.Run(strings.Fields(command)...))))
	}
	volumes, keys := ids("volume list"), ids("operator secrets status")
	for _, s := range servers {
		s.Kill()
		for _, gone := range []string{"data", "etc"} {
			if err := os.RemoveAll(s.Path(gone)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Mkdir(first.Config, 0o755); err != nil {
		t.Fatal(err)
	}

	first.Write("etc/agent.hcl", fmt.Sprintf("name = \"not-its-name\"\ndata_dir = %q\nplugin_dir = %q\nsocket = %q\n", first.Path("data"),
		first.PluginDir, first.Socket()))
	wrong := filepath.Join(dir, "wrong")
	if err := os.WriteFile(wrong, []byte("incorrect"), 0o600); err != nil {
		t.Fatal(err)
	}
	becomes(t, first, "operator", "recover", "-passphrase-file", wrong, archive).refused(t, 2, "incorrect passphrase")
	m := becomes(t, first, "operator", "recover", "-passphrase-file", passphrase, archive)
	m.says(t, "start the agent")
	first.Begin()
	m.says(t, "stop the agent")
	first.Stop()
	m.says(t, "start the agent")
	first.Begin()
	m.done(t)
	if now := ids("volume list"); len(now) != 2 || !slices.Equal(now, volumes) {
		t.Errorf("the volumes were %q, and are %q", volumes, now)
	}
	if now := ids("operator secrets status"); !slices.Equal(now, keys) {
		t.Errorf("the keys of secrets were %q, and are %q", keys, now)
	}

	// The lost ones are forgotten, and another one joins under an old name.
	for _, lost := range servers[1:] {
		first.Eventually(lost.Name+" is forgotten", func() error {
			if r := first.Try("node", "purge", lost.Name); r.Code != 0 {
				return errors.New(r.Stderr)
			}
			return nil
		})
	}
	second := single(t, net, "server-2b")
	m = becomes(t, second, "cluster", "join", strings.TrimSpace(first.Run("cluster", "token", "create")), first.Net.Addr.String())
	m.says(t, "start the agent")
	second.Begin()
	m.done(t)
	awaitVoters(t, first, "server-1", "server-2b")
	node.AwaitReady()
	spec := node.Write("user.hcl", "workload \"user\" {\n  volume \"v\" {\n    source = \"sealed\"\n    destination = \"/srv/v\"\n  }\n}\n")
	node.Run("workload", "start", spec)
	node.Run("workload", "stop", "user")
}

// renews checks that the agent of a host replaces a certificate of which less than a third of its time is left.
func renews(t *testing.T, server, h *testhost.Host) {
	t.Helper()
	h.Stop()
	authority, err := tls.LoadX509KeyPair(filepath.Join(server.Config, "ca.pem"), filepath.Join(server.Config, "ca-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(20 * time.Minute),
		URIs:     []*url.URL{{Scheme: "pannier", Host: "dc1", Path: "/node/" + h.Name}},
		DNSNames: []string{"node.dc1.pannier"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, authority.Leaf, key.Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.Config, "host.pem")
	short := slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
	if err := os.WriteFile(file, short, 0o600); err != nil {
		t.Fatal(err)
	}
	h.Begin()
	h.AwaitReady()
	h.Eventually("the certificate is renewed", func() error {
		pair, err := tls.LoadX509KeyPair(file, file)
		if err != nil {
			t.Fatalf("between two certificates: %v", err)
		}
		if left := time.Until(pair.Leaf.NotAfter); left < 364*24*time.Hour {
			return fmt.Errorf("it is valid for %s", left)
		}
		return nil
	})
	if out := h.Run("tls", "cert", "inspect", file); !strings.Contains(out, h.Name) {
		t.Error(out)
	}
	h.Run("node", "status")
}

// localVolume is the spec of a volume of csi-local.
func localVolume(id string) string {
	return fmt.Sprintf("id = %q\ntype = \"csi\"\nplugin_id = \"local\"\ncapacity_min = \"1MiB\"\ncapability {\n  access_mode = "+
		"\"single-node-writer\"\n  attachment_mode = \"file-system\"\n}\n", id)
}
