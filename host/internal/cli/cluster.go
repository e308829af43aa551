package cli

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// The files of a cluster's host, in the folder of the agent's configuration.
const (
	clusterFile = "cluster.hcl"
	// hostFile has the host's certificate and its key, which the agent renews.
	hostFile       = "host.pem"
	gossipKeyFile  = "gossip.key"
	managementFile = "management.token"
)

const (
	// joinTTL is how long a token to join counts.
	joinTTL = time.Hour
	// askTimeout bounds one call to another host.
	askTimeout = 10 * time.Second
	// readyPatience is how long the agent may take until it has its vote or its lease.
	readyPatience = 3 * time.Minute
	// readyInterval is the pause between two looks.
	readyInterval = 200 * time.Millisecond
)

func clusterNoun() noun {
	return nounOf("cluster", "Form a cluster, and join it", []verb{initVerb(), joinVerb()},
		nounOf("token", "Tokens with which hosts join", joinTokenVerbs()))
}

func initVerb() verb {
	var dir, address string
	return verb{
		use: "init", short: "Make this host the first server of a cluster",
		long: `Make this host the first server of a cluster, with its volumes and workloads. It makes
an authority for the hosts' certificates, a key for their gossip, and the first ACL token,
which is shown once and kept in management.token (0600); writes cluster.hcl; starts the agent
again; and shows with which command other hosts join. ca.pem and ca-key.pem are used if they
are in the folder already. It can be repeated until it has succeeded.`,
		flags: func(f *pflag.FlagSet) { joinFlags(f, &dir, &address) },
		local: func(ctx context.Context, c *call) error {
			h, err := newMember(c, dir, address)
			if err != nil {
				return err
			}
			return h.initialize(ctx)
		},
	}
}

func joinVerb() verb {
	var dir, address string
	var node bool
	return verb{
		use: "join TOKEN ADDRESS", short: "Make this host a server or a node of a cluster",
		long: `Make this host a server of the cluster, or with -node a node, by a token of pannier cluster
token create, which is read from standard input if it is -. ADDRESS is that of any server of the
cluster, with the port of its API if that is not 7420. The token says which authority to trust;
the host's private key never leaves it. It writes cluster.hcl, starts the agent again, and waits
until that has a vote or a lease. The ledger of a single host is put aside if no volume and no
workload is in it.`,
		example: "-node join-node.5c1f….MWZ6… 192.0.2.11",
		flags: func(f *pflag.FlagSet) {
			joinFlags(f, &dir, &address)
			f.BoolVar(&node, "node", false, "a node, which runs workloads and keeps no ledger")
		},
		local: func(ctx context.Context, c *call) error {
			text := c.args[0]
			if text == "-" { // other users of the host can read arguments
				line, err := bufio.NewReader(os.Stdin).ReadString('\n')
				if err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				text = strings.TrimSpace(line)
			}
			token, err := parseJoinToken(text, node)
			if err != nil {
				return err
			}
			server, err := apiAddress(c.args[1])
			if err != nil {
				return err
			}
			h, err := newMember(c, dir, address)
			if err != nil {
				return err
			}
			return h.join(ctx, token, server)
		},
	}
}

func joinFlags(f *pflag.FlagSet, dir, address *string) {
	f.StringVar(dir, "config", config.SystemDir, "the `FOLDER` of the agent's configuration")
	f.StringVar(address, "own-address", "", "the IP `ADDRESS` at which the others reach this host\n"+
		"(default: bind_addr, or that from which it reaches them)")
}

