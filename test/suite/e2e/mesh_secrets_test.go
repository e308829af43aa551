package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecretsOfTheMeshAreNowhereElse runs services, with starts that fail in each step. Their secrets must
// not be found anywhere outside their own files.
func TestSecretsOfTheMeshAreNowhereElse(t *testing.T) {
	eachModeAs(t, func(m *mesh) { m.talkative() }, func(t *testing.T, m *mesh) {
		volume(m.Host, drivers[0], "data", "single-node-writer", "")
		spec := m.meshWorkload("w", fmt.Sprintf(`
  volume "data" {
    source      = "data"
    destination = %q
  }
`, m.Path("mnt"))+sidecarService("web", ""))
		secrets := []string{m.nodeToken}
		if m.aclToken != "" {
			secrets = append(secrets, m.aclToken)
		}
		var shown []string
		clean := func(when string) {
			t.Helper()
			if found := m.Leaks(secrets, shown...); len(found) > 0 {
				t.Errorf("%s, there are secrets in %q", when, found)
			}
		}
		shown = append(shown, m.Run("workload", "start", "-o", "json", spec),
			m.Run("workload", "status", "-o", "docker", "w"))
		secrets = append(secrets, m.secret(m.service("w")))
		clean("while it runs")

		m.Kill()
		if err := os.RemoveAll(filepath.Join(m.SecretsDir(), "default", "w", "web")); err != nil {
			t.Fatal(err)
		}
		m.Start()
		m.Eventually("the files are back", func() error { return m.usable(m.service("w")) })
		secrets = append(secrets, m.secret(m.service("w")))
		clean("after the agent was killed")
		m.Run("workload", "stop", "w")

		// With tokens that Consul does not know, each step that uses one fails.
		const wrong = "0badc0de-0000-4000-8000-0badc0de0bad"
		secrets = append(secrets, wrong)
		fails := func(file string) {
			t.Helper()
			right, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, []byte(wrong), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			r := m.Try("workload", "start", spec)
			if r.Code == 0 || !strings.Contains(r.Stderr, "403") {
				t.Errorf("a start with a wrong token in %s gave exit code %d: %s", file, r.Code, r.Stderr)
			}
			shown = append(shown, r.Stdout, r.Stderr)
			if err := os.WriteFile(file, right, 0o600); err != nil {
				t.Fatal(err)
			}
			m.Run("workload", "stop", "w") // undoing the start can work now
		}
		fails(m.reach.TokenFile)
		if m.aclTokenFile != "" {
			fails(m.aclTokenFile)
		}
		clean("after starts that failed")
		m.Stop()
		clean("after the agent's end")
	})
}
