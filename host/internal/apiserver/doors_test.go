package apiserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/pannier/pannier/cluster"
	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/sdk/api"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
	"github.com/pannier/pannier/test/lib/docpages"
)

var update = flag.Bool("update", false, "write docs/acl-calls.md instead of checking it")

// door is a way by which calls come to an agent.
type door struct {
	name string
	send func(w http.ResponseWriter, r *http.Request, secret string)
	// refuses is what every call there is answered that does not check its caller itself; empty: its need decides.
	refuses, why string
	// always is set if also calls that check their caller themselves are refused.
	always bool
	// bound is set for calls that come from a node that is bound to a namespace.
	bound bool
	// local is set for an agent that answers itself what the leader need not.
	local bool
}

// as sends requests to an agent as somebody.
type as struct {
	agent *Server
	who   context.Context
}

func (a as) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	if r = r.Clone(a.who); r.Body == nil {
		r.Body = http.NoBody
	}
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	a.agent.api.Handler.ServeHTTP(w, r)
	return w.Result(), nil
}

func (a as) send(w http.ResponseWriter, r *http.Request, secret string) {
	r = r.Clone(a.who)
	if secret != "" {
		r.Header.Set(api.TokenHeader, secret)
	}
	a.agent.api.Handler.ServeHTTP(w, r)
}

// frontDoor sends requests as a plugin does: with its own token, or with that of its user.
func frontDoor(agent *Server, plugin string, ofUser bool) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, r *http.Request, secret string) {
		own := secret
		if ofUser {
			own = "management" // which a plugin does not lend
			r.Header.Set(api.TokenHeader, secret)
		}
		agent.ServePlugin(w, r, plugin, own)
	}
}

// doors opens a leader, a server that does not lead and a node, whose calls are not implemented, and returns all ways
// to the leader's calls, and to those of the node's agent.
func doors(t *testing.T, known tokensOf) []door {
	t.Helper()
	own := clustertest.Start(t)
	for _, name := range []string{"node-1", "node-2"} {
		check.Must(cluster.Apply(t.Context(), own, &command.PutNode{Node: claim.Node{Name: name, BootID: "b"}}))(t)
	}
	check.Must(cluster.Apply(t.Context(), own, &command.SetNodeDuty{Name: "node-1", Namespaces: &[]string{"other"}}))(t)
	open := func(name string, keeps call.Ledger, to *route.Router) *Server {
		s := New(Config{
			Name: name, Ledger: keeps, Leader: to, Logger: hclog.NewNullLogger(),
			ACL: acl.NewResolver(known, 0, hclog.NewNullLogger()),
		})
		s.calls, s.access = newCallMetrics(), access{group: 4242}
		s.api = &http.Server{Handler: s.apiHandler(func() http.Handler { return unimplemented(s) })}
		return s
	}
	holds := func(role pki.Role, name string) context.Context {
		return transport.WithPeer(t.Context(), transport.Peer{Name: name, Role: role, DC: "dc1"})
	}
	socket := func(p call.Peer) context.Context { return context.WithValue(t.Context(), peerKey{}, p) }
	leads := &deposed{}
	leads.leads.Store(1 << 30)
	leader := open("server-1", own.Node, routeTo(leads))
	to := func(role pki.Role, name string) *route.Router {
		return routeTo(&deposed{leader: "server-1"},
			reach{route.Member{Name: "server-1", Addr: "server-1", Server: true}, as{leader, holds(role, name)}})
	}
	follower := open("server-2", own.Node, to(pki.Server, "server-2"))
	node := open("node-1", nil, to(pki.Node, "node-1"))
	root, member, user := call.Peer{}, call.Peer{UID: 1, GID: 4242}, call.Peer{UID: 1, GID: 1}
	return []door{
		{name: "a unix socket, as root or a member of `socket_group`", send: as{leader, socket(member)}.send},
		{name: "a unix socket of a server that does not lead", send: as{follower, socket(root)}.send},
		{
			name: "a unix socket, as another user", send: as{leader, socket(user)}.send,
			refuses: "may not use this agent's API", why: "only root and `socket_group` may",
		},
		{
			name:    "HTTPS, without a certificate",
			send:    as{leader, socket(call.UnknownPeer(errNoCertificate))}.send,
			refuses: "it showed no certificate", why: "a certificate is needed besides the token",
		},
		{name: "TLS, with a certificate of the role `cli`", send: as{leader, holds(pki.CLI, "ops")}.send},
		{name: "the same, to a server that does not lead", send: as{follower, holds(pki.CLI, "ops")}.send},
		{name: "TLS, with a server's certificate", send: as{leader, holds(pki.Server, "server-2")}.send},
		{name: "TLS, with the certificate of a bound node", send: as{leader, holds(pki.Node, "node-1")}.send, bound: true},
		{
			name: "the same, to a server that does not lead",
			send: as{follower, holds(pki.Node, "node-1")}.send, bound: true,
		},
		{name: "the unix socket of a bound node's agent", send: as{node, socket(root)}.send, bound: true, local: true},
		{
			name: "TLS, to a node's agent, with another node's certificate", send: as{node, holds(pki.Node, "node-2")}.send,
			refuses: "a node's certificate is for the API of servers", why: "nodes call servers only", always: true, local: true,
		},
		{name: "the front door `docker-volume`", send: frontDoor(leader, "docker-volume", false)},
		{name: "the front door `nomad-api`, for a user", send: frontDoor(leader, "nomad-api", true)},
		{name: "the front door `web`, for a user", send: frontDoor(leader, "web", true)},
		{name: "a plugin with its own token, on a server that does not lead", send: frontDoor(follower, "p", false)},
	}
}

