package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

// A team that may start workloads gets no Consul identity, and registers no service, of a name that its policies do
// not list for its namespace: neither directly, nor behind a gateway of a name that they do.
func TestAnIdentityOfAnotherTeam(t *testing.T) {
	const withACLs = "\nacl {\n  enabled = true\n}\n"
	t.Parallel()
	for _, mode := range []string{minted, byLogin} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, mode, testhost.LocalDriver(t)+withACLs)
			m.open()
			policy := func(services string) {
				m.Run("acl", "policy", "apply", "dev", m.Write("dev.hcl",
					fmt.Sprintf("namespace \"dev\" {\n  policy = \"write\"\n%s\n}\n", services)))
			}
			policy("")
			var made struct{ Secret string }
			if err := json.Unmarshal([]byte(m.Run("acl", "token", "create", "-name", "mallory", "-policy", "dev", "-o", "json")),
				&made); err != nil {
				t.Fatal(err)
			}
			start := func(id, service string) (string, error) {
				cmd := m.Command("workload", "start", m.Write(id+".hcl",
					fmt.Sprintf("workload %q {\n  namespace = \"dev\"\n  user = %q\n%s\n}\n", id, secretsUser, service)))
				cmd.Env = append(cmd.Env, "PANNIER_TOKEN="+made.Secret)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			plain := "  service \"payments\" {\n    port = 9000\n  }"
			gateway := `  service "web" {
    port = 9000
    connect {
      gateway {
        terminating {
          service {
            name = "payments"
          }
        }
      }
    }
  }`
			attacks := map[string]string{
				"identity": sidecarService("payments", ""), "registration": plain, "gateway": gateway,
			}
			for _, services := range []string{"", `  services = ["web", "shop-*"]`} {
				policy(services)
				for id, service := range attacks {
					out, err := start(id, service)
					if err == nil || !strings.Contains(out, "services = [") || !strings.Contains(out, `"payments"] in the block namespace "dev"`) || !strings.Contains(out, "mallory") {
						t.Errorf("with %q, %s: %v\n%s", services, id, err, out)
					}
				}
			}
			for accessor := range m.siTokens() {
				_, names := m.identityOf(accessor)
				t.Errorf("Consul has a token for %q", names)
			}
			if s := m.consul.Services(t); len(s) > 0 {
				t.Errorf("Consul has the services %v", s)
			}
			for id, name := range map[string]string{"w": "web", "s": "shop-cart"} { // listed, and matched
				if out, err := start(id, sidecarService(name, "")); err != nil {
					t.Errorf("the service %q of its own: %v\n%s", name, err, out)
				}
				m.Run("workload", "stop", "-namespace", "dev", id)
			}
			m.Run("workload", "start", m.meshWorkload("operators", sidecarService("payments", ""))) // a management token
			m.Run("workload", "stop", "operators")
			m.nothingInMesh()
		})
	}
}
