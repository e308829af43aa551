package peer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/codec"
	"github.com/pannier/pannier/cluster/command"
	peerv1 "github.com/pannier/pannier/host/internal/peer/proto/pannier/peer/v1"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"
	"github.com/pannier/pannier/sdk/storage"
)

// Each method is in the table of access, or is not served by any agent.
func TestEachMethodIsInTheTable(t *testing.T) {
	unserved := []string{"Drivers", "Stage", "Unstage", "Publish", "Unpublish", "ExpandNode", "VolumeStats"}
	others := map[string]access{"SecretsKeys": amongServers, "OfferSecretsKey": byServers}
	rows := 0
	for _, service := range []struct {
		name    string
		methods []string
		who     access
	}{
		{
			"pannier.peer.v1.ServersService",
			names(peerv1.ServersService_ServiceDesc.Methods,
				func(m int) string { return peerv1.ServersService_ServiceDesc.Methods[m].MethodName }), byAgents,
		},
		{
			"pannier.peer.v1.NodeService",
			names(peerv1.NodeService_ServiceDesc.Methods,
				func(m int) string { return peerv1.NodeService_ServiceDesc.Methods[m].MethodName }), byServers,
		},
		{
			"pannier.plugin.storage.v1.StorageService",
			names(storagev1.StorageService_ServiceDesc.Methods,
				func(m int) string { return storagev1.StorageService_ServiceDesc.Methods[m].MethodName }), byServers,
		},
	} {
		for _, m := range service.methods {
			who, ok := methods["/"+service.name+"/"+m]
			who &^= unaudited
			want := cmp.Or(others[m], service.who)
			if served := !strings.HasSuffix(service.name, "StorageService") || !slices.Contains(unserved, m); ok != served ||
				served && who != want {
				t.Errorf("%s/%s: %v, %v", service.name, m, who, ok)
			}
			if ok {
				rows++
			}
			for role, may := range map[pki.Role]bool{
				pki.Server: ok, pki.Node: ok && who == byAgents, pki.CLI: false, "": false,
			} {
				peer := transport.Peer{Name: "n", DC: "dc1", Role: role}
				if _, err := roleMayCall(peer, "/"+service.name+"/"+m); (err == nil) != may {
					t.Errorf("%s calls %s/%s: %v", peer, service.name, m, err)
				}
			}
		}
	}
	if rows != len(methods) {
		t.Errorf("%d rows for %d methods", len(methods), rows)
	}
}

// Each command and query of the ledger is sent by nodes, by a rule, or by servers only. A new one is to be told here.
func TestWhoSendsEachCommand(t *testing.T) {
	senders := map[string]string{
		"nodes": `QueryVolume QueryWorkload QueryClaims QueryNode QueryOnNode QueryTokens QueryCluster QueryACL
			PutNode StartWorkload AwaitWorkload EndWorkload AdvanceClaims DeleteTokens SetNodeDuty`,
		"servers": `RegisterVolume DeregisterVolume ResealVolume PutSnapshot DeleteSnapshot TakeMark EndMark IntendAttach
			DeleteNode DeleteDrivers DeleteWorkloads SetNodeStatus PutLiveness Identify SetAutopilot
			PutToken PutSigningKey RotateSigningKey AdvanceKeyRotation PutSecretsKey
			BootstrapACL PutACLPolicies DeleteACLPolicies PutACLRoles DeleteACLRoles PutACLTokens DeleteACLTokens
			ExpireACLTokens QueryLeft`,
	}
	told := map[string]string{}
	for who, list := range senders {
		for _, name := range strings.Fields(list) {
			told[name] = who
		}
	}
	look := func(what any, all []rule) {
		name := reflect.TypeOf(what).Elem().Name()
		rules := slices.DeleteFunc(slices.Clone(all), func(r rule) bool { return !r.applies(what) })
		want := map[string]int{"nodes": 1, "servers": 0}
		if who, ok := told[name]; !ok || len(rules) != want[who] {
			t.Errorf("%s has %d rules for nodes, and is told to be for %q", name, len(rules), who)
		}
		delete(told, name)
	}
	ledger := reflect.TypeFor[command.Ledger]()
	for n := range ledger.NumMethod() {
		look(reflect.New(ledger.Method(n).Type.In(0).Elem()).Interface(), commands)
	}
	empty, err := codec.Marshal(struct{}{})
	must(t, err)
	for n := range 256 {
		if q, err := command.DecodeQuery(append([]byte{byte(n)}, empty...)); !errors.Is(err, command.ErrUnknownQuery) {
			must(t, err)
			look(q, queries)
		}
	}
	if len(told) > 0 {
		t.Errorf("the ledger has no such commands: %v", told)
	}
}

