package state

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// TestAnyLog applies random commands and checks the whole ledger after each: index keys, drivers' counts, and
// that claims are compatible. A refusal must have no effect. The same log in other batches, and a snapshot,
// must give the same ledger.
func TestAnyLog(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		l := openFor(t, dir)
		var log []Entry
		t.Repeat(map[string]func(*rapid.T){
			"command": func(t *rapid.T) {
				l.t = t
				before := l.records()
				c := drawCommand(t)
				if rapid.Bool().Draw(t, "keyed") {
					command.SetKey(c, rapid.SampledFrom([]string{"k1", "k2", "k3"}).Draw(t, "key"))
				}
				_, err := l.do(decodedAgain(t, c))
				command.SetAt(c, now.Add(time.Duration(l.index)*time.Second)) // the same time as in do
				log = append(log, Entry{Index: l.index, Command: decodedAgain(t, c)})
				if err != nil {
					l.sameAs(before, fmt.Sprintf("%T was refused (%v)", c, err))
				}
				checkTokens(t, l, before, c)
			},
			"": func(t *rapid.T) {
				l.t = t
				checkIndexKeys(t, l)
				checkCounts(t, l)
				checkClaims(t, l)
				checkDown(t, l)
				checkWaiting(t, l)
			},
		})

		other := openFor(t, dir)
		for len(log) > 0 {
			n := rapid.IntRange(1, len(log)).Draw(t, "batch")
			if _, err := other.Apply(log[:n]); err != nil {
				t.Fatal(err)
			}
			log = log[n:]
		}
		if !maps.Equal(l.dump(), other.dump()) {
			t.Fatal("the same log in other batches gives another ledger")
		}
		third := openFor(t, dir)
		restore(t, third, snapshot(t, l))
		third.sameAs(l.records(), "a snapshot gives another ledger")
		if third.AppliedIndex() != l.AppliedIndex() {
			t.Fatalf("restored at %d, not %d", third.AppliedIndex(), l.AppliedIndex())
		}
	})
}

