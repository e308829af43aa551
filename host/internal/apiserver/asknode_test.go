package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/apiserver/nodes"
	"github.com/pannier/pannier/host/internal/apiserver/plugins"
	"github.com/pannier/pannier/host/internal/apiserver/volumes"
	"github.com/pannier/pannier/host/internal/config/doctor"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/pki/pkitest"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/test/lib/check"
)

// askers are hosts that can ask each other. Those of the role server share the ledger of the first.
type askers struct {
	ca      pkitest.Authority
	members map[string]discovery.Member
	first   *host
}

func newAskers(t *testing.T) *askers {
	check.Parallel(t)
	return &askers{ca: pkitest.New(t), members: map[string]discovery.Member{}}
}

// knownAgents is the gossip of askers.
type knownAgents struct {
	nodes.Discovery
	*askers
}

func (k knownAgents) Member(name string) (discovery.Member, bool) {
	m, known := k.members[name]
	return m, known
}

// pluginsOf has one plugin, with the name of its host.
type pluginsOf struct {
	plugins.Plugins
	host string
}

func (p pluginsOf) Status() []supervisor.Status {
	return []supervisor.Status{{Name: "plugin-of-" + p.host, State: supervisor.Running}}
}

// listen opens the port of an agent, which the others know from now on.
func (a *askers) listen(t *testing.T, name string, role pki.Role) (*transport.Port, *pki.Certs) {
	t.Helper()
	certs := a.ca.Certs(t, role, name)
	port, err := transport.Open(t.Context(),
		transport.Config{Addr: "127.0.0.1:0", Certs: certs, Logger: hclog.NewNullLogger()})
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, port.Close()) })
	a.known(name, role, port.Addr().String())
	return port, certs
}

func (a *askers) known(name string, role pki.Role, addr string) {
	a.members[name] = discovery.Member{
		Self:   discovery.Self{Name: name, Role: discovery.Role(role), RPC: addr},
		Status: discovery.Alive,
	}
}

func (a *askers) join(t *testing.T, name string, role pki.Role) *host {
	t.Helper()
	port, certs := a.listen(t, name, role)
	dialer := transport.NewDialer(certs)
	t.Cleanup(func() { check.NoError(t, dialer.Close()) })
	h := openHost(t, func(c *parts) {
		c.Name, c.Port, c.Discovery, c.Plugins = name, port, knownAgents{askers: a}, pluginsOf{host: name}
		c.Agent.Patient = func() doctor.Patient { return doctor.Patient{} }
		c.Agents = dialer.Agents(func(name string) (string, pki.Role, bool) {
			m, known := a.members[name]
			return m.RPC, pki.Role(m.Role), known
		})
		if role == pki.Server {
			c.Nodes = struct{ volumes.Nodes }{}
		} else {
			c.Leader = route.New(route.Config{Name: name, Transport: dialer.Transport(), Servers: func() (all []route.Member) {
				for _, m := range a.members {
					if m.Role == discovery.Server {
						all = append(all, route.Member{Name: m.Name, Addr: m.RPC, Server: true})
					}
				}
				return all
			}})
		}
		ledger := c.Ledger
		if a.first != nil {
			ledger = a.first.ledger.Node
		}
		if role == pki.Server {
			c.Ledger = ledger
		}
		c.ACL, c.SocketRoot = acl.NewResolver(acl.Here{Ledger: ledger}, 0, c.Logger), true
	})
	if a.first == nil {
		a.first = h
	}
	if role == pki.Node {
		h.cfg.Ledger, h.cfg.Drivers.Ledger, h.cfg.Agent.Ledger = nil, nil, nil // once its driver is known
	}
	return h
}

