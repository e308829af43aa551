package security_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
)

const serversService = "/pannier.peer.v1.ServersService/"

// Root of a node has its certificate and its secret, and no token: it gets no volume, workload, identity or secret
// that it does not hold. A token that it steals opens no more than the node is bound to, whichever server it calls.
func TestAHostileNode(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Servers: 3, Nodes: 2, Config: `
acl {
  enabled = true
}
audit {
  path = "audit.log"
}
`})
	n1, n2 := c.Host("node-1"), c.Host("node-2")
	management := withTokens(t, c)
	server := c.Leader()
	prod, dev := token(t, server, "prod"), token(t, server, "dev")
	server.Run("volume", "create", volumeOf(server, "prod", "db"))
	server.Run("volume", "create", volumeOf(server, "dev", "db"))
	n1.Token = prod
	n1.Run("workload", "start", inNamespace(n1, "prod", "db", ""))

	i := intruder{t: t, c: c, net: c.Net.Host("intruder")}
	thief := hostile{intruder: i, node: n2.Name, secret: secretOf(t, n2)}
	for _, s := range c.Servers() {
		thief.to = append(thief.to, i.agent(s, i.ours("node", n2.Name)))
	}
	db, volume := claim.WorkloadRef{Namespace: "prod", ID: "db"}, claim.VolumeRef{Namespace: "prod", ID: "db"}
	own := claim.WorkloadRef{Namespace: "dev", ID: "thief"}

	c.Stage(t, "without a token", func(t *testing.T) {
		thief := thief.in(t)
		thief.refused("a wait for another namespace's workload",
			thief.apply(&command.AwaitWorkload{Ref: own, Node: n2.Name, After: []claim.WorkloadRef{db}}))
		thief.refused("a stop of another namespace's workload", thief.stop(db))
		thief.refused("a claim on another namespace's volume", thief.apply(thief.start(own, volume)))
		thief.refused("a claim on a volume of its own namespace",
			thief.apply(thief.start(own, claim.VolumeRef{Namespace: "dev", ID: "db"})))
		secrets, err := thief.secrets(volume)
		thief.refused("a volume's secrets", err)
		if strings.Contains(string(secrets), "swordfish") {
			t.Errorf("it has the secret: %q", secrets)
		}
		_, err = thief.query(&command.QueryVolume{Ref: volume})
		thief.refused("a look at another namespace's volume", err)
		for what, q := range map[string]command.Query{
			"workload": &command.QueryWorkload{Ref: db}, "claims": &command.QueryClaims{Workload: db},
		} {
			if answer, err := thief.query(q); err != nil || strings.Contains(string(answer), n1.Name) {
				t.Errorf("a look at another namespace's %s: %s, %v", what, answer, err)
			}
		}
		if held := claimsOf(server, "prod", "db"); !slices.Equal(held, []string{"node-1 taken"}) {
			t.Errorf("the claims on prod/db are %v", held)
		}
		audited(t, c, "dev/thief", false, "")
	})

	c.Stage(t, "with a token of another namespace", func(t *testing.T) {
		thief := thief.in(t)
		thief.token = dev
		thief.refused("a wait for another namespace's workload",
			thief.apply(&command.AwaitWorkload{Ref: own, Node: n2.Name, After: []claim.WorkloadRef{db}}))
		thief.refused("a stop of another namespace's workload", thief.stop(db))
		thief.refused("a claim on another namespace's volume", thief.apply(thief.start(own, volume)))
		thief.refused("a claim by a workload of another namespace",
			thief.apply(thief.start(claim.WorkloadRef{Namespace: "prod", ID: "thief"}, volume)))
		audited(t, c, "prod/thief", false, "dev")
	})

	app := claim.WorkloadRef{Namespace: "dev", ID: "app"}
	c.Stage(t, "an honest start, and a restart of the agent", func(t *testing.T) {
		n2.Token = dev
		n2.Run("workload", "validate", inNamespace(n2, "dev", "app", ""))
		n2.Run("workload", "start", "-dry-run", inNamespace(n2, "dev", "app", ""))
		n2.Run("workload", "start", inNamespace(n2, "dev", "app", ""))
		audited(t, c, "dev/app", true, "dev")
		n2.Kill()
		n2.Token = management
		n2.Start()
		if held := claimsOf(server, "dev", "db"); !slices.Equal(held, []string{"node-2 taken"}) {
			t.Errorf("the claims on dev/db are %v", held)
		}
	})

	c.Stage(t, "more for a workload that runs", func(t *testing.T) {
		n2.Token = dev
		n2.Run("workload", "start", inNamespace(n2, "dev", "app", ""))
		n2.Token = management
		thief := thief.in(t)
		thief.refused("an identity that it was not started with", thief.intend(claim.Token{
			ID: "00000000-0000-4000-8000-000000000000", Workload: app, Node: n2.Name, Service: "payments", Consul: "default",
		}))
		thief.refused("another volume", thief.apply(thief.start(app, volume)))
		thief.refused("to be bound to no namespace",
			thief.apply(&command.SetNodeDuty{Name: n2.Name, Namespaces: new([]string)}))
		n2.Run("workload", "stop", "-namespace", "dev", "app")
	})

	c.Stage(t, "what other hosts run, asked through its own agent", func(t *testing.T) {
		const refused = 4 // ExitRefused
		for _, to := range []*testhost.Host{server, n1} {
			for secret, why := range map[string]string{"": "has no token", dev: `token "dev"`} {
				n2.Token = secret
				for _, args := range [][]string{{"status"}, {"plugin", "list"}, {"doctor"}} {
					n2.Refused(refused, []string{why}, append(args, "-node", to.Name)...)
				}
			}
			n2.Token = management
			n2.Run("plugin", "list", "-node", to.Name)
		}
		for secret, sees := range map[string]bool{dev: false, prod: true} {
			n2.Token = secret
			for _, args := range [][]string{{"workload", "status"}, {"events", "-topic", "workload"}} {
				if out := n2.Run(append(args, "-node", n1.Name)...); strings.Contains(out, "db") != sees {
					t.Errorf("%v of %s shows:\n%s", args, n1.Name, out)
				}
			}
		}
		n2.Token = management
	})

	c.Stage(t, "a start that waits while the agent is restarted", func(t *testing.T) {
		n2.Token = prod
		wait := n2.Command("workload", "start", inNamespace(n2, "prod", "later", `after = ["db"]`))
		if err := wait.Start(); err != nil {
			t.Fatal(err)
		}
		n2.Eventually("it waits", func() error { return says(n2, "prod", "later", "waits until") })
		_ = wait.Process.Kill() // the start goes on without its caller
		_ = wait.Wait()
		n2.Kill()
		n2.Token = management
		n2.Start()
		n1.Token = prod
		n1.Run("workload", "stop", "-namespace", "prod", "db")
		n2.Eventually("it runs", func() error { return says(n2, "prod", "later", "running") })
		n2.Run("workload", "stop", "-namespace", "prod", "later")
	})

	c.Stage(t, "a workload that replaces another one", func(t *testing.T) {
		n1.Token, n2.Token = prod, prod
		n1.Run("workload", "start", inNamespace(n1, "prod", "db", ""))
		n2.Run("workload", "start", inNamespace(n2, "prod", "next", `replaces = ["db"]`))
		if held := claimsOf(server, "prod", "db"); !slices.Equal(held, []string{"node-2 taken"}) {
			t.Errorf("the claims on prod/db are %v", held)
		}
		n2.Run("workload", "stop", "-namespace", "prod", "next")
	})

	c.Stage(t, "bound to a namespace", func(t *testing.T) {
		server.Run("node", "namespaces", "-only", "dev", n2.Name)
		n2.Token = prod
		const refused = 4 // ExitRefused
		n2.Refused(refused, []string{"namespace"}, "workload", "start", inNamespace(n2, "prod", "db", ""))
		thief := thief.in(t)
		thief.token = prod
		thief.refused("a claim with a stolen token",
			thief.apply(thief.start(claim.WorkloadRef{Namespace: "prod", ID: "thief"}, volume)))
		for _, args := range [][]string{
			{"volume", "status", "-namespace", "prod", "db"},
			{"volume", "detach", "-namespace", "prod", "db", "db"},
			{"node", "namespaces", "-any", n2.Name},
			{"node", "purge", n2.Name},
			{"acl", "token", "list"},
		} {
			n2.Token = management
			if r := n2.Try(args...); r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, "bound to the namespaces") {
				t.Errorf("%v through the node: %d\n%s%s", args, r.Code, r.Stdout, r.Stderr)
			}
		}
		for _, door := range c.Servers() {
			for _, args := range [][]string{
				{"volume", "status", "-namespace", "prod", "db"},
				{"acl", "token", "create", "-name", "mine", "-type", "management"},
				{"node", "namespaces", "-any", n2.Name},
				{"node", "purge", n2.Name},
			} {
				if out, err := over(c, n2, door, args...); err == nil || !strings.Contains(out, "bound to the namespaces") {
					t.Errorf("%v with a stolen management token, to %s: %v\n%s", args, door.Name, err, out)
				}
			}
		}
		for _, args := range [][]string{
			{"acl", "token", "list"}, {"volume", "status", "-namespace", "prod", "db"}, {"node", "namespaces", "-any", n2.Name},
		} {
			if out, err := over(c, n2, n1, args...); err == nil || !strings.Contains(out, "is for the API of servers") {
				t.Errorf("%v with a stolen management token, to another node: %v\n%s", args, err, out)
			}
		}
		n1.Token = prod
		n1.Run("workload", "start", n1.Write("seen.workload.hcl", "workload \"seen\" {\n  namespace = \"prod\"\n}\n"))
		n2.Token = management
		if out := n2.Run("workload", "status", "-node", n1.Name); strings.Contains(out, "seen") {
			t.Errorf("through the node, %s shows\n%s", n1.Name, out)
		}
		n1.Run("workload", "stop", "-namespace", "prod", "seen")
		for _, to := range []*testhost.Host{server, n1} {
			n2.Token = prod
			if out, err := over(c, n2, to, "workload", "stop", "-namespace", "prod", "db"); err == nil ||
				!strings.Contains(out, "node-2") {
				t.Errorf("a stop with a stolen token on %s: %v\n%s", to.Name, err, out)
			}
		}
		n2.Token = management
		n2.Kill()
		n2.Start()
		n2.Token = dev
		n2.Run("workload", "start", inNamespace(n2, "dev", "app", ""))
		if held := claimsOf(server, "prod", "db"); slices.Contains(held, "node-2 taken") {
			t.Errorf("the claims on prod/db are %v", held)
		}
		server.Run("node", "namespaces", "-any", n2.Name)
		n2.Token = prod
		n2.Run("workload", "start", n2.Write("free.workload.hcl", "workload \"free\" {\n  namespace = \"prod\"\n}\n"))
	})

	c.Stage(t, "tokens are in no file", func(t *testing.T) {
		for _, h := range c.Hosts {
			err := filepath.WalkDir(h.Dir, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || !entry.Type().IsRegular() {
					return nil //nolint:nilerr // files come and go while the agents run
				}
				text, err := os.ReadFile(path)
				for name, secret := range map[string]string{"prod": prod, "dev": dev, "management": management} {
					if bytes.Contains(text, []byte(secret)) {
						t.Errorf("the token %s is in %s of %s", name, path, h.Name)
					}
				}
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// over runs a command on a node that calls another host's API over HTTPS, with the node's certificate.
func over(c *testcluster.Cluster, from, to *testhost.Host, args ...string) (out string, err error) {
	role, _, _ := strings.Cut(to.Name, "-")
	cert := filepath.Join(c.Dir, "dc1-node-"+from.Name)
	cmd := from.Command(args...)
	cmd.Env = append(cmd.Env, "PANNIER_ADDR=https://"+to.Net.Addr.String()+":7420",
		"PANNIER_CACERT="+filepath.Join(c.Dir, "ca.pem"), "PANNIER_TLS_SERVER_NAME="+role+".dc1.pannier",
		"PANNIER_CLIENT_CERT="+cert+".pem", "PANNIER_CLIENT_KEY="+cert+"-key.pem")
	err = from.Net.Do(func() error {
		text, err := cmd.CombinedOutput()
		out = string(text)
		return err
	})
	return out, err
}

// audited checks that the leader's audit log has a line about the start of a workload by node-2.
func audited(t *testing.T, c *testcluster.Cluster, subject string, allowed bool, token string) {
	t.Helper()
	var text []byte
	for _, server := range c.Servers() {
		lines, err := os.ReadFile(server.Path("audit.log"))
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, lines...)
	}
	for line := range strings.Lines(string(text)) {
		var e struct {
			RPC, Certificate, Subject, Token, Accessor string
			Allowed                                    bool
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.RPC == "WorkloadService/StartWorkload" && e.Certificate == "pannier://dc1/node/node-2" &&
			e.Subject == subject && e.Allowed == allowed && e.Token == token && (e.Accessor != "") == (token != "") {
			return
		}
	}
	t.Errorf("no line about %s (allowed: %t, token %q) in the audit log:\n%s", subject, allowed, token, text)
}

// says checks what the status of a workload says.
func says(h *testhost.Host, namespace, id, want string) error {
	if r := h.Try("workload", "status", "-namespace", namespace, id); !strings.Contains(r.Stdout, want) {
		return fmt.Errorf("it does not say %q: %s%s", want, r.Stdout, r.Stderr)
	}
	return nil
}

// withTokens starts a cluster with ACLs. Each host's commands have a management token, which is returned.
func withTokens(t *testing.T, c *testcluster.Cluster) (management string) {
	t.Helper()
	for _, h := range c.Hosts {
		h.Begin()
	}
	first := c.Servers()[0]
	var made struct{ Secret string }
	first.Eventually("there is a first token", func() error {
		r := first.Try("acl", "bootstrap", "-o", "json")
		if r.Code != 0 {
			return errors.New(r.Stdout + r.Stderr)
		}
		return json.Unmarshal([]byte(r.Stdout), &made)
	})
	for _, h := range c.Hosts {
		h.Token = made.Secret
	}
	for _, h := range c.Hosts {
		h.AwaitReady()
		h.AwaitDrivers()
	}
	return made.Secret
}

// token makes a token that may do everything in one namespace, with no other rights.
func token(t *testing.T, h *testhost.Host, namespace string) string {
	t.Helper()
	h.Run("acl", "policy", "apply", namespace,
		h.Write(namespace+".hcl", fmt.Sprintf("namespace %q {\n  policy = \"write\"\n}\n", namespace)))
	var made struct{ Secret string }
	text := h.Run("acl", "token", "create", "-name", namespace, "-policy", namespace, "-o", "json")
	if err := json.Unmarshal([]byte(text), &made); err != nil {
		t.Fatal(err)
	}
	return made.Secret
}

func volumeOf(h *testhost.Host, namespace, id string) (spec string) {
	return h.Write(namespace+"-"+id+".volume.hcl", fmt.Sprintf(`
id           = %q
namespace    = %q
type         = "csi"
plugin_id    = "shared"
capacity_min = "1MiB"
secrets {
  password = "swordfish"
}
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`, id, namespace))
}

// inNamespace writes the spec of a workload that uses the volume of the same namespace and name.
func inNamespace(h *testhost.Host, namespace, id, more string) (spec string) {
	return h.Write(namespace+"-"+id+".workload.hcl", fmt.Sprintf(`
workload %q {
  namespace = %q
  %s
  volume "data" {
    source      = "db"
    destination = "/srv/data"
  }
}
`, id, namespace, more))
}

// claimsOf lists a volume's claims, as NODE STATE.
func claimsOf(h *testhost.Host, namespace, volume string) (held []string) {
	var shown struct {
		Volume struct {
			Claims []struct{ Node, State string }
		}
	}
	text := h.Run("volume", "status", "-namespace", namespace, "-o", "json", volume)
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		return []string{err.Error()}
	}
	for _, c := range shown.Volume.Claims {
		held = append(held, c.Node+" "+c.State)
	}
	return held
}

// hostile is root of a node, with the node's certificate and secret, and sends a token that it has found; empty: none.
type hostile struct {
	intruder
	node, secret, token string
	to                  []*grpc.ClientConn // the servers, of which the leader answers
}

// in is the same for a subtest.
func (h hostile) in(t *testing.T) hostile {
	h.t = t
	return h
}

func (h hostile) refused(what string, err error) {
	h.t.Helper()
	denied(h.t, what, err)
}

func (h hostile) apply(c command.Command) error {
	_, err := h.answer("Apply", message(h.node, entry(h.t, c)))
	return err
}

// start is a command that takes the only claim on a volume.
func (h hostile) start(ref claim.WorkloadRef, volume claim.VolumeRef) command.Command {
	return &command.StartWorkload{Ref: ref, Node: h.node, RunID: "run", Claims: []claim.Claim{{
		Volume: volume, Mode: claim.Write, AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
	}}}
}

func (h hostile) stop(ref claim.WorkloadRef) error {
	_, err := h.answer("ReplaceWorkload", fields(h.node, ref.Namespace, ref.ID, "replaced"))
	return err
}

func (h hostile) secrets(ref claim.VolumeRef) ([]byte, error) {
	return h.answer("VolumeSecrets", fields(h.node, ref.Namespace, ref.ID))
}

// intend asks for the right to get a token from Consul.
func (h hostile) intend(token claim.Token) error {
	encoded, err := codec.Marshal(token)
	if err != nil {
		return err
	}
	_, err = h.answer("IntendToken", message(h.node, encoded))
	return err
}

// query returns the answer as it is encoded.
func (h hostile) query(q command.Query) ([]byte, error) {
	h.t.Helper()
	encoded, err := command.EncodeQuery(q)
	if err != nil {
		h.t.Fatal(err)
	}
	answer, err := h.answer("Query", message(h.node, encoded))
	if err == nil {
		answer, _ = field(answer, 1)
	}
	return answer, err
}

// answer makes a call and returns its answer.
func (h hostile) answer(method string, msg []byte) (answer []byte, err error) {
	ctx, cancel := context.WithTimeout(h.t.Context(), testhost.Wait)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "node-secret", h.secret)
	if h.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "caller-token-bin", h.token)
	}
	h.c.Hosts[0].Eventually("the server that leads answers", func() error {
		for _, conn := range h.to {
			err = conn.Invoke(ctx, serversService+method, msg, &answer)
			if code := status.Code(err); code != codes.FailedPrecondition && code != codes.Unavailable {
				return nil
			}
		}
		return err
	})
	return answer, err
}

// fields returns a message with these strings as its fields 1, 2 and so on.
func fields(values ...string) (m []byte) {
	for n, v := range values {
		m = protowire.AppendString(protowire.AppendTag(m, protowire.Number(n+1), protowire.BytesType), v)
	}
	return m
}
