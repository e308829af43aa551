package state

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
)

func hashOf(n int) string { return fmt.Sprintf("%064x", n) }

func management(n int) acl.Token {
	return acl.Token{Accessor: tokenID(n), SecretHash: hashOf(n), Type: acl.Management}
}

func TestBootstrapACLOnce(t *testing.T) {
	l := open(t)
	client := management(1)
	client.Type, client.Policies = acl.Client, []string{"p"}
	l.refused("a client token", claim.ErrInvalid, &command.BootstrapACL{Token: client})
	first := l.must(&command.BootstrapACL{Token: management(1)}).(acl.Token)
	if first.CreatedAt.IsZero() || first.CreateIndex != l.index {
		t.Errorf("made %+v", first)
	}
	before := l.records()
	_, err := l.do(&command.BootstrapACL{Token: management(2)})
	var done *acl.BootstrappedError
	if !errors.As(err, &done) || !errors.Is(err, acl.ErrBootstrapped) {
		t.Fatalf("again: %v", err)
	}
	l.refused("with another index", acl.ErrBootstrapped,
		&command.BootstrapACL{Token: management(2), ResetIndex: done.ResetIndex + 1})
	l.sameAs(before, "bootstrapped before")
	l.refused("with the existing token", claim.ErrConflict,
		&command.BootstrapACL{Token: management(1), ResetIndex: done.ResetIndex})
	l.must(&command.BootstrapACL{Token: management(2), ResetIndex: done.ResetIndex})
	l.refused("with a used index", acl.ErrBootstrapped,
		&command.BootstrapACL{Token: management(3), ResetIndex: done.ResetIndex})
}

func TestACLWithoutToken(t *testing.T) {
	l := open(t)
	l.must(&command.PutACLPolicies{Policies: []acl.Policy{{Name: acl.Anonymous, Rules: "three"}}})
	view(t, l, func(tx *ReadTx) error {
		if granted, err := tx.ACLGranted(""); err != nil || granted.Token.Accessor != "" || len(granted.Policies) != 1 ||
			granted.Policies[0].Rules != "three" {
			t.Errorf("granted %+v, %v", granted, err)
		}
		return nil
	})
}

