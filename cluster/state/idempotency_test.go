package state

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

// keyed returns a copy of the command with a key, as decoded from a forwarding server's request.
func keyed(t fataler, c command.Command, key string) command.Command {
	t.Helper()
	command.SetKey(c, key)
	entry, err := command.Encode(c)
	if err != nil {
		t.Fatalf("%T: %v", c, err)
	}
	again, err := command.Decode(entry)
	if err != nil {
		t.Fatalf("%T: %v", c, err)
	}
	return again
}

// TestRepeatedCommands repeats one command of each kind under its key, at once and after another command has
// changed the same records. Nothing changes, and the result is the same.
func TestRepeatedCommands(t *testing.T) {
	v := volume("mine", claim.SingleNodeWriter)
	claims := []claim.Claim{wanted("mine", claim.SingleNodeWriter, claim.Write)}
	item := command.Advance{Volume: ref("mine"), Workload: workload("own"), To: claim.Unpublishing}
	yes := true
	for name, c := range map[string]command.Command{
		"register":   &command.RegisterVolume{Volume: volume("new", claim.SingleNodeWriter)},
		"deregister": &command.DeregisterVolume{Ref: ref("v0"), Force: true},
		"start": &command.StartWorkload{
			Ref: workload("new"), Node: "n",
			Tokens: []claim.Token{{ID: tokenID(8), Service: "web", Consul: "default"}},
		},
		"start again": &command.StartWorkload{Ref: workload("own"), Node: "n", Claims: claims},
		"end":         &command.EndWorkload{Ref: workload("own")},
		"end nothing": &command.EndWorkload{Ref: workload("unknown")},
		"advance":     &command.AdvanceClaims{Items: []command.Advance{item}},
		"node":        &command.PutNode{Node: claim.Node{Name: "new"}},
		"drop node":   &command.DeleteNode{Name: "spare"},
		"drivers":     &command.DeleteDrivers{IDs: []string{"hostpath"}},
		"collect":     &command.DeleteWorkloads{EndedBefore: now},
		"identify":    &command.Identify{Cluster: claim.Cluster{ID: "c"}},
		"token": &command.PutToken{Token: claim.Token{
			ID: tokenID(9), Workload: workload("own"), Node: "n",
			Service: "web", Consul: "default",
		}},
		"forget":      &command.DeleteTokens{IDs: []string{tokenID(1)}},
		"signing key": &command.PutSigningKey{Key: claim.SigningKey{ID: "k", Public: []byte("{}"), Sealed: []byte{1}}},
		"rotate":      &command.RotateSigningKey{Next: claim.SigningKey{ID: "n", Public: []byte("{}"), Sealed: []byte{1}}},
		"phase":       &command.AdvanceKeyRotation{Key: "n", Phase: claim.KeyPublished},
		"await":       await("new", "n", "own"),
		"status":      &command.SetNodeStatus{Name: "n", Status: claim.NodeDisconnected},
		"duty":        &command.SetNodeDuty{Name: "n", Ineligible: &yes},
		"liveness":    &command.PutLiveness{Liveness: claim.Liveness{HeartbeatTTL: 1, StopAfter: 2, Margin: 3}},
		"autopilot":   &command.SetAutopilot{First: claim.DefaultAutopilot()},
		"bootstrap":   &command.BootstrapACL{Token: management(3)},
		"policies":    &command.PutACLPolicies{Policies: []acl.Policy{{Name: "p", Rules: "r"}}},
		"no policies": &command.DeleteACLPolicies{Names: []string{"p0"}},
		"roles":       &command.PutACLRoles{Roles: []acl.Role{{Name: "r", Policies: []string{"p0"}}}},
		"no roles":    &command.DeleteACLRoles{Names: []string{"r0"}},
		"acl tokens":  &command.PutACLTokens{Tokens: []acl.Token{management(4)}},
		"no tokens":   &command.DeleteACLTokens{Accessors: []string{tokenID(0)}},
		"expire":      &command.ExpireACLTokens{},
		"secrets key": &command.PutSecretsKey{ID: "k", Active: true},
		"reseal":      &command.ResealVolume{Ref: ref("mine"), SealedSecrets: []byte("x"), KeyID: "k"},
		"start claims": &command.StartWorkload{
			Ref: workload("other"), Node: "n",
			Claims: []claim.Claim{wanted("v0", claim.MultiNodeMultiWriter, claim.Read)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := filled(t)
			l.must(&command.PutNode{Node: claim.Node{Name: "spare"}})
			read := l.must(&command.RegisterVolume{Volume: v}).(command.RegisterVolumeResult).Volume
			l.must(&command.StartWorkload{Ref: workload("own"), Node: "n", Claims: claims})
			l.must(&command.PutACLPolicies{Policies: []acl.Policy{{Name: "p0"}}})
			l.must(&command.PutACLRoles{Roles: []acl.Role{{Name: "r0", Policies: []string{"p0"}}}})
			l.must(&command.PutACLTokens{Tokens: []acl.Token{management(0)}})
			if r, ok := c.(*command.ResealVolume); ok {
				r.IfModifyIndex = read.ModifyIndex
			}
			first := l.must(keyed(t, c, "key"))
			after := l.records()
			second := l.must(keyed(t, c, "key"))
			l.sameAs(after, "repeated")
			if want := unnamed(c, first); !reflect.DeepEqual(second, want) {
				t.Errorf("answered first\n%+v\nthen\n%+v", want, second)
			}
			// The later change is kept.
			l.must(&command.SetNodeStatus{Name: nodeLeft(l), Status: claim.NodeDown})
			l.must(&command.EndWorkload{Ref: workload("new")})
			after = l.records()
			l.must(keyed(t, c, "key"))
			l.sameAs(after, "repeated later")
		})
	}
}