// calls make each of nodeCalls, and return whose answer it is.
func calls(ctx context.Context, c *api.Client, node string) map[string]func() (string, error) {
	return map[string]func() (string, error){
		"Status": func() (string, error) {
			r, err := c.Agent.Status(ctx, &hostv1.StatusRequest{Node: node})
			if err != nil {
				return "", err
			}
			return r.GetName(), nil
		},
		"Examine": func() (string, error) {
			r, err := c.Agent.Examine(ctx, &hostv1.ExamineRequest{Node: node})
			if err != nil {
				return "", err
			}
			return r.GetNode(), nil
		},
		"ListPlugins": func() (string, error) {
			r, err := c.Plugins.ListPlugins(ctx, &hostv1.ListPluginsRequest{Node: node})
			if err != nil {
				return "", err
			}
			return strings.TrimPrefix(r.GetPlugins()[0].GetName(), "plugin-of-"), nil
		},
		"ListWorkloads": func() (string, error) {
			r, err := c.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{Node: node})
			if err != nil {
				return "", err
			}
			return r.GetNode(), nil
		},
		"GetWorkload": func() (string, error) {
			r, err := c.Workloads.GetWorkload(ctx, &hostv1.GetWorkloadRequest{Id: "w", Node: node})
			if err != nil {
				return "", err
			}
			return r.GetWorkload().GetNode(), nil
		},
		"CheckWorkload": func() (string, error) {
			r, err := c.Workloads.CheckWorkload(ctx, &hostv1.CheckWorkloadRequest{
				Spec: &hostv1.WorkloadSpec{Id: "w"}, Node: node,
			})
			if err != nil {
				return "", err
			}
			return r.GetNode(), nil
		},
		"StartWorkload": func() (string, error) {
			stream, err := c.Workloads.StartWorkload(ctx, &hostv1.StartWorkloadRequest{
				Spec: &hostv1.WorkloadSpec{Id: "w"}, Node: node,
			})
			return lastNode(stream, err)
		},
		"StopWorkload": func() (string, error) {
			stream, err := c.Workloads.StopWorkload(ctx, &hostv1.StopWorkloadRequest{Id: "w", Node: node})
			return lastNode(stream, err)
		},
		"Events": func() (string, error) {
			return firstEvent(ctx, c, &hostv1.EventsRequest{Recent: 1, Topics: []string{"driver"}, Node: node})
		},
	}
}

// lastNode returns the node of the workload at the end of a stream.
func lastNode[T any](stream *connect.ServerStreamForClient[T], err error) (node string, _ error) {
	if err != nil {
		return "", err
	}
	for stream.Receive() {
		node = any(stream.Msg()).(interface{ GetWorkload() *hostv1.Workload }).GetWorkload().GetNode()
	}
	return node, errors.Join(stream.Err(), stream.Close())
}

// firstEvent returns the subject of the first event.
func firstEvent(ctx context.Context, c *api.Client, req *hostv1.EventsRequest) (string, error) {
	stream, err := c.Agent.Events(ctx, req)
	if err != nil {
		return "", err
	}
	defer stream.Close()
	e, err := next(stream)
	return e.GetSubject(), err
}

// runs has a workload on a host, and an event.
func (h *host) runs(t *testing.T) {
	t.Helper()
	stream, err := h.client.Workloads.StartWorkload(h.ctx, &hostv1.StartWorkloadRequest{
		Spec: &hostv1.WorkloadSpec{Id: "w"},
	})
	check.NoError(t, err)
	for stream.Receive() {
	}
	check.NoError(t, errors.Join(stream.Err(), stream.Close()))
	h.bus.Publish(events.Event{Topic: events.TopicDriver, Type: "test", Subject: h.cfg.Name})
}

const readsAll = `namespace "*" {
		policy       = "read"
		capabilities = ["submit-workload"]
	}
	agent { policy = "read" }
	plugin { policy = "read" }
	node { policy = "read" }`