func names[T any](all []T, name func(n int) string) (out []string) {
	for n := range all {
		out = append(out, name(n))
	}
	return out
}

// applied returns the error of a call with a command, or of the command.
func applied(resp *peerv1.ApplyResponse, err error) error {
	if err != nil {
		return err
	}
	_, err = command.DecodeOutcome(&command.EndWorkload{}, resp.GetOutcome())
	return err
}

// TestForcedByIsTheNodesWord: the record of a claim says on whose word an operator forced its release.
func TestForcedByIsTheNodesWord(t *testing.T) {
	w := form(t, 1, "n1")
	n1 := w.agents["n1"]
	n1.register(t)
	for id, by := range map[string]string{"v": "pannier://dc1/cli/boss", "long": strings.Repeat("x", claim.MaxBy)} {
		v := w.volume(t, id, "d")
		started, err := cluster.Apply(within(t), n1.Servers,
			command.Start(claim.Run{Ref: ref(id), Node: "n1", ID: id}, []claim.Claim{wants(v)}))
		must(t, err)
		advanced, err := cluster.Apply(within(t), n1.Servers, &command.AdvanceClaims{Items: []command.Advance{{
			Volume: v.VolumeRef, Workload: ref(id), Index: started.Claims[0].Index, To: claim.NodeDetached, ForcedBy: by,
		}}})
		must(t, err)
		want := "pannier://dc1/node/n1 for " + by
		if got := advanced.Items[0].Claim.ForcedBy; got != want[:min(len(want), claim.MaxBy)] {
			t.Errorf("it was forced by %q, want %q", got, want)
		}
	}
}