// decodedAgain returns the command as each server decodes it from its log, because applying a command may
// change it.
func decodedAgain(t *rapid.T, c command.Command) command.Command {
	entry, err := command.Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := command.Decode(entry)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// openFor opens an empty ledger for one run of a property.
func openFor(t *rapid.T, base string) *ledger {
	dir, err := os.MkdirTemp(base, "ledger")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return &ledger{Store: s, t: t}
}

func snapshot(t fataler, l *ledger) []byte {
	s, err := l.Snapshot()
	if err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	defer s.Release()
	var out bytes.Buffer
	if err := s.Write(&out); err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	return out.Bytes()
}

func restore(t fataler, l *ledger, snapshot []byte) {
	if err := l.Restore(bytes.NewReader(snapshot)); err != nil {
		t.Fatalf("restore: %v", err)
	}
}

// anyVolumes are the ids of the volumes of TestAnyLog.
var anyVolumes = []string{"v1", "v[0]", "v$'*%"}

func drawCommand(t *rapid.T) command.Command {
	aVolume := func() string { return rapid.SampledFrom(anyVolumes).Draw(t, "volume") }
	aWorkload := func() claim.WorkloadRef {
		return workload(rapid.SampledFrom([]string{"w1", "w2", "w3"}).Draw(t, "workload"))
	}
	aNode := func() string { return rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node") }
	aDriver := func() string { return rapid.SampledFrom([]string{"d1", "d2"}).Draw(t, "driver") }
	aToken := func() string { return tokenID(rapid.IntRange(0, 3).Draw(t, "token")) }
	aRun := func() string { return rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "run id") }
	access := func() claim.AccessMode {
		return rapid.SampledFrom([]claim.AccessMode{
			claim.SingleNodeWriter, claim.SingleNodeMultiWriter,
			claim.MultiNodeSingleWriter,
		}).Draw(t, "access")
	}
	switch rapid.SampledFrom([]string{
		"start", "start", "end", "advance", "advance", "register", "deregister", "node",
		"node", "drop", "collect", "forget", "token", "token", "untoken", "await", "await", "status", "status", "duty", "acl",
		"acl", "secrets", "autopilot", "mark", "unmark", "attach",
	}).Draw(t, "command") {
	case "start":
		c := &command.StartWorkload{Ref: aWorkload(), Node: aNode(), RunID: aRun()}
		mode := rapid.SampledFrom([]claim.Mode{claim.Read, claim.Write}).Draw(t, "mode")
		for range rapid.IntRange(0, 2).Draw(t, "claims") {
			c.Claims = append(c.Claims, wanted(aVolume(), access(), mode))
		}
		for range rapid.IntRange(0, 2).Draw(t, "tokens") {
			c.Tokens = append(c.Tokens, claim.Token{ID: aToken(), Service: "web", Consul: "default"})
		}
		return c
	case "end":
		c := &command.EndWorkload{
			Ref: aWorkload(), Run: rapid.SampledFrom([]uint64{0, 0, 0, 1, 2}).Draw(t, "run"),
			RunID: aRun(),
		}
		if c.RunID != "" {
			c.Node = aNode()
		}
		return c
	case "advance":
		c := &command.AdvanceClaims{}
		for range rapid.IntRange(1, 2).Draw(t, "items") {
			c.Items = append(c.Items, command.Advance{
				Volume: ref(aVolume()), Workload: aWorkload(), To: rapid.SampledFrom(claim.States).Draw(t, "to"),
				Index: rapid.Uint64Range(0, 3).Draw(t, "index"),
			})
		}
		return c
	case "register":
		v := volume(aVolume(), rapid.SliceOfNDistinct(rapid.SampledFrom(claim.AccessModes), 1, 7, rapid.ID).Draw(t,
			"capabilities")...)
		v.PluginID = aDriver()
		return &command.RegisterVolume{Volume: v}
	case "deregister":
		return &command.DeregisterVolume{Ref: ref(aVolume()), Force: rapid.Bool().Draw(t, "force")}
	case "mark":
		ofVolume := rapid.Bool().Draw(t, "of a volume")
		c := &command.TakeMark{Mark: claim.Mark{Act: claim.Restoring}}
		if ofVolume {
			c.Ref, c.IfModifyIndex = ref(aVolume()), rapid.Uint64Range(1, 9).Draw(t, "modify index")
			c.Mark.Act = rapid.SampledFrom([]claim.Act{claim.Deleting, claim.Expanding}).Draw(t, "act")
		}
		return c
	case "unmark":
		return &command.EndMark{
			Ref:   rapid.SampledFrom([]claim.VolumeRef{{}, ref(aVolume())}).Draw(t, "marked"),
			Index: rapid.Uint64Range(1, 9).Draw(t, "index"),
		}
	case "attach":
		return &command.IntendAttach{
			Volume: ref(aVolume()), Workload: aWorkload(), Index: rapid.Uint64Range(1, 9).Draw(t, "index"),
		}
	case "node":
		n := claim.Node{Name: aNode(), Drivers: map[string]claim.NodeDriver{}}
		for range rapid.IntRange(0, 2).Draw(t, "drivers") {
			id := aDriver()
			n.Drivers[id] = claim.NodeDriver{
				ID: id, Healthy: rapid.Bool().Draw(t, "healthy"),
				Type: rapid.SampledFrom([]claim.DriverType{claim.Monolith, claim.NodeService, claim.ControllerService}).Draw(t,
					"type"),
			}
		}
		return &command.PutNode{Node: n}
	case "drop":
		return &command.DeleteNode{Name: aNode()}
	case "await":
		c := &command.AwaitWorkload{Ref: aWorkload(), Node: aNode(), RunID: aRun()}
		for range rapid.IntRange(0, 2).Draw(t, "after") {
			c.After = append(c.After, aWorkload())
		}
		return c
	case "status":
		return &command.SetNodeStatus{
			Name: aNode(), By: rapid.SampledFrom([]string{"", "root"}).Draw(t, "by"),
			Status: rapid.SampledFrom([]claim.NodeStatus{claim.NodeReady, claim.NodeDisconnected, claim.NodeDown}).Draw(t,
				"status"),
		}
	case "duty":
		c := &command.SetNodeDuty{Name: aNode(), StopDrain: rapid.Bool().Draw(t, "stop")}
		if rapid.Bool().Draw(t, "drain") {
			c.Drain = &claim.Drain{By: "root"}
		}
		return c
	case "acl":
		return drawACL(t)
	case "secrets":
		return &command.PutSecretsKey{
			ID: aDriver(), Active: rapid.Bool().Draw(t, "active"),
			Gone: rapid.Bool().Draw(t, "gone"),
		}
	case "autopilot":
		quorum := rapid.IntRange(0, claim.MaxServers+1).Draw(t, "quorum")
		return &command.SetAutopilot{Change: claim.AutopilotChange{MinQuorum: &quorum}, First: claim.DefaultAutopilot()}
	case "token":
		token := claim.Token{ID: aToken(), Workload: aWorkload(), Node: aNode(), Service: "web", Consul: "default"}
		if rapid.Bool().Draw(t, "answered") {
			token.Accessor, token.ExpiresAt = aToken(), now.Add(time.Hour)
		}
		return &command.PutToken{Token: token}
	case "untoken":
		return &command.DeleteTokens{IDs: []string{aToken(), aToken()}}
	case "collect":
		return &command.DeleteDrivers{IDs: []string{aDriver()}, IfUnusedBefore: now.Add(time.Hour)}
	default:
		return &command.DeleteWorkloads{EndedBefore: now.Add(time.Hour)}
	}
}

func drawACL(t *rapid.T) command.Command {
	name := func() string { return rapid.SampledFrom([]string{"p1", "p2"}).Draw(t, "name") }
	token := func() acl.Token {
		n := rapid.IntRange(0, 2).Draw(t, "token")
		token := acl.Token{
			Accessor: tokenID(n), SecretHash: hashOf(rapid.SampledFrom([]int{n, n, 0}).Draw(t, "secret")),
			Type: acl.Client,
		}
		token.Policies, token.Roles = []string{name()}, []string{name()}
		if n == 1 {
			token.ExpiresAt = now.Add(20 * time.Second)
		}
		return token
	}
	switch rapid.IntRange(0, 7).Draw(t, "acl") {
	case 0:
		first := token()
		first.Type, first.Policies, first.Roles = acl.Management, nil, nil
		return &command.BootstrapACL{Token: first, ResetIndex: rapid.Uint64Range(0, 5).Draw(t, "reset")}
	case 1:
		return &command.PutACLPolicies{Policies: []acl.Policy{{Name: name(), Rules: "x"}}}
	case 2:
		return &command.DeleteACLPolicies{Names: []string{name()}}
	case 3:
		return &command.PutACLRoles{Roles: []acl.Role{{Name: name(), Policies: []string{name()}}}}
	case 4:
		return &command.DeleteACLRoles{Names: []string{name()}}
	case 5:
		return &command.DeleteACLTokens{Accessors: []string{token().Accessor}}
	case 6:
		return &command.ExpireACLTokens{}
	default:
		return &command.PutACLTokens{Tokens: []acl.Token{token(), token()}}
	}
}

// checkDown checks that a node that is down has nothing left except claims that wait for the watcher.
func checkDown(t *rapid.T, l *ledger) {
	err := l.View(func(tx *ReadTx) error {
		all, err := tx.Nodes()
		if err != nil {
			return err
		}
		for _, n := range all {
			if n.Status != claim.NodeDown {
				continue
			}
			live, err := tx.WorkloadsOn(n.Name)
			if err != nil || len(live) > 0 {
				t.Fatalf("node %s is down and has %+v, %v", n.Name, live, err)
			}
			held, err := tx.ClaimsOn(n.Name)
			if err != nil {
				return err
			}
			for _, c := range held {
				if c.State.Before(claim.NodeDetached) {
					t.Fatalf("node %s is down and holds %+v", n.Name, c)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkWaiting checks that no workload waits, directly or indirectly, for itself.
func checkWaiting(t *rapid.T, l *ledger) {
	err := l.View(func(tx *ReadTx) error {
		all, _, err := tx.Workloads("", Page{})
		after := map[claim.WorkloadRef][]claim.WorkloadRef{}
		for _, w := range all {
			if w.Status == claim.Waiting {
				after[w.Ref] = w.After
			}
		}
		for begin := range after {
			reached := map[claim.WorkloadRef]bool{}
			for next := after[begin]; len(next) > 0; next = next[1:] {
				if next[0] == begin {
					t.Fatalf("workload %s waits for itself: %v", begin, after)
				}
				if !reached[next[0]] {
					reached[next[0]] = true
					next = append(slices.Clip(next), after[next[0]]...)
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkIndexKeys rebuilds all index keys from the records.
func checkIndexKeys(t *rapid.T, l *ledger) {
	have := l.records()
	want := map[string]string{}
	for key, value := range have {
		kind, isRecord := key[0], len(key) > 1 && key[1] == '/'
		if !isRecord {
			continue
		}
		primary, index, err := keysOf(kind, []byte(value))
		if err != nil || primary != key {
			t.Fatalf("record %q belongs at %q: %v", key, primary, err)
		}
		want[key] = value
		for _, p := range index {
			want[p.key] = string(p.value)
		}
	}
	l.sameAs(want, "index keys")
}

func checkCounts(t *rapid.T, l *ledger) {
	err := l.View(func(tx *ReadTx) error {
		nodes, err := tx.Nodes()
		if err != nil {
			return err
		}
		drivers, err := tx.Drivers()
		if err != nil {
			return err
		}
		want := map[string]*claim.Driver{}
		for _, n := range nodes {
			for id, d := range n.Drivers {
				if want[id] == nil {
					want[id] = &claim.Driver{}
				}
				seen := n.Seen(d)
				want[id].Replace(nil, &seen)
			}
		}
		for _, d := range drivers {
			w := want[d.ID]
			delete(want, d.ID)
			if w == nil {
				w = &claim.Driver{}
			}
			if d.ControllersExpected != w.ControllersExpected || d.ControllersHealthy != w.ControllersHealthy ||
				d.NodesExpected != w.NodesExpected || d.NodesHealthy != w.NodesHealthy {
				t.Fatalf("driver %+v, its nodes report %+v", d, *w)
			}
		}
		if len(want) > 0 {
			t.Fatalf("no driver for %v", want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkClaims(t *rapid.T, l *ledger) {
	err := l.View(func(tx *ReadTx) error {
		for _, id := range anyVolumes {
			held, err := tx.Claims(ref(id))
			if err != nil {
				return err
			}
			v, err := tx.Volume(ref(id))
			if err != nil {
				if len(held) > 0 {
					t.Fatalf("volume %s is gone but has claims: %+v", id, held)
				}
				continue
			}
			if (v.AccessMode != "") != (len(held) > 0) {
				t.Fatalf("volume %s with %d claims is in use as %q", id, len(held), v.AccessMode)
			}
			if v.Mark != nil && len(held) > 0 {
				t.Fatalf("volume %s has the mark %+v and claims: %+v", id, v.Mark, held)
			}
			writers, attached := 0, map[string]string{}
			for _, c := range held {
				if by, known := attached[c.Node]; known && by != c.AttachedBy {
					t.Fatalf("volume %s: what is attached to node %s differs: %+v", id, c.Node, held)
				}
				attached[c.Node] = c.AttachedBy
				if c.AccessMode != v.AccessMode {
					t.Fatalf("volume %s is in use as %s and as %s", id, v.AccessMode, c.AccessMode)
				}
				if c.Mode == claim.Write {
					writers++
				}
				if w, err := tx.Workload(c.Workload); err != nil || w.Status == claim.Ended && c.State == claim.Taken {
					t.Fatalf("claim %+v of workload %+v: %v", c, w, err)
				}
			}
			exclusive := v.AccessMode == claim.SingleNodeWriter && len(held) > 1
			if exclusive || v.AccessMode == claim.MultiNodeSingleWriter && writers > 1 {
				t.Fatalf("volume %s: these claims are not compatible: %+v", id, held)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkTokens checks that a token is recorded only while its workload runs on its node, keeps its purpose,
// and is deleted only by DeleteTokens.
func checkTokens(t *rapid.T, l *ledger, before map[string]string, c command.Command) {
	err := l.View(func(tx *ReadTx) error {
		all, err := tx.Tokens("")
		if err != nil {
			return err
		}
		standing := map[string]bool{}
		for _, token := range all {
			standing[tokenKey(token.ID)] = true
			was, there := before[tokenKey(token.ID)]
			if !there {
				if w, err := tx.Workload(token.Workload); err != nil || !token.BelongsTo(w) {
					t.Fatalf("%T recorded %+v for workload %+v: %v", c, token, w, err)
				}
				continue
			}
			old, err := decode[claim.Token]([]byte(was))
			if err != nil || !token.SamePurpose(old) || token.CreateIndex != old.CreateIndex || old.Accessor != "" &&
				token.Accessor == "" {
				t.Fatalf("%T stored %+v instead of %+v: %v", c, token, old, err)
			}
		}
		_, deletes := c.(*command.DeleteTokens)
		for key := range before {
			if strings.HasPrefix(key, tokens) && !standing[key] && !deletes {
				t.Fatalf("%T lost %q", c, key)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
