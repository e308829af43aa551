package cluster_test

import (
	"net"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/otlp"
	"github.com/pannier/pannier/test/lib/testcluster"
)

// What a node asks the leader is in the trace of the call that the node answers.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := testcluster.New(t, testcluster.Options{Servers: 1, Nodes: 1, Config: quickVotes})
	server, node := c.Host("server-1"), c.Host("node-1")
	var listener net.Listener
	err := server.Net.Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(server.Net.Addr.String(), "4318"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	collector := otlp.New(t, listener)
	server.Env, node.Env = collector.Env(), collector.Env()
	launch(server, node)

	c.Volume(node, "data", "single-node-writer")
	const create, forward = "pannier.host.v1.VolumeService/CreateVolume", "pannier-agent forward to the leader"
	trace := collector.Await(t, forward+" > pannier-agent "+create+" > pannier-agent raft apply")
	wantHosts(t, trace, map[string]string{"forward to the leader": "node-1", create: "server-1", "raft apply": "server-1"})

	start(c, node, "w", "data")
	const begin = "pannier-agent pannier.host.v1.WorkloadService/StartWorkload"
	const apply = " > pannier-agent pannier.peer.v1.ServersService/Apply"
	trace = collector.Await(t, begin+" > pannier-agent step claim > "+forward+apply+apply+" > pannier-agent raft apply")
	wantHosts(t, trace, map[string]string{"step claim": "node-1", "raft apply": "server-1"})

	for _, s := range collector.Spans() {
		if strings.Contains(s.Name, "Heartbeat") {
			t.Errorf("a heartbeat is in a trace: %v", s)
		}
	}
}

// wantHosts checks which agents have recorded the spans.
func wantHosts(t *testing.T, trace []otlp.Span, want map[string]string) {
	t.Helper()
	for _, s := range trace {
		if host := want[s.Name]; host != "" && s.Attributes["host.name"] != host {
			t.Errorf("%q was recorded by %s, want %s", s.Name, s.Attributes["host.name"], host)
		}
	}
}