func joinTokenVerbs() []verb {
	var node bool
	var ttl time.Duration
	return []verb{
		{
			use: "create", short: "Make a token with which servers join, or with -node nodes", example: "-node -ttl 15m",
			flags: func(f *pflag.FlagSet) {
				f.BoolVar(&node, "node", false, "for nodes")
				f.DurationVar(&ttl, "ttl", joinTTL, "the `TIME` after which it expires")
			},
			run: func(ctx context.Context, c *call) error {
				token, err := newJoinToken(ctx, c.Client, joinType(node), ttl)
				return c.Print(struct {
					Token string `json:"token"`
				}{token}, err, func() { c.Say("%s", token) })
			},
		},
		{
			use: "list", short: "List the tokens with which hosts can join",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.ACL.ListACLTokens(ctx, &hostv1.ListACLTokensRequest{})
				var joins []*hostv1.ACLToken
				for _, t := range resp.GetTokens() {
					if acl.TokenType(t.GetType()).Joins() {
						joins = append(joins, t)
					}
				}
				return list(c.Printer, &hostv1.ListACLTokensResponse{Tokens: joins}, err, joins, columns[*hostv1.ACLToken]{
					[]string{"ACCESSOR", "TYPE", "AGE", "EXPIRES"},
					func(t *Table, k *hostv1.ACLToken) {
						t.Row(k.GetAccessor(), k.GetType(), age(k.GetCreatedAt()), expires(k))
					},
					"no tokens; make one: pannier cluster token create",
				})
			},
		},
		{
			use: "revoke ACCESSOR", short: "Revoke a token; hosts that have joined stay", example: "ad96ddb9a3d1c3f6",
			run: order("token %s is revoked", func(ctx context.Context, c *call) (any, error) {
				resp, err := c.ACL.GetACLToken(ctx, &hostv1.GetACLTokenRequest{Accessor: c.args[0]})
				if err == nil && !acl.TokenType(resp.GetToken().GetType()).Joins() {
					err = Usage("token %s is of the type %s, with which no host joins: pannier acl token delete", c.args[0],
						resp.GetToken().GetType())
				}
				if err != nil {
					return nil, err
				}
				return c.ACL.DeleteACLToken(ctx, &hostv1.DeleteACLTokenRequest{Accessor: c.args[0]})
			}),
		},
	}
}

func joinType(node bool) acl.TokenType {
	if node {
		return acl.JoinNode
	}
	return acl.JoinServer
}

// joinToken is TYPE.AUTHORITY.SECRET: what its holder may become, the SHA-256 of the authority's certificate in
// hexadecimal, and the secret of the ACL token.
type joinToken struct {
	typ               acl.TokenType
	authority, secret string
}

func (t joinToken) String() string { return fmt.Sprintf("%s.%s.%s", t.typ, t.authority, t.secret) }

func parseJoinToken(text string, node bool) (t joinToken, err error) {
	typ, rest, _ := strings.Cut(text, ".")
	t.typ = acl.TokenType(typ)
	t.authority, t.secret, _ = strings.Cut(rest, ".")
	switch {
	case !t.typ.Joins() || len(t.authority) != hex.EncodedLen(sha256.Size) || t.secret == "":
		return t, Usage("this is no token to join: pannier cluster token create, on a server, makes one")
	case t.typ == acl.JoinNode && !node:
		return t, Usage("the token is for nodes: add -node, or make one for servers with: pannier cluster token create")
	case t.typ == acl.JoinServer && node:
		return t, Usage("the token is for servers: leave -node out, or make one for nodes with: pannier cluster token create -node")
	}
	return t, nil
}

// fingerprint identifies an authority in a token.
func fingerprint(authority []byte) string { return fmt.Sprintf("%x", sha256.Sum256(authority)) }

func newJoinToken(ctx context.Context, client *api.Client, typ acl.TokenType, ttl time.Duration) (string, error) {
	authority, err := client.Cluster.GetAuthority(ctx, &hostv1.GetAuthorityRequest{})
	if err != nil {
		return "", err
	}
	made, err := client.ACL.CreateACLToken(ctx, &hostv1.CreateACLTokenRequest{Type: string(typ), Ttl: durationpb.New(ttl)})
	return joinToken{typ, fingerprint(authority.GetCertificate()), made.GetSecret()}.String(), err
}