// Each call that a node may not make is refused and logged, and changes nothing.
func TestAMaliciousNode(t *testing.T) {
	w := form(t, 1, "good", "evil")
	good, evil := w.agents["good"], w.agents["evil"]
	good.register(t)
	evil.register(t)
	v := w.volume(t, "v", "d")
	token := claim.Token{
		ID: "11111111-2222-3333-4444-555555555555", Workload: ref("db"), Node: "good", Service: "db",
		Consul: "default",
	}
	started, err := cluster.Apply(within(t), good.Servers,
		command.Start(claim.Run{Ref: ref("db"), Node: "good"}, []claim.Claim{wants(v)}, token))
	must(t, err)
	held := started.Claims[0]
	before, _, err := cluster.Ask(within(t), good.Servers, &command.QueryOnNode{Node: "good"}, command.Blocking{})
	must(t, err)

	entry := func(c command.Command) []byte {
		out, err := command.Encode(c)
		must(t, err)
		return out
	}
	query := func(q command.Query) []byte {
		out, err := command.EncodeQuery(q)
		must(t, err)
		return out
	}
	carriedToken, err := codec.Marshal(token)
	must(t, err)
	apply := func(node string, c command.Command) func(secret string) error {
		return func(secret string) error {
			ctx, c2 := evil.call(t, w, secret)
			return applied(c2.Apply(ctx, &peerv1.ApplyRequest{Node: node, Entry: entry(c)}))
		}
	}
	done := claim.Drain{DoneAt: time.Now()}
	yes := true
	own := evil.secret.text
	for name, attack := range map[string]struct {
		try    func(secret string) error
		secret string
		says   string
	}{
		"a server's command": {
			apply("evil", &command.DeregisterVolume{Ref: v.VolumeRef, Force: true}), own,
			"is for servers",
		},
		"a node's status": {
			apply("evil", &command.SetNodeStatus{Name: "good", Status: claim.NodeDown}), own,
			"is for servers",
		},
		"an operator's order": {apply("evil", &command.SetNodeDuty{Name: "evil", Ineligible: &yes}), own, "its drain"},
		"another's drain":     {apply("evil", &command.SetNodeDuty{Name: "good", Drain: &done}), own, "its drain"},
		"another's record": {apply("evil",
			&command.PutNode{Node: claim.Node{Name: "good", SecretHash: evil.secret.Hash()}}), own, "act for themselves"},
		"a record with another hash": {apply("evil",
			&command.PutNode{Node: claim.Node{Name: "evil", SecretHash: good.secret.Hash()}}), own, "hash"},
		"a claim for another": {
			apply("evil", &command.StartWorkload{Ref: ref("x"), Node: "good"}), own,
			"act for themselves",
		},
		"a claim on another": {apply("evil",
			&command.StartWorkload{
				Ref: ref("x"), Node: "evil",
				Claims: []claim.Claim{{Volume: v.VolumeRef, Node: "good"}},
			}), own, "act for themselves"},
		"a token of another": {apply("evil",
			&command.StartWorkload{
				Ref: ref("x"), Node: "evil",
				Tokens: []claim.Token{{ID: token.ID, Node: "good"}},
			}), own, "act for themselves"},
		"the end of any": {apply("evil", &command.EndWorkload{Ref: ref("db")}), own, "act for themselves"},
		"the end on another": {
			apply("evil", &command.EndWorkload{Ref: ref("db"), Node: "good"}), own,
			"act for themselves",
		},
		"waiting on another": {apply("evil",
			&command.AwaitWorkload{
				Ref: ref("x"), Node: "good",
				After: []claim.WorkloadRef{ref("db")},
			}), own, "act for themselves"},
		"another's claim": {apply("evil",
			&command.AdvanceClaims{Items: []command.Advance{{
				Volume: v.VolumeRef, Workload: ref("db"), Index: held.Index,
				To: claim.NodeDetached,
			}}}), own, "act for themselves"},
		"another's claim, any index": {apply("evil",
			&command.AdvanceClaims{Items: []command.Advance{{
				Volume: v.VolumeRef, Workload: ref("db"),
				To: claim.NodeDetached,
			}}}), own, "index"},
		"a claim freed": {apply("evil",
			&command.AdvanceClaims{Items: []command.Advance{{
				Volume: v.VolumeRef, Workload: ref("db"), Index: held.Index,
				To: claim.Freed,
			}}}), own, "unpublished"},
		"a claim vouched for": {apply("evil",
			&command.AdvanceClaims{
				By: "root",
				Items: []command.Advance{{
					Volume: v.VolumeRef, Workload: ref("db"), Index: held.Index,
					To: claim.NodeDetached,
				}},
			}), own, "operator"},
		"a token noted": {apply("evil", &command.PutToken{Token: token}), own, "is for servers"},
		"the accessor of a token": {apply("evil", &command.StartWorkload{
			Ref: ref("x"), Node: "evil", Tokens: []claim.Token{{ID: token.ID, Node: "evil", Accessor: token.ID}},
		}), own, "only the servers know the accessor"},
		"a token forgotten": {
			apply("evil", &command.DeleteTokens{IDs: []string{token.ID}}), own,
			"act for themselves",
		},
		"for another": {
			apply("good", &command.EndWorkload{Ref: ref("db"), Node: "good"}), own,
			"for another node",
		},
		"for another, its secret": {
			apply("good", &command.EndWorkload{Ref: ref("db"), Node: "good"}), good.secret.text,
			"for another node",
		},
		"another's secret": {
			apply("evil", &command.EndWorkload{Ref: ref("x"), Node: "evil"}), good.secret.text,
			"pannier node purge evil",
		},
		"no secret": {apply("evil", &command.EndWorkload{Ref: ref("x"), Node: "evil"}), "", "no secret"},
		"a record with a new secret": {apply("evil",
			&command.PutNode{Node: claim.Node{Name: "evil", SecretHash: hashOf("NEW")}}), "NEW", "pannier node purge evil"},
		"no command at all": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			return applied(c.Apply(ctx, &peerv1.ApplyRequest{Node: "evil", Entry: []byte("xx")}))
		}, own, ""},
		"a request of 5 MiB": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			return applied(c.Apply(ctx, &peerv1.ApplyRequest{Node: "evil", Entry: make([]byte, 5<<20)}))
		}, own, "larger than max"},
		"no command": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			return applied(c.Apply(ctx, &peerv1.ApplyRequest{Node: "evil"}))
		}, own, ""},
		"what is on another": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			_, err := c.Query(ctx, &peerv1.QueryRequest{Node: "evil", Query: query(&command.QueryOnNode{Node: "good"})})
			return err
		}, own, "act for themselves"},
		"another's tokens": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			_, err := c.Query(ctx, &peerv1.QueryRequest{Node: "evil", Query: query(&command.QueryTokens{Node: "good"})})
			return err
		}, own, "act for themselves"},
		"another's heartbeat": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			_, err := c.Heartbeat(ctx, &peerv1.HeartbeatRequest{Node: "good"})
			return err
		}, own, "for another node"},
		"an attach without a claim": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			_, err := c.Attach(ctx, &peerv1.AttachRequest{Node: "evil", Namespace: "default", Volume: "v"})
			return err
		}, own, "holds no claim"},
		"secrets without a claim": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			_, err := c.VolumeSecrets(ctx, &peerv1.VolumeSecretsRequest{Node: "evil", Namespace: "default", Volume: "v"})
			return err
		}, own, "holds no claim"},
		"secrets of no volume": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			_, err := c.VolumeSecrets(ctx, &peerv1.VolumeSecretsRequest{Node: "evil", Namespace: "default", Volume: "none"})
			return err
		}, own, "holds no claim"},
		"another's token derived": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			_, err := c.DeriveToken(ctx, &peerv1.DeriveTokenRequest{Node: "evil", Token: carriedToken})
			return err
		}, own, "act for themselves"},
		"another's token revoked": {func(s string) error {
			t2 := token
			t2.Node = "evil"
			ctx, c := evil.call(t, w, s)
			b, _ := codec.Marshal(t2)
			_, err := c.RevokeToken(ctx, &peerv1.RevokeTokenRequest{Node: "evil", Token: b})
			return err
		}, own, "not to node"},
		"the end of what it can name": {func(s string) error {
			ctx, c := evil.call(t, w, s)
			_, err := c.ReplaceWorkload(ctx, &peerv1.ReplaceWorkloadRequest{Node: "evil", Namespace: "default", Workload: "db"})
			return err
		}, own, "waits for workload"},
	} {
		t.Run(name, func(t *testing.T) {
			err := attack.try(attack.secret)
			code := status.Code(err)
			if code != codes.PermissionDenied && code != codes.InvalidArgument && code != codes.ResourceExhausted &&
				code != codes.Unimplemented {
				t.Fatalf("%s: %v", code, err)
			}
			if !strings.Contains(err.Error(), attack.says) || strings.Contains(err.Error(), own) ||
				strings.Contains(err.Error(), good.secret.text) {
				t.Errorf("%v does not say %q, or too much", err, attack.says)
			}
		})
	}

	after, _, err := cluster.Ask(within(t), good.Servers, &command.QueryOnNode{Node: "good"}, command.Blocking{})
	if err != nil || fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("the ledger has changed: %+v, %v", after, err)
	}
	if n := len(w.leader(t).tokens.asked); n != 0 {
		t.Errorf("Consul was asked: %v", w.leader(t).tokens.asked)
	}
	logged := w.log.String()
	if n := strings.Count(logged, "a call of another agent was refused"); n < 5 || n > 30 {
		t.Errorf("%d refusals are logged", n)
	}
	if !strings.Contains(logged, "by=pannier://dc1/node/evil") || strings.Contains(logged, own) ||
		strings.Contains(logged, good.secret.text) {
		t.Errorf("the log: %s", logged)
	}
}