// Each call that speaks of one agent is answered by the node that it names, from wherever it is made, with the rights
// that the caller's token has there.
func TestAskAnotherNode(t *testing.T) {
	a := newAskers(t)
	server, other := a.join(t, "server", pki.Server), a.join(t, "Other_1", pki.Server)
	asker, node := a.join(t, "asker", pki.Node), a.join(t, "node", pki.Node)
	all := []*host{server, other, asker, node}
	for _, h := range all {
		h.runs(t)
	}
	reader := mustCreate(t, server, "reader", readsAll)
	nothing := mustCreate(t, server, "nothing", `node { policy = "read" }`)
	for _, from := range all {
		clients := map[string]*api.Client{"on the socket": from.with(t, reader), "by a plugin": from.throughPlugin(t, reader)}
		for _, to := range all {
			for way, client := range clients {
				for name, call := range calls(from.ctx, client, to.cfg.Name) {
					if got, err := call(); err != nil || got != to.cfg.Name {
						t.Errorf("%s of %s to %s %s: %q, %v", name, from.cfg.Name, to.cfg.Name, way, got, err)
					}
				}
			}
			if from == to {
				continue
			}
			// Root of the one host is nobody on the other, nor has a plugin more than its token.
			for who, client := range map[string]*api.Client{
				"root": from.client, "a token for something else": from.with(t, nothing), "a plugin": from.throughPlugin(t, nothing),
				"a stranger": from.with(t, "00000000-0000-0000-0000-000000000000"),
			} {
				for name, call := range calls(from.ctx, client, to.cfg.Name) {
					got, err := call()
					if name == "Events" && err == nil && got == "" {
						continue // it is shown nothing
					}
					if code := connect.CodeOf(err); code != connect.CodePermissionDenied && code != connect.CodeUnauthenticated {
						t.Errorf("%s of %s to %s by %s: %q, %v", name, from.cfg.Name, to.cfg.Name, who, got, err)
					}
				}
			}
		}
	}
}

// A token for one namespace, and a node that is bound to one, are shown what is theirs.
func TestAskAnotherNodeWithFewRights(t *testing.T) {
	a := newAskers(t)
	server, bound, node := a.join(t, "server", pki.Server), a.join(t, "bound", pki.Node), a.join(t, "node", pki.Node)
	for _, namespace := range []string{"shop", "till"} {
		stream, err := node.client.Workloads.StartWorkload(node.ctx, &hostv1.StartWorkloadRequest{
			Spec: &hostv1.WorkloadSpec{Namespace: namespace, Id: "w"},
		})
		check.NoError(t, err)
		for stream.Receive() {
		}
		check.NoError(t, errors.Join(stream.Err(), stream.Close()))
	}
	server.putNode(t, "bound")
	_, err := cluster.Apply(server.ctx, server.ledger, &command.SetNodeDuty{Name: "bound", Namespaces: &[]string{"shop"}})
	check.NoError(t, err)
	reader := mustCreate(t, server, "reader", readsAll)
	for who, client := range map[string]*api.Client{
		"a token of shop":            server.with(t, mustCreate(t, server, "shop", `namespace "shop" { policy = "read" }`)),
		"any token over a bound one": bound.with(t, reader),
	} {
		list := check.Must(client.Workloads.ListWorkloads(node.ctx, &hostv1.ListWorkloadsRequest{Node: "node"}))(t)
		if w := list.GetWorkloads(); len(w) != 1 || w[0].GetSpec().GetNamespace() != "shop" {
			t.Errorf("%s is shown %v", who, w)
		}
		for namespace, code := range map[string]connect.Code{"shop": 0, "till": connect.CodePermissionDenied} {
			_, err := client.Workloads.GetWorkload(node.ctx,
				&hostv1.GetWorkloadRequest{Namespace: namespace, Id: "w", Node: "node"})
			if code == 0 {
				check.NoError(t, err)
			} else {
				wantError(t, err, code, namespace)
			}
		}
		_, err := lastNode(client.Workloads.StopWorkload(node.ctx,
			&hostv1.StopWorkloadRequest{Namespace: "till", Id: "w", Node: "node"}))
		wantError(t, err, connect.CodePermissionDenied, "till")
		_, err = lastNode(client.Workloads.StartWorkload(node.ctx,
			&hostv1.StartWorkloadRequest{Spec: &hostv1.WorkloadSpec{Namespace: "till", Id: "v"}, Node: "node"}))
		wantError(t, err, connect.CodePermissionDenied, "till")
		stream, err := client.Agent.Events(node.ctx,
			&hostv1.EventsRequest{Recent: 100, Topics: []string{events.TopicWorkload}, Node: "node"})
		check.NoError(t, err)
		seen := map[string]bool{}
		for stream.Receive() {
			seen[stream.Msg().GetEvent().GetSubject()] = true
		}
		check.NoError(t, errors.Join(stream.Err(), stream.Close()))
		if !seen["shop/w"] || seen["till/w"] {
			t.Errorf("%s is shown events of %v", who, seen)
		}
	}
	_, err = bound.with(t, reader).Agent.Examine(node.ctx, &hostv1.ExamineRequest{Node: "node"})
	wantError(t, err, connect.CodePermissionDenied, "bound to the namespaces")
}