// refusal makes a call about objects of namespace "default", and returns the text of its error.
func (d door) refusal(t *testing.T, procedure string, method protoreflect.MethodDescriptor, secret string) string {
	t.Helper()
	body, err := proto.Marshal(aRequest(method))
	check.NoError(t, err)
	kind := "application/proto"
	if streams(method) {
		kind = "application/connect+proto"
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, procedure, bytes.NewReader(body))
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/2.0", 2, 0
	r.Header.Set("Content-Type", kind)
	r.Header.Set("Connect-Protocol-Version", "1")
	w := httptest.NewRecorder()
	d.send(w, r, secret)
	answer := w.Body.Bytes()
	var said struct {
		Message string
		Error   struct{ Message string }
	}
	if streams(method) && len(answer) > frameHeader {
		answer = answer[frameHeader:]
	}
	if err := json.Unmarshal(answer, &said); err != nil || said.Message+said.Error.Message == "" {
		t.Fatalf("%s: %s: %d %q", d.name, procedure, w.Code, w.Body)
	}
	return said.Message + said.Error.Message
}

// TestEveryDoor makes every call of the API through every door, with each kind of token, and checks which rule decides.
// Its table is docs/acl-calls.md.
func TestEveryDoor(t *testing.T) {
	known := tokensOf{
		ledger.Hash("none"): {
			Token:    ledger.Token{Accessor: "acc-none", Name: "none"},
			Policies: []ledger.Policy{{Name: "none", Rules: `namespace "other" { capabilities = ["submit-workload"] }`}},
		},
		ledger.Hash("management"): {Token: ledger.Token{Accessor: "acc-m", Name: "m", Type: ledger.Management}},
	}
	const done = "is not implemented"
	all, ways := procedures(), doors(t, known)
	var rows strings.Builder
	for _, procedure := range slices.Sorted(maps.Keys(all)) {
		method, need := all[procedure], needOf(procedure)
		rule, _, lacks := strings.Cut(ways[0].refusal(t, procedure, method, "none"), " is missing")
		switch {
		case need.checksCaller:
			rule = "checks its caller itself"
		case !lacks:
			rule = "any token; the answer is filtered"
		}
		bounds := ""
		for _, d := range ways {
			expect := func(secret, want string) {
				t.Helper()
				if got := d.refusal(t, procedure, method, secret); !strings.Contains(got, want) {
					t.Errorf("%s: %s with the token %q: %s; want %s", d.name, label(procedure), secret, got, want)
				}
			}
			bound := d.bound && (!d.local || leaderServices[string(method.Parent().FullName())])
			switch {
			case d.refuses != "" && (d.always || !need.checksCaller):
				for _, secret := range []string{"", "none", "management"} {
					expect(secret, d.refuses)
				}
			case need.checksCaller:
				for _, secret := range []string{"", "none", "management"} {
					expect(secret, done)
				}
			case d.refuses != "":
				t.Errorf("%s: no rule decides about %s", d.name, label(procedure))
			default:
				expect("", "this call has no token")
				if lacks {
					expect("none", rule+" is missing")
				} else {
					expect("none", done)
				}
				if !bound {
					expect("management", done)
					continue
				}
				got := d.refusal(t, procedure, method, "management")
				if refused := strings.Contains(got, "bound to the namespaces"); !refused && !strings.Contains(got, done) {
					t.Errorf("%s: %s: %s", d.name, label(procedure), got)
				} else if is := map[bool]string{true: "no", false: "yes"}[refused]; bounds != "" && bounds != is {
					t.Errorf("%s: %s may be made by a bound node: %s, and by another way: %s", d.name, label(procedure), is, bounds)
				} else {
					bounds = is
				}
			}
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", label(procedure), code(rule), bounds)
	}
	docpages.Generated(t, "docs/acl-calls.md", doorsPage(ways, rows.String()), *update)
}

// code sets the quoted words of a rule in the font of code.
func code(rule string) string { return strings.ReplaceAll(rule, `"`, "`") }

func doorsPage(ways []door, rows string) string {
	var b strings.Builder
	b.WriteString(`# Which rule decides about a call

<!-- Generated by make docs; do not edit. -->

A test makes each of these calls through each door, with each kind of token. [acl.md](acl.md) says how to give rights.

## Doors

| a call comes over | before its need is checked |
|---|---|
`)
	for _, d := range ways {
		first := "its token must be known"
		switch {
		case d.refuses != "":
			first = "refused: " + d.why
		case d.bound:
			first = "its token must be known, and opens no more than the node's namespaces"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", d.name, first)
	}
	b.WriteString(`
An agent that does not lead has the leader decide, who is told the certificate that the caller has shown. Calls that
check their caller themselves are open to strangers: the authority's certificate is public, a host joins with a token to
join, and the first token is made by root on a server or with a certificate of an operator.

## Calls

The example names namespace ` + "`default`" + `; a bound node has the namespace ` + "`other`" + `, and a management token.

| call | needs | may a bound node |
|---|---|---|
`)
	b.WriteString(rows)
	return b.String()
}

// aRequest returns a request that names an object of namespace "default".
func aRequest(method protoreflect.MethodDescriptor) proto.Message {
	req := dynamicpb.NewMessage(method.Input())
	name := func(m protoreflect.Message) {
		for field, value := range map[protoreflect.Name]string{"namespace": "default", "id": "some", "name": "some"} {
			if f := m.Descriptor().Fields().ByName(field); f != nil {
				m.Set(f, protoreflect.ValueOfString(value))
			}
		}
	}
	name(req)
	if f := method.Input().Fields().ByName("spec"); f != nil {
		name(req.Mutable(f).Message())
	}
	return req
}
