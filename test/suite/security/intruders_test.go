package security_test

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/usage"
)

// A caller with a certificate, a network or a socket but without permission is refused, logged, and harmless.
// A workload keeps its claim throughout, and other claims are granted.
func TestIntruders(t *testing.T) {
	t.Parallel()
	c := testcluster.Start(t, testcluster.Options{Servers: 3, Nodes: 2})
	n1 := c.Host("node-1")
	c.Volume(n1, "held", "single-node-writer")
	c.Volume(n1, "free", "single-node-writer")
	n1.Run("workload", "start", c.Workload(n1, "db", "held"))
	before := n1.Claims("held")[0]
	c.Cert("cli", "operator")
	who := intruder{t: t, c: c, net: c.Net.Host("intruder")}
	for _, attack := range []struct {
		name string
		try  func(t *testing.T, i intruder)
	}{
		{"certificates", wrongCertificates},
		{"calls of a node", callsOfANode},
		{"huge requests", hugeRequests},
		{"slow clients, and thousands", slowClients},
		{"gossip", replayedGossip},
		{"stalled bodies", stalledBodies},
		{"idle connections", idleConnections}, // last: it bounds the descriptors of the server that leads
	} {
		t.Run(attack.name, func(t *testing.T) {
			for _, h := range c.Hosts {
				h.Use(t)
			}
			who := who
			who.t = t
			attack.try(t, who)
			goesOn(t, c)
			for _, h := range c.Hosts {
				if !h.Alive() {
					t.Fatalf("%s has ended\n%s", h.Name, h.LogTail())
				}
			}
			if claims := n1.Claims("held"); len(claims) != 1 || claims[0].GetIndex() != before.GetIndex() ||
				claims[0].GetState() != before.GetState() {
				t.Fatalf("the claims changed to %v from %v", claims, before)
			}
		})
	}
	n1.Run("workload", "stop", "db")
}