func TestACLRecords(t *testing.T) {
	l := open(t)
	rules := func(text string) command.Command {
		return &command.PutACLPolicies{Policies: []acl.Policy{{Name: "read", Rules: text}, {Name: "write", Rules: text}}}
	}
	l.must(rules("one"))
	created := l.index
	l.must(rules("two"))
	l.must(&command.PutACLRoles{Roles: []acl.Role{{Name: "ops", Policies: []string{"write"}}}})
	token := acl.Token{
		Accessor: tokenID(1), SecretHash: hashOf(1), Type: acl.Client, Policies: []string{"read"},
		Roles: []string{"ops"}, ExpiresAt: now.Add(time.Hour),
	}
	l.must(&command.PutACLTokens{Tokens: []acl.Token{token, management(2)}})
	view(t, l, func(tx *ReadTx) error {
		p, err := tx.ACLPolicy("read")
		if err != nil || p.Rules != "two" || p.CreateIndex != created || p.ModifyIndex != created+1 {
			t.Errorf("policy %+v, %v", p, err)
		}
		granted, err := tx.ACLGranted(hashOf(1))
		if err != nil || granted.Token.Accessor != tokenID(1) || len(granted.Policies) != 2 ||
			granted.Policies[1].Name != "write" {
			t.Errorf("granted %+v, %v", granted, err)
		}
		if _, err := tx.ACLGranted(hashOf(9)); !errors.Is(err, acl.ErrTokenNotFound) {
			t.Errorf("an unknown secret: %v", err)
		}
		if granted, err := tx.ACLGranted(""); err != nil || granted.Token.Accessor != "" || len(granted.Policies) != 0 {
			t.Errorf("no secret: %+v, %v", granted, err)
		}
		return nil
	})

	before := l.records()
	change := func(with func(*acl.Token)) command.Command {
		next := token
		with(&next)
		return &command.PutACLTokens{Tokens: []acl.Token{next}}
	}
	for name, row := range map[string]struct {
		c    command.Command
		want error
	}{
		"no such policy": {change(func(t *acl.Token) { t.Policies = []string{"none"} }), acl.ErrPolicyNotFound},
		"no such role":   {change(func(t *acl.Token) { t.Roles = []string{"none"} }), acl.ErrRoleNotFound},
		"another secret": {change(func(t *acl.Token) { t.SecretHash = hashOf(7) }), claim.ErrConflict},
		"another expiry": {change(func(t *acl.Token) { t.ExpiresAt = now.Add(2 * time.Hour) }), claim.ErrConflict},
		"another type": {
			change(func(t *acl.Token) { t.Type, t.Policies, t.Roles = acl.Management, nil, nil }),
			claim.ErrConflict,
		},
		"another's secret": {change(func(t *acl.Token) { t.Accessor = tokenID(3) }), claim.ErrConflict},
		"in the past": {change(func(t *acl.Token) {
			t.Accessor, t.SecretHash, t.ExpiresAt = tokenID(3), hashOf(3),
				now
		}), claim.ErrInvalid},
		"no hash": {
			change(func(t *acl.Token) { t.Accessor, t.SecretHash = tokenID(3), "secret" }),
			claim.ErrInvalid,
		},
		"one of two": {&command.PutACLTokens{Tokens: []acl.Token{management(4), {Accessor: "x"}}}, claim.ErrInvalid},
		"one secret twice": {&command.PutACLTokens{Tokens: []acl.Token{{
			Accessor: "x", SecretHash: hashOf(5),
			Type: acl.Management,
		}, management(5)}}, claim.ErrConflict},
		"role of no policy": {
			&command.PutACLRoles{Roles: []acl.Role{{Name: "x", Policies: []string{"none"}}}},
			acl.ErrPolicyNotFound,
		},
		"policy twice": {&command.PutACLPolicies{Policies: []acl.Policy{{Name: "x"}, {Name: "x"}}}, claim.ErrInvalid},
		"a path":       {&command.PutACLPolicies{Policies: []acl.Policy{{Name: "../x"}}}, claim.ErrInvalid},
		"too many":     {&command.PutACLPolicies{Policies: make([]acl.Policy, command.MaxPolicies+1)}, claim.ErrInvalid},
	} {
		l.refused(name, row.want, row.c)
	}
	l.sameAs(before, "refused")

	renamed := l.must(change(func(t *acl.Token) { t.Name, t.Policies = "new", nil })).([]acl.Token)
	if got := renamed[0]; got.Name != "new" || got.CreateIndex == got.ModifyIndex || got.CreatedAt.IsZero() {
		t.Errorf("changed to %+v", got)
	}
	deleted := l.must(&command.DeleteACLPolicies{Names: []string{"write", "none"}}).([]string)
	if len(deleted) != 1 {
		t.Errorf("deleted %v", deleted)
	}
	view(t, l, func(tx *ReadTx) error {
		if granted, err := tx.ACLGranted(hashOf(1)); err != nil || len(granted.Policies) != 0 {
			t.Errorf("after the policy is gone, granted %+v, %v", granted, err)
		}
		return nil
	})
	l.must(&command.DeleteACLRoles{Names: []string{"ops"}})
	l.must(&command.DeleteACLPolicies{Names: []string{"read"}})
	l.must(&command.DeleteACLTokens{Accessors: []string{tokenID(1), tokenID(2), tokenID(3)}})
	if left := l.records(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestACLTokensExpire(t *testing.T) {
	l := open(t)
	l.must(&command.PutACLTokens{Tokens: []acl.Token{management(0)}})
	const many = command.MaxItems + 3
	for i := 1; i <= many; i++ {
		token := management(i)
		token.ExpiresAt = now.Add(24*time.Hour + time.Duration(i)*time.Second)
		l.must(&command.PutACLTokens{Tokens: []acl.Token{token}})
	}
	expire := func(at time.Time) command.ExpireACLTokensResult {
		t.Helper()
		l.index++
		expire := &command.ExpireACLTokens{}
		command.SetAt(expire, at)
		outcomes, err := l.Apply([]Entry{{Index: l.index, Command: expire}})
		if err != nil || outcomes[0].Err != nil {
			t.Fatal(err, outcomes[0].Err)
		}
		return outcomes[0].Result.(command.ExpireACLTokensResult)
	}
	if got := expire(now.Add(24*time.Hour + 2*time.Second)); len(got.Deleted) != 2 || got.More {
		t.Errorf("expired %d, more: %v", len(got.Deleted), got.More)
	}
	if got := expire(now.Add(48 * time.Hour)); len(got.Deleted) != command.MaxItems || !got.More {
		t.Errorf("expired %d, more: %v", len(got.Deleted), got.More)
	}
	if got := expire(now.Add(48 * time.Hour)); len(got.Deleted) != 1 || got.More {
		t.Errorf("expired %d, more: %v", len(got.Deleted), got.More)
	}
	view(t, l, func(tx *ReadTx) error {
		if left, err := tx.ACLTokens(); err != nil || len(left) != 1 || left[0].Accessor != tokenID(0) {
			t.Errorf("left %v, %v", left, err)
		}
		return nil
	})
}

func TestSecretsKeys(t *testing.T) {
	l := open(t)
	v := volume("a", claim.SingleNodeWriter)
	v.SealedSecrets = []byte("old")
	read := l.must(&command.RegisterVolume{Volume: v}).(command.RegisterVolumeResult).Volume
	l.must(&command.PutSecretsKey{ID: "k1", Active: true})
	l.must(&command.PutSecretsKey{ID: "k2"})
	l.must(&command.PutSecretsKey{ID: "k2", Active: true})
	reseal := &command.ResealVolume{
		Ref: read.VolumeRef, IfModifyIndex: read.ModifyIndex, SealedSecrets: []byte("new"),
		KeyID: "k2",
	}
	sealed := l.must(reseal).(claim.Volume)
	if string(sealed.SealedSecrets) != "new" || sealed.SecretsKey != "k2" || sealed.ModifyIndex != l.index {
		t.Errorf("sealed %+v", sealed)
	}
	l.refused("one that has changed", claim.ErrConflict, reseal)
	l.refused("the active key is gone", claim.ErrConflict, &command.PutSecretsKey{ID: "k2", Gone: true})
	got := l.must(&command.PutSecretsKey{ID: "k1", Gone: true}).(claim.SecretsKeys)
	if got.Active != "k2" || len(got.Keys) != 1 || !slices.Equal(got.Removed, []string{"k1"}) {
		t.Errorf("keys %+v", got)
	}
	l.must(&command.PutSecretsKey{ID: "unknown", Gone: true})
	if got = l.must(&command.PutSecretsKey{ID: "k1"}).(claim.SecretsKeys); len(got.Removed) != 0 {
		t.Errorf("a key that was added again counts as removed: %+v", got)
	}
	l.must(&command.PutSecretsKey{ID: "k1", Gone: true})
	for i := 1; i < claim.MaxSecretsKeys; i++ {
		l.must(&command.PutSecretsKey{ID: fmt.Sprint("more", i)})
	}
	l.refused("too many", claim.ErrInvalid, &command.PutSecretsKey{ID: "one-more"})
}

// When a key is no longer needed, a command that was already on its way must not make it needed again.
func TestNothingNewIsSealedWithAnOldKey(t *testing.T) {
	l := open(t)
	v := volume("a", claim.SingleNodeWriter)
	v.SealedSecrets = []byte("unnamed")
	l.must(&command.RegisterVolume{Volume: v})
	l.must(&command.PutSigningKey{Key: claim.SigningKey{ID: "s", Public: []byte("{}"), Sealed: []byte("unnamed")}})
	l.must(&command.PutSecretsKey{ID: "k1", Active: true})
	l.must(&command.PutSecretsKey{ID: "k2", Active: true})

	v.Name = "renamed"
	// The volume keeps the secrets that are stored.
	read := l.must(&command.RegisterVolume{Volume: v}).(command.RegisterVolumeResult).Volume
	late := v
	late.SealedSecrets, late.SecretsKey = []byte("late"), "k1"
	plain := volume("b", claim.SingleNodeWriter)
	plain.SealedSecrets = []byte("unnamed")
	for what, c := range map[string]command.Command{
		"an update":    &command.RegisterVolume{Volume: late},
		"a new volume": &command.RegisterVolume{Volume: plain},
		"one re-encrypted": &command.ResealVolume{
			Ref: read.VolumeRef, IfModifyIndex: read.ModifyIndex,
			SealedSecrets: []byte("x"), KeyID: "k1",
		},
		"a signing key": &command.PutSigningKey{Key: claim.SigningKey{
			ID: "s", Public: []byte("{}"), Sealed: []byte("x"),
			SecretsKey: "k1",
		}, IfSealed: []byte("unnamed")},
	} {
		l.refused(what, claim.ErrOldKey, c)
	}
	late.SecretsKey = "k2"
	l.must(&command.RegisterVolume{Volume: late})

	reseal := &command.PutSigningKey{Key: claim.SigningKey{
		ID: "s", Public: []byte("other"), Sealed: []byte("x"),
		SecretsKey: "k2",
	}, IfSealed: []byte("unnamed")}
	key := l.must(reseal).(claim.SigningKey)
	if string(key.Sealed) != "x" || key.SecretsKey != "k2" || string(key.Public) != "{}" {
		t.Errorf("the signing key is %+v", key)
	}
	l.refused("re-encrypted with another key", claim.ErrConflict, reseal)
	if k := l.must(&command.PutSigningKey{Key: claim.SigningKey{
		ID: "t", Public: []byte("{}"),
		Sealed: []byte("y"),
	}}).(claim.SigningKey); k.ID != "s" {
		t.Errorf("a second key: %+v", k)
	}
}

func TestLiveness(t *testing.T) {
	l := open(t)
	promise := claim.Liveness{HeartbeatTTL: 30 * time.Second, StopAfter: time.Minute, Margin: 30 * time.Second}
	if got := l.must(
		&command.PutLiveness{Liveness: promise}).(claim.Liveness); got != (claim.Liveness{}) {
		t.Errorf("before the first: %+v", got)
	}
	before := l.records()
	if got := l.must(&command.PutLiveness{Liveness: promise}).(claim.Liveness); got != promise {
		t.Errorf("before the second: %+v", got)
	}
	l.refused("nothing promised", claim.ErrInvalid, &command.PutLiveness{})
	l.sameAs(before, "a second promise, or an error")
}

// TestAutopilot: the first change is based on the settings of the server that makes it, later ones on those
// in the ledger. A refused change has no effect.
func TestAutopilot(t *testing.T) {
	l := open(t)
	mine, others := claim.DefaultAutopilot(), claim.Autopilot{
		LastContactThreshold:    time.Hour,
		ServerStabilizationTime: time.Hour,
	}
	quorum, off, never := 5, false, time.Duration(0)
	l.refused("a contact within nothing", claim.ErrInvalid, &command.SetAutopilot{
		Change: claim.AutopilotChange{LastContactThreshold: &never},
		First:  mine,
	})
	if a, found, err := autopilotOf(l); err != nil || found {
		t.Errorf("after a refusal: %+v, %v, %v", a, found, err)
	}
	l.must(&command.SetAutopilot{Change: claim.AutopilotChange{MinQuorum: &quorum}, First: mine})
	got := l.must(&command.SetAutopilot{
		Change: claim.AutopilotChange{CleanupDeadServers: &off},
		First:  others,
	}).(claim.Autopilot)
	want := mine
	want.MinQuorum, want.CleanupDeadServers = 5, false
	if got != want {
		t.Errorf("answered %+v, want %+v", got, want)
	}
	if a, found, err := autopilotOf(l); err != nil || !found || a != want {
		t.Errorf("the ledger has %+v, %v, %v, want %+v", a, found, err, want)
	}
}

func autopilotOf(l *ledger) (a claim.Autopilot, found bool, err error) {
	err = l.View(func(tx *ReadTx) error {
		a, found, err = tx.Autopilot()
		return err
	})
	return a, found, err
}
