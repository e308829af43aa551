package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

func tokenID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// intent returns a token of workload id on node n.
func intent(n int, id string) claim.Token {
	return claim.Token{ID: tokenID(n), Workload: workload(id), Node: "n", Service: "web", Consul: "default"}
}

func ids(tokens []claim.Token) (out []string) {
	for _, t := range tokens {
		out = append(out, t.ID[len(t.ID)-2:])
	}
	return out
}

func TestStartNotesTokens(t *testing.T) {
	l := open(t)
	start := func(node string, tokens ...claim.Token) error {
		_, err := l.do(&command.StartWorkload{Ref: workload("w"), Node: node, Tokens: tokens})
		return err
	}
	bare := func(n int) claim.Token { return claim.Token{ID: tokenID(n), Service: "web", Consul: "default"} }
	check.NoError(t, start("n", bare(1), bare(2)))
	view(t, l, func(tx *ReadTx) error {
		got, err := tx.Token(tokenID(1))
		want := intent(1, "w")
		want.CreatedAt, want.CreateIndex, want.ModifyIndex = now.Add(time.Second), 1, 1
		if err != nil || got != want {
			t.Errorf("recorded %+v, %v, want %+v", got, err, want)
		}
		return nil
	})
	before := l.records()
	if err := start("n", bare(1), bare(2)); err != nil {
		t.Errorf("the same token again: %v", err)
	}
	other := bare(1)
	other.Service = "api"
	foreign := bare(3)
	foreign.Workload = workload("x")
	elsewhere := bare(3)
	elsewhere.Node = "m"
	for name, row := range map[string]struct {
		tokens []claim.Token
		want   error
	}{
		"one more":            {[]claim.Token{bare(1), bare(2), bare(3)}, claim.ErrConflict},
		"another service":     {[]claim.Token{other}, claim.ErrConflict},
		"twice":               {[]claim.Token{bare(1), bare(1)}, claim.ErrInvalid},
		"another workload's":  {[]claim.Token{foreign}, claim.ErrInvalid},
		"another node's":      {[]claim.Token{elsewhere}, claim.ErrInvalid},
		"no id":               {[]claim.Token{{Service: "web", Consul: "default"}}, claim.ErrInvalid},
		"no service":          {[]claim.Token{{ID: tokenID(4), Consul: "default"}}, claim.ErrInvalid},
		"a service with room": {[]claim.Token{{ID: tokenID(4), Service: "a b", Consul: "default"}}, claim.ErrInvalid},
		"too many":            {make([]claim.Token, command.MaxTokens+1), claim.ErrInvalid},
	} {
		if err := start("n", row.tokens...); !errors.Is(err, row.want) {
			t.Errorf("%s: %v, want %v", name, err, row.want)
		}
		l.sameAs(before, name)
	}

	// The workload was restarted on another node. The tokens of the earlier run remain, so that they can be
	// revoked.
	l.must(&command.EndWorkload{Ref: workload("w")})
	for _, node := range []string{"n", "m"} {
		if err := start(node, bare(1)); !errors.Is(err, claim.ErrConflict) {
			t.Errorf("the id of an earlier run, on node %s: %v", node, err)
		}
	}
	again := bare(5)
	again.Node = "m"
	check.NoError(t, start("m", again))
	view(t, l, func(tx *ReadTx) error {
		all, err := tx.TokensOf(workload("w"))
		if err != nil || !slices.Equal(ids(all), []string{"01", "02", "05"}) {
			t.Errorf("of the workload: %v, %v", ids(all), err)
		}
		w, err := tx.Workload(workload("w"))
		for _, token := range all {
			if token.BelongsTo(w) != (token.Node == "m") {
				t.Errorf("belongs to the present run: %+v", token)
			}
		}
		return err
	})
}