// Only servers may use raft, only agents may call agents, and only peers with a certificate of the cluster's
// authority are served at all.
func wrongCertificates(t *testing.T, i intruder) {
	other := t.TempDir()
	for _, args := range [][]string{
		{"tls", "ca", "create", "-dir", other},
		{
			"tls", "cert", "create", "-server", "-name", "server-1", "-dir", other, "-ca", other + "/ca.pem", "-ca-key",
			other + "/ca-key.pem",
		},
	} {
		if out, err := exec.Command(i.c.Hosts[0].Pannier, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	leader := i.c.Leader()
	for name, protocols := range map[string][]string{
		"node":    {raftProtocol, "unheard-of/1"},
		"cli":     {raftProtocol, agentProtocol},
		"another": {raftProtocol, agentProtocol, httpProtocol},
		"nobody":  {raftProtocol, agentProtocol, httpProtocol},
	} {
		as := i.nobody()
		switch name {
		case "node":
			as = i.ours("node", "node-2")
		case "cli":
			as = i.ours("cli", "operator")
		case "another":
			as = i.certificate(other, "dc1-server-server-1")
		}
		for _, protocol := range protocols {
			conn, err := i.speak(leader, as, protocol)
			if err == nil {
				err = heard(conn) // with TLS 1.3 the client gets a refusal at its first read
				_ = conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), "tls:") {
				t.Errorf("%s speaks %s: %v", name, protocol, err)
			}
		}
	}
	logged(i.c.Servers(), "a connection was refused", "may not speak "+raftProtocol)
}

// A compromised node has its certificate and its secret, and can act only for itself.
func callsOfANode(t *testing.T, i intruder) {
	n1, n2 := i.c.Host("node-1"), i.c.Host("node-2")
	own, others := secretOf(t, n2), secretOf(t, n1)
	as := i.ours("node", n2.Name)
	servers := methods(t, "host/internal/peer/proto/pannier/peer/v1/servers.proto", "pannier.peer.v1.ServersService")
	nodes := methods(t, "host/internal/peer/proto/pannier/peer/v1/node.proto", "pannier.peer.v1.NodeService")
	drivers := methods(t, "sdk/proto/pannier/plugin/storage/v1/storage.proto", "pannier.plugin.storage.v1.StorageService")
	end := entry(t, &command.EndWorkload{Ref: claim.WorkloadRef{Namespace: "default", ID: "db"}, Node: n1.Name})

	look, err := command.EncodeQuery(&command.QueryNode{Name: n1.Name})
	if err != nil {
		t.Fatal(err)
	}

	var toServers []*grpc.ClientConn
	for _, h := range i.c.Servers() {
		toServers = append(toServers, i.agent(h, as))
	}
	for _, m := range servers {
		second := []byte(n1.Name) // a text, as in most messages
		switch {
		case strings.HasSuffix(m, "/Apply"):
			second = end
		case strings.HasSuffix(m, "/Query"):
			second = look
		}
		for what, secret := range map[string]string{"its own secret": own, "the other's secret": others, "no secret": ""} {
			denied(t, fmt.Sprintf("%s for another node, with %s", m, what), i.ask(toServers, m, secret, message(n1.Name, second)))
		}
		denied(t, m+" with another node's secret", i.ask(toServers, m, others, message(n2.Name, second)))
		denied(t, m+" without a secret", i.ask(toServers, m, "", message(n2.Name, second)))
	}
	for _, m := range append(nodes, drivers...) {
		denied(t, m+" of a server", i.ask(toServers, m, own, []byte{}))
		denied(t, m+" of a node", i.call(i.agent(n1, as), m, own, []byte{}))
	}
	denied(t, "a query about another node",
		i.ask(toServers, "/pannier.peer.v1.ServersService/Query", own, message(n2.Name, look)))
	for _, m := range []string{"SecretsKeys", "OfferSecretsKey"} {
		denied(t, m+" of a node", i.ask(toServers, "/pannier.peer.v1.ServersService/"+m, own,
			message(n2.Name, bytes.Repeat([]byte{1}, 32))))
	}
	held := claim.VolumeRef{Namespace: "default", ID: "held"}
	for what, c := range map[string]command.Command{
		"the end of another's workload": &command.EndWorkload{
			Ref:  claim.WorkloadRef{Namespace: "default", ID: "db"},
			Node: n1.Name,
		},
		"a claim for another": &command.StartWorkload{
			Ref:  claim.WorkloadRef{Namespace: "default", ID: "x"},
			Node: n1.Name,
		},
		"a volume's end":        &command.DeregisterVolume{Ref: held, Force: true},
		"another node's end":    &command.SetNodeStatus{Name: n1.Name, Status: claim.NodeDown},
		"another node's record": &command.PutNode{Node: claim.Node{Name: n1.Name}},
		"a secrets key":         &command.PutSecretsKey{ID: "mine", Active: true},
		"secrets re-encrypted":  &command.ResealVolume{Ref: held, SealedSecrets: []byte("x"), KeyID: "mine"},
		"all rights":            &command.BootstrapACL{},
	} {
		denied(t, what, i.ask(toServers, "/pannier.peer.v1.ServersService/Apply", own, message(n2.Name, entry(t, c))))
	}
	// Secrets and attachments are given only to nodes with a claim.
	for _, m := range []string{"VolumeSecrets", "Attach"} {
		msg := message(n2.Name, []byte("default"))
		msg = append(msg, 0x1a, 4)
		denied(t, m+" without a claim", i.ask(toServers, "/pannier.peer.v1.ServersService/"+m, own, append(msg, "held"...)))
	}
	logged(i.c.Servers(), "a call of another agent was refused", n2.Name)
}

const huge = 100 << 20

// Requests of 100 MB are refused before they are read.
func hugeRequests(t *testing.T, i intruder) {
	leader, n2 := i.c.Leader(), i.c.Host("node-2")
	body := bytes.Repeat([]byte("x"), huge)
	err := i.call(i.agent(leader, i.ours("node", n2.Name)), "/pannier.peer.v1.ServersService/Apply", secretOf(t, n2),
		message(n2.Name, body))
	if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unavailable {
		t.Errorf("to an agent: %v", err)
	}
	for _, h := range []*testhost.Host{leader, n2} {
		before := usage.Memory(t, h.PID(), "VmHWM")
		if answer := post(t, dialSocket(t, h), body); !refusedHTTP(answer) {
			t.Errorf("to the socket of %s: %s", h.Name, answer)
		}
		conn, err := i.speak(h, i.ours("cli", "operator"), httpProtocol)
		if err != nil {
			t.Fatal(err)
		}
		if answer := post(t, conn, body); !refusedHTTP(answer) {
			t.Errorf("to the port of %s: %s", h.Name, answer)
		}
		if grown := usage.Memory(t, h.PID(), "VmHWM") - before; grown > huge>>20/2 {
			t.Errorf("%s took %.0f MiB of memory for it", h.Name, grown)
		}
	}
}