// apiAddress adds the default port.
func apiAddress(text string) (string, error) {
	if _, _, err := net.SplitHostPort(text); err == nil {
		return text, nil
	}
	host := strings.Trim(text, "[]")
	if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, ":/ ") {
		return "", Usage("%q is no address of a server: HOST or HOST:PORT", text)
	}
	return net.JoinHostPort(host, strconv.Itoa(config.DefaultHTTPPort)), nil
}

// member is this host while it becomes one of a cluster.
type member struct {
	*call
	dir     string
	cfg     *config.Agent
	address string // of this host; empty: not known yet
}

func newMember(c *call, dir, address string) (*member, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	m := &member{call: c, dir: dir, address: address}
	if err := m.load(); err != nil {
		return nil, err
	}
	if bind, err := netip.ParseAddr(m.cfg.BindAddr); err == nil && !bind.IsLoopback() {
		m.address = cmp.Or(address, m.cfg.AdvertiseAddr, m.cfg.BindAddr)
	}
	return m, nil
}

// load reads the agent's configuration, which may have changed.
func (m *member) load() (err error) {
	m.cfg, err = config.Load(config.Source{Paths: []string{m.dir}})
	return err
}

func (m *member) path(name string) string { return filepath.Join(m.dir, name) }

// client returns a client of this host's agent.
func (m *member) client(secret string) (*api.Client, error) {
	return api.New("unix://"+m.cfg.Socket, api.WithToken(secret))
}

// bootstrap makes the first ACL token, and returns its secret.
func (m *member) bootstrap(ctx context.Context) (secret string, err error) {
	anybody, err := m.client("")
	if err != nil {
		return "", err
	}
	defer anybody.Close()
	first, err := anybody.ACL.BootstrapACL(ctx, &hostv1.BootstrapACLRequest{})
	return first.GetSecret(), err
}

// findAddress finds this host's address, unless it is known: that from which it reaches another one.
func (m *member) findAddress(other string) (err error) {
	if m.address == "" {
		m.address, err = addressTowards(other)
	}
	return err
}

// initialize makes the host the first server.
func (m *member) initialize(ctx context.Context) error {
	_, err := os.Stat(m.path(managementFile))
	if err == nil || m.cfg.TLS != nil && m.cfg.TLS.CAKey == "" {
		return refused(fmt.Errorf("this host is in a cluster already (%s): a token for another host is made by: pannier cluster "+
			"token create", strings.Join(m.cfg.Files(), ", ")))
	}
	if m.cfg.TLS == nil {
		if err := m.found(); err != nil {
			return err
		}
		if err := m.restart(ctx, nil); err != nil {
			return err
		}
	}
	if err := m.awaitReady(ctx, true); err != nil {
		return err
	}
	secret, err := m.bootstrap(ctx)
	if err != nil {
		return err
	}
	if err := atomicfile.WriteFile(m.path(managementFile), []byte(secret+"\n")); err != nil {
		return err
	}
	made := struct {
		Secret string `json:"management_token"`
		File   string `json:"management_token_file"`
		Server string `json:"server_token"`
		Node   string `json:"node_token"`
		Own    string `json:"address"`
	}{Secret: secret, File: m.path(managementFile), Own: m.serverAddress()}
	manager, err := m.client(secret)
	if err != nil {
		return err
	}
	defer manager.Close()
	if made.Server, err = newJoinToken(ctx, manager, acl.JoinServer, joinTTL); err == nil {
		made.Node, err = newJoinToken(ctx, manager, acl.JoinNode, joinTTL)
	}
	return m.Print(made, err, func() {
		m.Say("%s is the first server of the cluster, and votes.\n", m.cfg.Name)
		m.Say("The first token, which may do everything, is in %s (0600) and not shown again:\n  %s\n", made.File, made.Secret)
		m.Say("  export PANNIER_TOKEN=$(cat %s)\n", made.File)
		m.Say("Within %s, on two further servers:\n  pannier cluster join %s %s\n", span(joinTTL), made.Server, made.Own)
		m.Say("and on nodes:\n  pannier cluster join -node %s %s", made.Node, made.Own)
	})
}