// selfishAgent answers for itself, whichever node is asked.
type selfishAgent struct {
	hostv1connect.UnimplementedAgentServiceHandler
	hostv1connect.UnimplementedPluginServiceHandler
	hostv1connect.UnimplementedWorkloadServiceHandler
	says string // the node in the header; empty: there is none
}

func (o selfishAgent) Status(ctx context.Context, _ *hostv1.StatusRequest) (*hostv1.StatusResponse, error) {
	if call, _ := connect.CallInfoForHandlerContext(ctx); o.says != "" {
		call.ResponseHeader().Set(api.NodeHeader, o.says)
	}
	return &hostv1.StatusResponse{Name: "alone"}, nil
}

func (o selfishAgent) Events(_ context.Context, _ *hostv1.EventsRequest,
	stream *connect.ServerStream[hostv1.EventsResponse],
) error {
	if o.says != "" {
		stream.ResponseHeader().Set(api.NodeHeader, o.says)
	}
	return stream.Send(&hostv1.EventsResponse{Event: &hostv1.Event{Subject: "alone"}})
}

func (o selfishAgent) serve(t *testing.T, l net.Listener) {
	mux := http.NewServeMux()
	mux.Handle(hostv1connect.NewAgentServiceHandler(o))
	server := &http.Server{Handler: mux, Protocols: &http.Protocols{}}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
}

// No answer of another host is taken for that of the node that was asked.
func TestAnotherNodeDoesNotAnswer(t *testing.T) {
	a := newAskers(t)
	server, asker := a.join(t, "server", pki.Server), a.join(t, "asker", pki.Node)
	alone, _ := a.listen(t, "alone", pki.Node)
	selfishAgent{}.serve(t, alone.HTTP())
	liar, _ := a.listen(t, "liar", pki.Node)
	selfishAgent{says: "somebody"}.serve(t, liar.HTTP())
	a.known("posing", pki.Node, alone.Addr().String())
	closed := check.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	check.NoError(t, closed.Close())
	a.known("down", pki.Node, closed.Addr().String())
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, hangs.Close()) })
	a.known("hangs", pki.Node, hangs.Addr().String())
	a.known("gone", pki.Node, closed.Addr().String())
	gone := a.members["gone"]
	gone.Status = discovery.Left
	a.members["gone"] = gone

	reader := mustCreate(t, server, "reader", readsAll)
	long := strings.Repeat("x", 5000)
	for node, want := range map[string]struct {
		code connect.Code
		says []string
	}{
		"alone":                        {connect.CodeFailedPrecondition, []string{`node "alone" cannot be asked`, `agent of "alone"`, "run on alone: pannier "}},
		"liar":                         {connect.CodeFailedPrecondition, []string{`node "liar" cannot be asked`}},
		"posing":                       {connect.CodeUnavailable, []string{`ask node "posing" (alive in gossip)`, "pannier://dc1/node/alone"}},
		"down":                         {connect.CodeUnavailable, []string{`ask node "down"`, "refused", "pannier node status down", "run there: pannier "}},
		"hangs":                        {connect.CodeUnavailable, []string{`ask node "hangs"`, "pannier node status hangs"}},
		"gone":                         {connect.CodeUnavailable, []string{"has left the cluster"}},
		"none":                         {connect.CodeNotFound, []string{`ask node "none"`, "pannier server members"}},
		"<script>alert(1)</script>":    {connect.CodeNotFound, []string{"no member"}},
		"../../etc/passwd":             {connect.CodeNotFound, []string{"no member"}},
		"server/../alone":              {connect.CodeNotFound, []string{"no member"}},
		"alone:80@server?x#y\r\nEvil:": {connect.CodeNotFound, []string{`\r\n`}},
		long:                           {connect.CodeNotFound, []string{"no member"}},
	} {
		for _, from := range []*host{server, asker} {
			for _, name := range []string{"Status", "Events"} {
				got, err := calls(from.ctx, from.with(t, reader), node)[name]()
				if got != "" || len(fmt.Sprint(err)) > 1000 {
					t.Errorf("%s of %q is answered: %q, %v", name, node, got, err)
				}
				wantError(t, err, want.code, want.says...)
			}
		}
	}
	// The server on the way answers for itself.
	selfish, _ := a.listen(t, "selfish", pki.Server)
	selfishAgent{}.serve(t, selfish.HTTP())
	delete(a.members, "server")
	for _, name := range []string{"Status", "Events"} {
		_, err := calls(asker.ctx, asker.with(t, reader), "down")[name]()
		wantError(t, err, connect.CodeFailedPrecondition, `node "down" cannot be asked`, `agent of "selfish" speaks for itself`)
	}
	// And a host that is alone.
	_, err = openHost(t).client.Agent.Status(asker.ctx, &hostv1.StatusRequest{Node: "server"})
	wantError(t, err, connect.CodeFailedPrecondition, `ask node "server"`, "alone")
}