// A node that is drained reports that it is done, and nothing else with it.
func TestWhatADrainedNodeAsksFor(t *testing.T) {
	w := form(t, 1, "n1")
	n1 := w.agents["n1"]
	n1.register(t)
	ordered, err := cluster.Apply(within(t), w.leader(t).Servers,
		&command.SetNodeDuty{Name: "n1", Drain: &claim.Drain{By: "root"}})
	must(t, err)
	done := *ordered.Drain
	done.DoneAt = time.Now()
	for field, asks := range map[string]command.SetNodeDuty{
		"a driver's secrets": {Approve: "d"}, "others' namespaces": {Namespaces: &[]string{}},
		"nothing": {StopDrain: true}, "another driver's end": {Revoke: "d"},
	} {
		asks.Name, asks.Drain = "n1", &done
		if _, err := cluster.Apply(within(t), n1.Servers, &asks); !errors.Is(err, ErrDenied) {
			t.Errorf("it asks for %s: %v", field, err)
		}
	}
	_, err = cluster.Apply(within(t), n1.Servers, &command.SetNodeDuty{Name: "n1", Drain: &done})
	must(t, err)
}

// A machine that has the name and the certificate of another, and an empty data directory, is nobody; the same machine
// after a boot has to wait while its earlier boot may use its claims.
func TestMachineOfTheSameName(t *testing.T) {
	w := form(t, 1, "n1")
	leader, n1 := w.leader(t), w.agents["n1"]
	n1.register(t)
	leader.register(t)
	v := w.volume(t, "v", "d")
	for _, a := range []*agent{n1, leader} {
		run := claim.Run{Ref: ref("on-" + a.name), Node: a.name}
		var claims []claim.Claim
		if a == n1 {
			claims = []claim.Claim{wants(v)}
		}
		_, err := cluster.Apply(within(t), a.Servers, command.Start(run, claims))
		must(t, err)

		end, err := command.Encode(&command.EndWorkload{Ref: run.Ref, Node: a.name})
		must(t, err)
		beat := func(secret, boot string) error {
			ctx, c := a.callAs(t, w, secret, boot)
			_, err := c.Heartbeat(ctx, &peerv1.HeartbeatRequest{Node: a.name, BootId: boot})
			return err
		}
		apply := func(secret, boot string) error {
			ctx, c := a.callAs(t, w, secret, boot)
			return applied(c.Apply(ctx, &peerv1.ApplyRequest{Node: a.name, Entry: end}))
		}
		keys := func(secret, boot string) error {
			ctx, c := a.callAs(t, w, secret, boot)
			_, err := c.SecretsKeys(ctx, &peerv1.SecretsKeysRequest{Node: a.name})
			return err
		}
		twin := map[string]func(secret, boot string) error{"heartbeat": beat, "end of a run": apply}
		if a == leader {
			twin["secrets keys"] = keys
		}
		for what, call := range twin {
			if err := call("ANOTHERANOTHERANOTHERANOTHER", "b"); status.Code(err) != codes.PermissionDenied ||
				!strings.Contains(err.Error(), "pannier node purge "+a.name) {
				t.Errorf("%s of another machine named %s: %v", what, a.name, err)
			}
		}
		if err := apply(a.secret.text, "another"); status.Code(err) != codes.Unavailable ||
			!strings.Contains(err.Error(), "earlier boot") {
			t.Errorf("another boot of %s ends a run: %v", a.name, err)
		}
	}

	// The leader asks the machine that the ledger knows, or nobody.
	held := claim.Claim{Node: "n1", Workload: ref("on-n1")}
	if _, err := leader.nodes.Owns(within(t), held); err != nil {
		t.Errorf("it asks the node itself: %v", err)
	}
	for what, change := range map[string]func(*Info){
		"another machine": func(i *Info) { i.SecretHash = hashOf("another") },
		"another boot":    func(i *Info) { i.BootID = "another" },
	} {
		before := n1.node.Info
		change(&n1.node.Info)
		if _, err := leader.nodes.Owns(within(t), held); err == nil || !strings.Contains(err.Error(), "another machine") {
			t.Errorf("%s is asked: %v", what, err)
		}
		n1.node.Info = before
	}
}