// serverAddress is where other hosts call this server's API.
func (m *member) serverAddress() string {
	if m.cfg.HTTPPort == config.DefaultHTTPPort {
		return m.address
	}
	return net.JoinHostPort(m.address, strconv.Itoa(m.cfg.HTTPPort))
}

// found writes the files of a cluster's first server.
func (m *member) found() error {
	if err := m.findAddress(anywhere); err != nil {
		return err
	}
	ca, caKey := m.path(authorityFile), m.path(authorityKeyFile)
	if _, err := os.Stat(caKey); errors.Is(err, fs.ErrNotExist) {
		made, err := pki.NewAuthority(authorityDays * 24 * time.Hour)
		if err == nil {
			err = made.Write(ca, caKey)
		}
		if err != nil {
			return refused(err)
		}
	}
	authority, err := pki.ReadAuthority(ca, caKey)
	if err != nil {
		return err
	}
	id := pki.Identity{Name: m.cfg.Name, DC: m.cfg.Datacenter, Role: pki.Server}
	issued, err := authority.Issue(pki.Request{Identity: id, Validity: certificateDays * 24 * time.Hour})
	if err != nil {
		return err
	}
	gossip := make([]byte, 32)
	_, _ = rand.Read(gossip) // it never fails
	return m.write(issued.Cert, issued.Key, base64.StdEncoding.EncodeToString(gossip), acl.JoinServer, m.cfg.Datacenter,
		nil)
}

// write writes the files of a host. joins is nil for the first server.
func (m *member) write(cert, key []byte, gossipKey string, typ acl.TokenType, datacenter string, joins []string) error {
	files := pki.Files{Cert: m.path(hostFile)}
	if err := files.Replace(cert, key); err != nil {
		return err
	}
	if err := atomicfile.WriteFile(m.path(gossipKeyFile), []byte(gossipKey+"\n")); err != nil {
		return err
	}
	if err := atomicfile.WriteFile(m.path(clusterFile), []byte(m.clusterHCL(typ, datacenter, joins))); err != nil {
		return err
	}
	if err := m.load(); err != nil {
		return errors.Join(err, os.Remove(m.path(clusterFile)))
	}
	return nil
}

func (m *member) clusterHCL(typ acl.TokenType, datacenter string, joins []string) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# This host's place in its cluster. pannier cluster init and pannier cluster join write this file.")
	line("name         = %q\ndatacenter   = %q", m.cfg.Name, datacenter)
	if m.cfg.AdvertiseAddr == "" {
		line("bind_addr    = %q", m.address)
	}
	if joins != nil {
		line("retry_join   = [\"%s\"]", strings.Join(joins, `", "`))
	}
	line("encrypt_file = %q\n\ntls {\n  ca_file     = %q", gossipKeyFile, authorityFile)
	if typ == acl.JoinServer {
		line("  ca_key_file = %q", authorityKeyFile)
	}
	line("  cert_file   = %q # the agent renews it before it expires\n  key_file    = %[1]q\n}\n", hostFile)
	switch {
	case typ == acl.JoinNode:
		line("server {\n  enabled = false\n}\n")
	case joins != nil:
		line("server {\n  bootstrap_expect = 0 # it is added to the servers that there are\n}\n")
	}
	line("acl {\n  enabled = true\n}")
	return b.String()
}