// An agent that a server asks for another node does not ask on.
func TestCallsAreNotPassedOnTwice(t *testing.T) {
	a := newAskers(t)
	first := a.join(t, "first", pki.Server)
	a.join(t, "second", pki.Server)
	a.join(t, "node", pki.Node)
	reader := mustCreate(t, first, "reader", readsAll)
	ctx := withHeader(first.ctx, http.Header{api.TokenHeader: {reader}, call.ForwardedHeader: {"root (uid 0) on x"}})
	_, err := first.cfg.Agent.Nodes.Clients("second").Status(ctx, &hostv1.StatusRequest{Node: "node"})
	wantError(t, err, connect.CodeFailedPrecondition, "passed on", `this one is "second"`)
}

// A stream of another node's events goes on until its caller or the node ends it.
func TestEventsOfAnotherNode(t *testing.T) {
	a := newAskers(t)
	server, asker, node := a.join(t, "server", pki.Server), a.join(t, "asker", pki.Node), a.join(t, "node", pki.Node)
	reader := mustCreate(t, server, "reader", readsAll)
	audit := filepath.Join(t.TempDir(), "audit")
	node.cfg.Audit = NewAuditLog(audit, "n1", hclog.NewNullLogger())
	var stay []*connect.ServerStreamForClient[hostv1.EventsResponse]
	for _, from := range []*host{server, asker} {
		follow := func(ctx context.Context) *connect.ServerStreamForClient[hostv1.EventsResponse] {
			stream, err := from.with(t, reader).Agent.Events(ctx,
				&hostv1.EventsRequest{Follow: true, Topics: []string{events.TopicDriver}, Node: "node"})
			check.NoError(t, err)
			t.Cleanup(func() { _ = stream.Close() })                             // it has ended
			if by := stream.ResponseHeader().Get(api.NodeHeader); by != "node" { // before the first event
				t.Errorf("%q answers", by)
			}
			node.bus.Publish(events.Event{Topic: events.TopicDriver, Type: "test", Subject: "d"})
			if e, err := next(stream); err != nil || e.GetSubject() != "d" {
				t.Errorf("got %v, %v", e, err)
			}
			return stream
		}
		ctx, cancel := context.WithCancel(from.ctx)
		leaves := follow(ctx)
		cancel()
		if _, err := next(leaves); connect.CodeOf(err) != connect.CodeCanceled {
			t.Errorf("its caller has left: %v", err)
		}
		stay = append(stay, follow(from.ctx))
	}
	check.Eventually(t, "the streams of callers that have left end on the node", func() bool {
		lines, err := os.ReadFile(audit)
		return err == nil && strings.Count(string(lines), `"phase":"`+streamEnded) == len(stay)
	})
	check.NoError(t, node.Close())
	for _, stream := range stay {
		for stream.Receive() { // what was published for others
		}
		wantError(t, stream.Err(), connect.CodeUnavailable, `node "node"`, "stopping")
	}
}
