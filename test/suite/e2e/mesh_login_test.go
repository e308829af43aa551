package e2e

import (
	"errors"
	"testing"
	"time"
)

// TestLoginIsRenewed waits until two thirds of the shortest token lifetime that Consul allows have passed.
// The token is replaced before it expires, and both are valid until then.
func TestLoginIsRenewed(t *testing.T) {
	t.Parallel()
	m := newMesh(t, byLogin, "")
	m.tokenLife = time.Minute
	m.open()
	m.Run("workload", "start", m.meshWorkload("w", sidecarService("web", "")))
	first := m.service("w")
	secret := m.secret(first)
	m.Eventually("the token is replaced", func() error {
		if m.service("w").GetTokenAccessor() == first.GetTokenAccessor() {
			return errors.New("it is unchanged")
		}
		return m.usable(m.service("w"))
	})
	second := m.service("w")
	if now := m.secret(second); now == secret {
		t.Error("the file still has the token before")
	}
	if until := time.Until(first.GetTokenExpiresAt().AsTime()); until < 0 {
		t.Errorf("it was renewed %s after its end", -until)
	}
	if !second.GetTokenExpiresAt().AsTime().After(first.GetTokenExpiresAt().AsTime()) {
		t.Errorf("the token before ends at %s, this one at %s", first.GetTokenExpiresAt().AsTime(),
			second.GetTokenExpiresAt().AsTime())
	}
	if _, _, err := m.consul.Client(secret).ACL().TokenReadSelf(nil); err != nil {
		t.Errorf("the previous token is already invalid: %v", err)
	}
	m.Run("workload", "stop", "w")
	m.nothingInMesh()
}