// join makes the host one of the cluster that a server is in.
func (m *member) join(ctx context.Context, t joinToken, server string) error {
	if m.cfg.TLS != nil {
		return refused(fmt.Errorf("this host is in a cluster already (%s): to join another one, let it leave (pannier agent "+
			"leave), remove %s, and repeat", strings.Join(m.cfg.Files(), ", "), m.path(clusterFile)))
	}
	if err := m.findAddress(server); err != nil {
		return err
	}
	single, err := m.singleLedger(ctx)
	if err != nil {
		return err
	}
	authority, err := askAuthority(ctx, server)
	if err != nil {
		err = fmt.Errorf("ask the server %s for its authority: %w", server, err)
		if connect.CodeOf(err) == connect.CodeUnavailable {
			err = Coded(ExitUnreachable, err)
		}
		return err
	}
	if got := fingerprint(authority.GetCertificate()); got != t.authority {
		return refused(fmt.Errorf("%s has another authority (%s) than the token (%s): it is no server of that cluster, or somebody "+
			"is in between", server, got, t.authority))
	}
	if err := atomicfile.WriteFile(m.path(authorityFile), authority.GetCertificate()); err != nil {
		return err
	}
	trusted := pki.Identity{DC: authority.GetDatacenter(), Role: pki.Server}
	client, err := api.New("https://"+server, api.WithToken(t.secret),
		api.WithTLS(api.TLS{CAFile: m.path(authorityFile), ServerName: trusted.DNSName()}))
	if err != nil {
		return err
	}
	defer client.Close()
	request, key, err := pki.NewRequest()
	if err != nil {
		return err
	}
	signed, err := client.Cluster.SignCertificate(ctx, &hostv1.SignCertificateRequest{Name: m.cfg.Name, Request: request})
	if err != nil {
		return err
	}
	if t.typ == acl.JoinServer {
		if err := atomicfile.WriteFile(m.path(authorityKeyFile), signed.GetJoining().GetAuthorityKey()); err != nil {
			return err
		}
	}
	err = m.restart(ctx, func() error {
		if err := m.putAside(single); err != nil {
			return err
		}
		return m.write(signed.GetCertificate(), key, signed.GetJoining().GetGossipKey(), t.typ, authority.GetDatacenter(),
			signed.GetJoining().GetAddresses())
	})
	if err != nil {
		return err
	}
	if err := m.awaitReady(ctx, t.typ == acl.JoinServer); err != nil {
		return err
	}
	return m.Done(struct {
		Name string `json:"name"`
		Type string `json:"type"`
	}{m.cfg.Name, string(t.typ)}, nil, "%s has joined %s; what it is: pannier node status %[1]s (with a token)", m.cfg.Name,
		authority.GetDatacenter())
}

// anywhere is beyond the default route (RFC 5737).
const anywhere = "192.0.2.1:9"

// addressTowards returns the address from which this host reaches another one. Nothing is sent.
func addressTowards(other string) (string, error) {
	conn, err := net.Dial("udp", other)
	if err == nil {
		defer conn.Close()
		if from, ok := conn.LocalAddr().(*net.UDPAddr); ok && !from.IP.IsLoopback() {
			return from.IP.String(), nil
		}
	}
	return "", Usage("at which address the others reach this host is not known: give -own-address")
}

// askAuthority asks a server for the certificate of its authority, before it can be known whether it is one.
func askAuthority(ctx context.Context, server string) (*hostv1.GetAuthorityResponse, error) {
	stranger := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, //nolint:gosec // the token has the answer's checksum
	}}
	defer stranger.CloseIdleConnections()
	client := &http.Client{Transport: stranger, Timeout: askTimeout}
	return hostv1connect.NewClusterServiceClient(client, "https://"+server).GetAuthority(ctx, &hostv1.GetAuthorityRequest{})
}

// singleLedger returns the ledger that this host has kept alone, which may be put aside; empty: there is none. It is an
// error if volumes or workloads are in it.
func (m *member) singleLedger(ctx context.Context) (string, error) {
	ledger := filepath.Join(m.cfg.DataDir, "ledger")
	if _, err := os.Stat(ledger); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	secret, err := m.token()
	if err != nil {
		return "", err
	}
	client, err := m.client(secret)
	if err != nil {
		return "", err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var has []string
	volumes, err := client.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{Namespace: "*"})
	for _, v := range volumes.GetVolumes() {
		has = append(has, fmt.Sprintf("volume %q", v.GetSpec().GetId()))
	}
	if err == nil {
		var workloads *hostv1.ListWorkloadsResponse
		workloads, err = client.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Namespace: "*"})
		for _, w := range workloads.GetWorkloads() {
			has = append(has, fmt.Sprintf("workload %q", w.GetSpec().GetId()))
		}
	}
	if err != nil {
		return "", fmt.Errorf("look what is in the ledger of this host (%s), which the cluster would not have: %w: start the "+
			"agent, or, if nothing in it is needed, move it away (mv %[1]s %[1]s.single)", ledger, err)
	}
	if len(has) > 0 {
		return "", refused(fmt.Errorf("this host has a ledger of its own, with %s, which the cluster would not have: make it the "+
			"first server (pannier cluster init) and let the others join it, or delete them first", strings.Join(has, ", ")))
	}
	return ledger, nil
}