// nodeLeft makes sure that the ledger has a node, and returns its name.
func nodeLeft(l *ledger) string {
	l.must(&command.PutNode{Node: claim.Node{Name: "left"}})
	return "left"
}

// unnamed removes the parts of a result that are not stored.
func unnamed(c command.Command, result any) any {
	switch r := result.(type) {
	case command.DeregisterVolumeResult:
		r.Volume = claim.Volume{Definition: claim.Definition{VolumeRef: r.Volume.VolumeRef}}
		r.LeftBehind = append([]claim.Claim{}, r.LeftBehind...)
		for i, c := range r.LeftBehind {
			r.LeftBehind[i] = claim.Claim{
				Volume: c.Volume, Workload: c.Workload, Node: c.Node, Mode: c.Mode, State: c.State,
				Index: c.Index, TakenAt: c.TakenAt,
			}
		}
		return r
	case []acl.Token:
		if _, gone := c.(*command.DeleteACLTokens); gone {
			return named(r)
		}
		return r
	default:
		return result
	}
}

// TestRepeatedStartIsNoNewStart: when a start is repeated late, its run may already have ended.
func TestRepeatedStartIsNoNewStart(t *testing.T) {
	l := open(t)
	l.must(&command.RegisterVolume{Volume: volume("v", claim.SingleNodeWriter)})
	start := func() command.Command {
		return keyed(t, &command.StartWorkload{
			Ref: workload("w"), Node: "n",
			Claims: []claim.Claim{wanted("v", claim.SingleNodeWriter, claim.Write)},
		}, "key")
	}
	first := l.must(start()).(command.StartWorkloadResult)
	l.must(&command.EndWorkload{Ref: workload("w")})
	l.must(&command.AdvanceClaims{Items: []command.Advance{{Volume: ref("v"), Workload: workload("w"), To: claim.Freed}}})
	l.must(&command.DeregisterVolume{Ref: ref("v")})
	before := l.records()
	second := l.must(start()).(command.StartWorkloadResult)
	l.sameAs(before, "repeated")
	if !reflect.DeepEqual(second.Workload, first.Workload) || !reflect.DeepEqual(second.Claims, first.Claims) ||
		!second.Created {
		t.Errorf("answered %+v, first %+v", second, first)
	}
}

func TestKeysThatDoNotFit(t *testing.T) {
	l := open(t)
	l.must(keyed(t, &command.StartWorkload{Ref: workload("w"), Node: "n"}, "key"))
	l.must(keyed(t, &command.EndWorkload{Ref: workload("unknown")}, "end"))
	before := l.records()
	for name, row := range map[string]struct {
		c    command.Command
		want error
	}{
		"other arguments": {keyed(t, &command.StartWorkload{Ref: workload("w"), Node: "m"}, "key"), claim.ErrConflict},
		"another end":     {keyed(t, &command.EndWorkload{Ref: workload("w")}, "end"), claim.ErrConflict},
		"another kind":    {keyed(t, &command.DeleteNode{Name: "n"}, "end"), claim.ErrConflict},
		"a path":          {keyed(t, &command.EndWorkload{Ref: workload("w")}, "a/b"), claim.ErrInvalid},
	} {
		l.refused(name, row.want, row.c)
	}
	l.sameAs(before, "refused")
	// A refusal is not stored, because its cause may be gone later.
	end := func() command.Command { return keyed(t, &command.DeleteNode{Name: "n"}, "other") }
	l.must(&command.PutNode{Node: claim.Node{Name: "n"}})
	if _, err := l.do(end()); !errors.Is(err, claim.ErrNodeInUse) {
		t.Fatal(err)
	}
	l.must(&command.EndWorkload{Ref: workload("w")})
	l.must(end())
	// A node that repeats its report causes no write.
	put := func(key string) command.Command { return keyed(t, &command.PutNode{Node: claim.Node{Name: "n"}}, key) }
	l.must(put("put"))
	before = l.records()
	l.must(put("again"))
	l.sameAs(before, "said again")
}

// TestKeptForAnHour deletes old outcomes, a few at a time, and continues after a restore.
func TestKeptForAnHour(t *testing.T) {
	l := open(t)
	at := func(when time.Duration, key string) {
		t.Helper()
		l.index++
		c := keyed(t, &command.EndWorkload{Ref: workload("w")}, key)
		command.SetAt(c, now.Add(when))
		if outcomes, err := l.Apply([]Entry{{Index: l.index, Command: c}}); err != nil || outcomes[0].Err != nil {
			t.Fatal(err, outcomes)
		}
	}
	count := func(want int) {
		t.Helper()
		view(t, l, func(tx *ReadTx) error {
			kept, err := tx.keys(span{base: keptResults})
			index, _ := tx.keys(span{base: keptByIndex})
			if len(kept) != want || len(index) != want {
				t.Errorf("%d outcomes and %d keys are kept, want %d", len(kept), len(index), want)
			}
			return err
		})
	}
	for i := range 10 {
		at(time.Duration(i)*time.Minute, fmt.Sprint("old", i))
	}
	count(10)
	early := snapshot(t, l)
	at(keptFor, "on-time")
	count(11)
	at(keptFor+2*time.Minute+time.Second, "later")
	count(12 - 3)
	restore(t, l, early) // as when an operator restores an old backup
	at(5*keptFor, "much-later")
	count(10 + 1 - pruneAtOnce)
	at(5*keptFor, "much-later-2")
	at(5*keptFor, "much-later-3")
	count(3)
	l.index += keptEntries
	at(5*keptFor, "many-entries-later")
	count(1)
}