func TestPutToken(t *testing.T) {
	l := open(t)
	put := func(token claim.Token) (claim.Token, error) {
		result, err := l.do(&command.PutToken{Token: token})
		r, _ := result.(command.PutTokenResult)
		return r.Token, err
	}
	if _, err := put(intent(1, "w")); !errors.Is(err, claim.ErrNotRunning) {
		t.Errorf("of an unknown workload: %v", err)
	}
	l.must(&command.StartWorkload{Ref: workload("w"), Node: "n"})
	elsewhere := intent(1, "w")
	elsewhere.Node = "m"
	if _, err := put(elsewhere); !errors.Is(err, claim.ErrNotRunning) {
		t.Errorf("on a node where it does not run: %v", err)
	}
	first, err := put(intent(1, "w"))
	if err != nil || first.CreateIndex != l.index || first.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", first, err)
	}
	before := l.records()
	if again, err := put(intent(1, "w")); err != nil || again != first {
		t.Errorf("the same again: %+v, %v", again, err)
	}
	for name, change := range map[string]func(*claim.Token){
		"another service":  func(c *claim.Token) { c.Service = "api" },
		"another workload": func(c *claim.Token) { c.Workload = workload("x") },
		"another node":     func(c *claim.Token) { c.Node = "m" },
		"another Consul":   func(c *claim.Token) { c.Consul = "other" },
	} {
		c := intent(1, "w")
		change(&c)
		if _, err := put(c); !errors.Is(err, claim.ErrConflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*claim.Token){
		"capitals":    func(c *claim.Token) { c.ID = "ABCDEF00-0000-4000-8000-000000000000" },
		"a path":      func(c *claim.Token) { c.ID = "../../../../../../../../../../../../" },
		"an accessor": func(c *claim.Token) { c.Accessor = "secret" },
	} {
		c := intent(1, "w")
		change(&c)
		if _, err := put(c); !errors.Is(err, claim.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	l.sameAs(before, "refused or repeated")

	l.must(&command.EndWorkload{Ref: workload("w")})
	if _, err := put(intent(2, "w")); !errors.Is(err, claim.ErrNotRunning) {
		t.Errorf("a new one of an ended workload: %v", err)
	}
	answered := intent(1, "w")
	answered.Accessor, answered.ExpiresAt = tokenID(99), now.Add(time.Hour)
	noted, err := put(answered)
	if err != nil || noted.Accessor != tokenID(99) || !noted.ExpiresAt.Equal(answered.ExpiresAt) ||
		noted.CreateIndex != first.CreateIndex || noted.ModifyIndex != l.index {
		t.Errorf("answered after its workload ended: %+v, %v", noted, err)
	}
	if again, err := put(intent(1, "w")); err != nil || again != noted {
		t.Errorf("the same intent again: %+v, %v", again, err)
	}
}

func TestTokensStandAlone(t *testing.T) {
	l := open(t)
	for i, id := range []string{"a", "b"} {
		l.must(&command.StartWorkload{Ref: workload(id), Node: "n", Tokens: []claim.Token{intent(i, id)}})
	}
	other := claim.Token{
		ID: tokenID(2), Workload: claim.WorkloadRef{Namespace: "default2", ID: "a"}, Node: "n2",
		Service: "web", Consul: "default",
	}
	l.must(&command.StartWorkload{Ref: other.Workload, Node: "n2", Tokens: []claim.Token{other}})
	l.must(&command.EndWorkload{Ref: workload("a")})
	if r := l.must(&command.DeleteWorkloads{EndedBefore: now.Add(time.Hour)}).(command.DeleteWorkloadsResult); len(
		r.Deleted) != 1 {
		t.Fatalf("deleted %v", r.Deleted)
	}
	l.must(&command.DeleteNode{Name: "n"})
	view(t, l, func(tx *ReadTx) error {
		for name, row := range map[string]struct {
			read func() ([]claim.Token, error)
			want []string
		}{
			"all":            {func() ([]claim.Token, error) { return tx.Tokens("") }, []string{"00", "01", "02"}},
			"of a namespace": {func() ([]claim.Token, error) { return tx.Tokens("default") }, []string{"00", "01"}},
			"of a workload":  {func() ([]claim.Token, error) { return tx.TokensOf(workload("a")) }, []string{"00"}},
			"on a node":      {func() ([]claim.Token, error) { return tx.TokensOn("n") }, []string{"00", "01"}},
			"on another":     {func() ([]claim.Token, error) { return tx.TokensOn("n2") }, []string{"02"}},
			"on none":        {func() ([]claim.Token, error) { return tx.TokensOn("") }, nil},
		} {
			got, err := row.read()
			if err != nil || !slices.Equal(ids(got), row.want) {
				t.Errorf("%s: %v, %v, want %v", name, ids(got), err, row.want)
			}
		}
		return nil
	})
	many := make([]string, command.MaxItems+1)
	l.refused("too many at once", claim.ErrInvalid, &command.DeleteTokens{IDs: many})
	r := l.must(&command.DeleteTokens{IDs: []string{
		tokenID(0), tokenID(77), tokenID(0),
		tokenID(2),
	}}).(command.DeleteTokensResult)
	if !slices.Equal(ids(r.Deleted), []string{"00", "02"}) {
		t.Errorf("deleted %v", ids(r.Deleted))
	}
	view(t, l, func(tx *ReadTx) error {
		if _, err := tx.Token(tokenID(0)); !errors.Is(err, claim.ErrTokenNotFound) {
			t.Errorf("a deleted one: %v", err)
		}
		left, err := tx.Tokens("")
		if !slices.Equal(ids(left), []string{"01"}) {
			t.Errorf("left are %v", ids(left))
		}
		return err
	})
}

func TestSigningKeyIsGivenOnce(t *testing.T) {
	l := open(t)
	put := func(id string) (claim.SigningKey, error) {
		result, err := l.do(&command.PutSigningKey{Key: claim.SigningKey{ID: id, Public: []byte("{}"), Sealed: []byte(id)}})
		r, _ := result.(claim.SigningKey)
		return r, err
	}
	if _, err := put(""); !errors.Is(err, claim.ErrInvalid) {
		t.Errorf("a key of no id: %v", err)
	}
	first, err := put("first")
	if err != nil || first.ID != "first" || first.CreatedAt.IsZero() {
		t.Fatalf("%+v, %v", first, err)
	}
	if second, err := put("second"); err != nil || second.ID != "first" || string(second.Sealed) != "first" {
		t.Errorf("a second one: %+v, %v", second, err)
	}
	restored := open(t)
	restore(t, restored, snapshot(t, l))
	view(t, restored, func(tx *ReadTx) error {
		k, found, err := tx.SigningKey()
		if err != nil || !found || k.ID != "first" {
			t.Errorf("restored: %+v, %v, %v", k, found, err)
		}
		return nil
	})
}

// A rotation goes from phase to phase, once each, also through a snapshot. Keys are re-encrypted wherever they are.
func TestRotationOfTheSigningKey(t *testing.T) {
	l := open(t)
	key := func(id string) claim.SigningKey {
		return claim.SigningKey{ID: id, Public: []byte("{}"), Sealed: []byte("sealed " + id)}
	}
	l.refused("without a key", claim.ErrConflict, &command.RotateSigningKey{Next: key("new")})
	l.must(&command.PutSigningKey{Key: key("old")})
	l.refused("by the same key", claim.ErrConflict, &command.RotateSigningKey{Next: key("old")})
	l.refused("by a key of no id", claim.ErrInvalid, &command.RotateSigningKey{Next: key("")})
	l.must(&command.RotateSigningKey{Next: key("new")})
	if r := l.must(&command.RotateSigningKey{Next: key("newer")}).(claim.KeyRotation); r.Key.ID !=
		"new" || r.Key.CreatedAt.IsZero() || r.Since.IsZero() {
		t.Errorf("a second rotation: %+v", r)
	}
	for _, step := range []struct {
		phase        claim.RotationPhase
		signs, other string
		published    bool
	}{
		{claim.KeyPublished, "old", "new", true},
		{claim.KeyReplaced, "new", "old", true},
		{claim.KeyWithdrawn, "new", "old", false},
	} {
		for _, id := range []string{"old", "new"} {
			var sealed []byte
			view(t, l, func(tx *ReadTx) error {
				k, _, _ := tx.SigningKey()
				if r, _, _ := tx.KeyRotation(); k.ID != id {
					k = r.Key
				}
				sealed = k.Sealed
				return nil
			})
			again := key(id)
			again.Sealed = append([]byte(step.phase+" "), id...)
			l.must(&command.PutSigningKey{Key: again, IfSealed: sealed})
			if _, err := l.do(&command.PutSigningKey{Key: again, IfSealed: sealed}); !errors.Is(err, claim.ErrConflict) {
				t.Errorf("%s: %s re-encrypted a second time: %v", step.phase, id, err)
			}
		}
		restored := open(t)
		restore(t, restored, snapshot(t, l))
		view(t, restored, func(tx *ReadTx) error {
			signs, _, err := tx.SigningKey()
			r, found, readErr := tx.KeyRotation()
			if signs.ID != step.signs || r.Key.ID != step.other || !found || r.Phase != step.phase ||
				r.Published() != step.published || string(signs.Sealed) != string(step.phase)+" "+step.signs ||
				string(r.Key.Sealed) != string(step.phase)+" "+step.other {
				t.Errorf("in the phase %s %+v signs, and the rotation is %+v", step.phase, signs, r)
			}
			return errors.Join(err, readErr)
		})
		advance := &command.AdvanceKeyRotation{Key: step.other, Phase: step.phase}
		l.must(advance)
		if _, err := l.do(advance); !errors.Is(err, claim.ErrConflict) {
			t.Errorf("%s ended twice: %v", step.phase, err)
		}
	}
	view(t, l, func(tx *ReadTx) error {
		if _, found, err := tx.KeyRotation(); err != nil || found {
			t.Errorf("a rotation is left: %v", err)
		}
		return nil
	})
}