// putAside moves the ledger of a single host away; empty: there is none.
func (m *member) putAside(single string) error {
	if single == "" {
		return nil
	}
	m.Note("the ledger of the single host has no volume and no workload, and is put aside: %s.single", single)
	return os.Rename(single, single+".single")
}

// serviceManagers start and stop the agent of a package, where a folder says that they run this host.
var serviceManagers = []struct {
	running     string
	stop, start []string
}{
	{
		"/run/systemd/system",
		[]string{"systemctl", "stop", "pannier.socket", "pannier.service"},
		[]string{"systemctl", "enable", "--now", "--no-block", "pannier.socket", "pannier.service"},
	},
	{"/run/openrc", []string{"rc-service", "--ifstarted", "pannier", "stop"}, []string{"rc-service", "pannier", "start"}},
}

// restart stops the agent, does something while it is stopped, and starts it again. Where no service manager does, it
// says so and waits.
func (m *member) restart(ctx context.Context, stopped func() error) error {
	if stopped == nil {
		stopped = func() error { return nil }
	}
	for _, s := range serviceManagers {
		if _, err := os.Stat(s.running); err != nil || m.dir != config.SystemDir {
			continue
		}
		if err := runCommand(ctx, s.stop); err != nil {
			return err
		}
		if err := stopped(); err != nil {
			return errors.Join(err, runCommand(ctx, s.start))
		}
		return runCommand(ctx, s.start)
	}
	lock, err := os.OpenFile(filepath.Join(m.cfg.DataDir, config.LockFile), os.O_RDWR, 0)
	if err == nil {
		defer lock.Close()
		runs := func() string {
			if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
				return "the agent runs still"
			}
			return ""
		}
		if runs() != "" {
			m.Note("stop the agent, which no service manager has started")
		}
		if err := m.await(ctx, runs); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := stopped(); err != nil {
		return err
	}
	m.Note("start the agent: pannier agent -config %s", m.dir)
	return nil
}

func runCommand(ctx context.Context, args []string) error {
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// agentHealth is what the agent says of itself to everybody.
type agentHealth struct {
	Reasons []string `json:"reasons"`
	Votes   bool     `json:"votes"`
}

func (m *member) health(ctx context.Context) (h agentHealth, err error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.cfg.Socket)
	}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pannier/v1/health", http.NoBody)
	if err != nil {
		return h, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	err = json.NewDecoder(resp.Body).Decode(&h)
	return h, err
}

// awaitReady waits until the agent has its lease, and a server its vote.
func (m *member) awaitReady(ctx context.Context, server bool) error {
	return m.await(ctx, func() string {
		h, err := m.health(ctx)
		switch {
		case err != nil:
			return "the agent does not answer yet (journalctl -u pannier -n 20)"
		case len(h.Reasons) > 0:
			return strings.Join(h.Reasons, "; ")
		case server && !h.Votes:
			return "the server has no vote yet: it gets one when it was healthy for a while"
		}
		return ""
	})
}

// await waits until a reason to wait is gone, and shows each one that stands for two seconds.
func (m *member) await(ctx context.Context, reason func() string) error {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	shown, since := "", time.Now()
	for {
		why := reason()
		if why == "" {
			return nil
		}
		if why != shown && time.Since(since) > 2*time.Second {
			m.Note("waiting: %s", why)
			shown = why
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s; the files are written, and nothing has to be undone: see pannier doctor", why)
		case <-time.After(readyInterval):
		}
	}
}