// A node cannot ask another node for anything, nor a server for what only nodes do.
func TestANodeIsNoServer(t *testing.T) {
	w := form(t, 1, "good", "evil")
	evil, at := w.agents["evil"], func(name string) string { m, _ := w.member(name); return m.Addr }
	conn, err := evil.dialer.Conn(at("good"), "good", pki.Node)
	must(t, err)
	ctx := withTerm(within(t), 99)
	_, owns := peerv1.NewNodeServiceClient(conn).Owns(ctx, &peerv1.OwnsRequest{Workload: "own"})
	_, served := peerv1.NewServersServiceClient(conn).Apply(ctx, &peerv1.ApplyRequest{Node: "evil"})
	_, attach := storage.NewClient(conn).Attach(ctx, storage.Driver{ID: "d", Endpoint: "unix:///etc/passwd"},
		storage.AttachRequest{})
	stage := storage.NewClient(conn).Stage(ctx, storage.Driver{ID: "d"}, storage.StageRequest{})
	stream := storage.NewClient(conn).Fingerprint(ctx, storage.Driver{ID: "d"}, storage.FingerprintOptions{},
		func(storage.Fingerprint) error { return nil })
	for what, err := range map[string]error{"owns": owns, "attach": attach, "stage": stage} {
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, err := range map[string]error{"a servers' call": served, "a stream": stream} {
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", what, err)
		}
	}
	if !strings.Contains(w.log.String(), "/pannier.peer.v1.ServersService/Apply") {
		t.Errorf("the log: %s", w.log)
	}
	// The good node has seen no term of it.
	leader := w.leader(t)
	if owns, err := leader.nodes.Owns(within(t), claim.Claim{Node: "good", Workload: ref("own")}); err != nil || !owns {
		t.Errorf("%v, %v", owns, err)
	}
}

func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.secret")
	s, err := OpenSecret(path)
	must(t, err)
	again, err := OpenSecret(path)
	if err != nil || again != s || len(s.Hash()) != 64 {
		t.Errorf("%v", err)
	}
	if text := fmt.Sprintf("%v %+v %#v %s", s, s, s, struct{ S Secret }{s}); strings.Contains(text, s.text) {
		t.Error("it is printed")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for name, spoil := range map[string]func(){
		"open to others": func() { must(t, os.Chmod(path, 0o640)) },
		"damaged":        func() { must(t, os.WriteFile(path, nil, 0o600)) },
		"a link":         func() { must(t, errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path))) },
	} {
		must(t, os.RemoveAll(path))
		_, err := OpenSecret(path)
		must(t, err)
		spoil()
		if _, err := OpenSecret(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
