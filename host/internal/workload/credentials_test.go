package workload

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// A unit gets the secrets of the workload that names it, while that runs, and no others.
func TestCredentials(t *testing.T) {
	h := newHost(t)
	s := withServices(spec("w"), sidecar("web"))
	s.Units = []string{"web.service", "envoy.service"}
	st := h.start(t, s).Services[0]
	other := withServices(spec("other"), sidecar("db"))
	other.Units = []string{"db.service"}
	h.start(t, other)

	refused := func(unit, name string, words ...string) {
		t.Helper()
		secret, _, err := h.Registered.Credential(unit, name)
		if !errors.Is(err, ErrNoCredential) || secret != nil {
			t.Errorf("%s gets %s: %q, %v", unit, name, secret, err)
			return
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s, %s: %q is not in %v", unit, name, word, err)
			}
		}
	}
	for name, path := range map[string]string{"web.si_token": st.TokenFile, "web.envoy_bootstrap.json": st.BootstrapFile} {
		want, err := os.ReadFile(path)
		check.NoError(t, err)
		for _, unit := range s.Units {
			secret, of, err := h.Registered.Credential(unit, name)
			if err != nil || string(secret) != string(want) || of != ref("w") {
				t.Errorf("%s gets %s: %q of %v, %v", unit, name, secret, of, err)
			}
		}
		refused("db.service", name, `workload "other" has no such secret`, "db.si_token")
		refused("ssh.service", name, `units = ["ssh.service"]`)
	}
	refused("web.service", "db.si_token", `workload "w" has no such secret`, "web.si_token")
	refused("web.service", "../other/db.si_token")

	s.Units = s.Units[:1]
	h.start(t, s) // joins
	refused("envoy.service", "web.si_token", "units")

	check.NoError(t, os.WriteFile(st.TokenFile, []byte("evil"), 0o400))
	if secret, _, err := h.Registered.Credential("web.service", "web.si_token"); err == nil || secret != nil {
		t.Errorf("a unit gets what the host has not written: %q", secret)
	}
	h.stop(t, "w")
	refused("web.service", "web.si_token", `workload "w" is stopped`, "pannier-workload@w.service")
	h.stop(t, "other")
	h.clean(t)
}

// A secret is never a guess between two workloads.
func TestCredentialOfTwoWorkloads(t *testing.T) {
	h := newHost(t)
	for _, id := range []string{"one", "two"} {
		s := withServices(spec(id), native("web"))
		s.Units = []string{"web.service"}
		h.start(t, s)
	}
	if secret, _, err := h.Registered.Credential("web.service", "web.si_token"); !errors.Is(err, ErrNoCredential) || secret != nil ||
		!strings.Contains(err.Error(), `"one"`) || !strings.Contains(err.Error(), `"two"`) {
		t.Errorf("it is %q, %v", secret, err)
	}
	h.stop(t, "one")
	if secret, of, err := h.Registered.Credential("web.service", "web.si_token"); err != nil || len(secret) == 0 || of != ref("two") {
		t.Errorf("it is %q of %v, %v", secret, of, err)
	}
	h.stop(t, "two")
	h.clean(t)
}
