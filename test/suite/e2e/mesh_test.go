package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func TestMeshWorkloadComesAndGoes(t *testing.T) {
	eachMode(t, func(t *testing.T, m *mesh) {
		volume(m.Host, drivers[0], "data", "single-node-writer", "")
		spec := m.meshWorkload("w", fmt.Sprintf(`
  volume "data" {
    source      = "data"
    destination = %q
  }
`, m.Path("mnt"))+sidecarService("web", ""))
		m.Run("workload", "start", spec)
		checkSteps(t, m.workload("w").GetSteps())
		s := m.service("w")
		checkServiceInConsul(t, m, s)
		checkTokenInConsul(t, m, s)
		checkSecretFiles(t, m, s)
		ads, err := openStream(t, s.GetBootstrapFile())
		if err != nil {
			t.Fatalf("the bootstrap cannot be used: %v", err)
		}
		if _, ok := ads.Clusters["local_app"]; !ok || len(ads.Listeners) == 0 {
			t.Errorf("the stream has the clusters %v and the listeners %v", ads.Clusters, ads.Listeners)
		}
		m.Run("workload", "start", spec) // the same again
		if again := m.service("w"); again.GetTokenAccessor() != s.GetTokenAccessor() {
			t.Errorf("a repeated start changed the token from %s to %s", s.GetTokenAccessor(), again.GetTokenAccessor())
		}
		m.Run("workload", "stop", spec)
		m.nothingInMesh()
		m.Stop()
		if left := m.Mounts(); len(left) > 0 {
			t.Errorf("the agent has ended and %q is mounted", left)
		}
	})
}

// checkSteps checks that each step began after the steps before it had ended.
func checkSteps(t *testing.T, steps []*hostv1.Step) {
	t.Helper()
	find := func(name string) *hostv1.Step {
		t.Helper()
		i := slices.IndexFunc(steps, func(s *hostv1.Step) bool { return s.GetName() == name })
		if i < 0 {
			t.Fatalf("there is no step %q in %v", name, steps)
		}
		if s := steps[i]; s.GetState() == "done" && s.GetAttempt() == 1 {
			return s
		}
		t.Fatalf("the step %q: %v", name, steps[i])
		return nil
	}
	for _, order := range [][]string{{"claim", "stage", "publish"}, {"claim", "register", "bootstrap"}, {"claim", "identify", "bootstrap"}} {
		for i, name := range order[1:] {
			before, step := find(order[i]), find(name)
			if ended := before.GetStartedAt().AsTime().Add(before.GetTook().AsDuration()); step.GetStartedAt().AsTime().Before(
				ended) {
				t.Errorf("%s began at %s, %s ended at %s", name, step.GetStartedAt().AsTime(), order[i], ended)
			}
		}
	}
}

func checkServiceInConsul(t *testing.T, m *mesh, s *hostv1.ServiceStatus) {
	t.Helper()
	if want := "pannier:a:default:w:web"; s.GetId() != want || s.GetProxyId() != want+"-sidecar-proxy" {
		t.Errorf("the service's ids are %q and %q", s.GetId(), s.GetProxyId())
	}
	all := m.consul.Services(t)
	there, proxy := all[s.GetId()], all[s.GetProxyId()]
	if len(all) != 2 || there == nil || proxy == nil {
		t.Fatalf("Consul has the services %v", all)
	}
	if there.Service != "web" || there.Port != 9000 || proxy.Proxy.DestinationServiceID != s.GetId() {
		t.Errorf("Consul has the service %+v and the proxy %+v", there, proxy)
	}
}

func checkTokenInConsul(t *testing.T, m *mesh, s *hostv1.ServiceStatus) {
	t.Helper()
	if all := m.siTokens(); len(all) != 1 || all[s.GetTokenAccessor()] == nil {
		t.Fatalf("Consul has the tokens %v, the status tells %s", all, s.GetTokenAccessor())
	}
	if got := m.ledgerTokens(); !slices.Equal(got, []string{s.GetTokenAccessor()}) {
		t.Errorf("the ledger has the tokens %q, want %s", got, s.GetTokenAccessor())
	}
	token, names := m.identityOf(s.GetTokenAccessor())
	if !slices.Equal(names, []string{"web"}) || len(token.Policies)+len(token.Roles)+len(token.NodeIdentities) > 0 ||
		!token.Local {
		t.Errorf("the token is %+v with the identities of %q", token, names)
	}
	if got := m.secret(s); got != token.SecretID {
		t.Error("the token's file does not contain its secret")
	}
	login := m.reach.AuthMethod != ""
	if (token.ExpirationTime != nil) != login || (token.AuthMethod != "") != login {
		t.Errorf("the token ends at %v and is of the auth method %q", token.ExpirationTime, token.AuthMethod)
	}
	if !login && !strings.HasSuffix(token.Description, "] [a] [default/w] [web]") {
		t.Errorf("the token's description is %q", token.Description)
	}
}

// checkSecretFiles checks that the files can be read only by the workload's user, and are not on a disk.
func checkSecretFiles(t *testing.T, m *mesh, s *hostv1.ServiceStatus) {
	t.Helper()
	folder := filepath.Join(m.SecretsDir(), "default", "w", "web")
	if s.GetTokenFile() != filepath.Join(folder, "si_token") ||
		s.GetBootstrapFile() != filepath.Join(folder, "envoy_bootstrap.json") {
		t.Errorf("the files are %s and %s", s.GetTokenFile(), s.GetBootstrapFile())
	}
	entries, err := os.ReadDir(folder)
	if err != nil || len(entries) != 4 {
		t.Errorf("in the service's folder are %v: %v", entries, err)
	}
	for _, e := range entries {
		hasMode(t, filepath.Join(folder, e.Name()), 0o400, secretsUID)
	}
	hasMode(t, folder, 0o700, secretsUID)
	for range 3 {
		folder = filepath.Dir(folder)
		hasMode(t, folder, 0o711, 0)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.GetTokenFile(), &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Errorf("the token's file is on a file system of type %#x: %v", st.Type, err)
	}
}
