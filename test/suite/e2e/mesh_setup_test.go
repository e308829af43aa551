package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/consul"
	"github.com/pannier/pannier/test/lib/testhost"
)

// setUp runs the command with Consul's variables, and returns what it says and its exit code.
func (m *mesh) setUp(args ...string) (out string, code int) {
	m.t.Helper()
	cmd := m.Command(append([]string{"setup", "consul", "-config", m.Path("agent.hcl")}, args...)...)
	cmd.Env = append(cmd.Env, "CONSUL_HTTP_ADDR="+m.reach.Address, "CONSUL_CACERT="+m.reach.CAFile,
		"CONSUL_HTTP_TOKEN_FILE="+m.consul.TokenFile(m.t, m.consul.Management))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run() // the code says it
	if said := stdout.String() + stderr.String(); strings.Contains(said, m.consul.Management) {
		m.t.Errorf("the management token is in the output: %s", said)
	}
	return stdout.String() + stderr.String(), cmd.ProcessState.ExitCode()
}

// beforeSetUp is a Consul that knows nothing of Pannier, and an agent that knows nothing of Consul.
func beforeSetUp(t *testing.T) *mesh {
	c := consul.Start(t, consul.Options{ACL: true, TLS: true})
	m := &mesh{consul: c, reach: c.Service("", ""), t: t}
	m.Host = testhost.New(t, "", "sids", "consul-services", "envoy-bootstrap")
	m.Start()
	return m
}

// setUpAndRestart runs the command, and the agent with the configuration that it prints.
func (m *mesh) setUpAndRestart(flag string) {
	m.t.Helper()
	out, code := m.setUp(flag, "-o", "json")
	var report struct{ Config string }
	if err := json.Unmarshal([]byte(out), &report); err != nil || code != 0 || report.Config == "" {
		m.t.Fatalf("%d, %v, %s", code, err, out)
	}
	text := check.Must(os.ReadFile(m.Path("agent.hcl")))(m.t)
	m.Write("agent.hcl", string(text)+"\n"+report.Config)
	m.Stop()
	m.Start()
}

// TestSigningKeyIsReplaced begins to replace the key, and the auth method gets the next one only after the agent was
// killed. Services log in all the while.
func TestSigningKeyIsReplaced(t *testing.T) {
	t.Parallel()
	m := beforeSetUp(t)
	m.reach.AuthMethod = login
	m.setUpAndRestart("-login")
	logsIn := func(when string) {
		t.Helper()
		m.Run("workload", "start", m.meshWorkload("w", sidecarService("web", "")))
		checkTokenInConsul(t, m, m.service("w"))
		m.Run("workload", "stop", "w")
		t.Logf("%s: it logs in", when)
	}
	logsIn("before")
	if out, code := m.setUp("-rotate-key", "-dry-run"); code != 0 || !strings.Contains(out, ": would be replaced\n") {
		t.Errorf("a dry run: %d, %s", code, out)
	}
	_, err := m.Client().Secrets.RotateSigningKey(t.Context(), &hostv1.RotateSigningKeyRequest{})
	check.NoError(t, err)
	m.awaitKey(hostv1.SigningKeyState_SIGNING_KEY_STATE_NEXT, "has not the key")
	logsIn("published")
	if out, code := m.setUp("-check"); code != 1 || !strings.Contains(out, "differs in JWTValidationPubKeys\n") ||
		!strings.Contains(out, "is being replaced by") {
		t.Errorf("a check: %d, %s", code, out)
	}
	m.Kill()
	m.Start()
	m.awaitKey(hostv1.SigningKeyState_SIGNING_KEY_STATE_NEXT, "has not the key")
	logsIn("published, and the agent was killed")
	if out, code := m.setUp("-rotate-key"); code != 0 || !strings.Contains(out, ": signs since ") {
		t.Fatalf("%d, %s", code, out)
	}
	logsIn("replaced")
	m.Kill()
	m.Start()
	m.awaitKey(hostv1.SigningKeyState_SIGNING_KEY_STATE_PREVIOUS, "are over at")
	logsIn("replaced, and the agent was killed")
	if out, code := m.setUp("-check"); code != 0 {
		t.Errorf("a check after: %d, %s", code, out)
	}
	if told := m.Run("doctor", "-config", m.Path("agent.hcl")); strings.Contains(told, "stuck") {
		t.Errorf("pannier doctor: %s", told)
	}
	m.nothingInMesh()
}

// awaitKey waits until a rotation of the signing key is in a state, and waits for something with that text.
func (m *mesh) awaitKey(state hostv1.SigningKeyState, why string) {
	m.t.Helper()
	m.Eventually(fmt.Sprintf("the key is %s and waits for %q", state, why), func() error {
		resp, err := m.Client().Secrets.GetSigningKeys(m.t.Context(), &hostv1.GetSigningKeysRequest{})
		if err != nil {
			return err
		}
		if k := resp.GetKeys(); k.GetOtherState() != state || !strings.Contains(k.GetWaitsFor(), why) {
			return fmt.Errorf("it is %s and waits for %q", k.GetOtherState(), k.GetWaitsFor())
		}
		return nil
	})
}

// TestSetUpByOneCommand starts with a Consul that knows nothing of Pannier, and an agent that knows nothing of Consul.
// After the command, and with the configuration that it prints, a workload's service is in the mesh.
func TestSetUpByOneCommand(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{minted, byLogin} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			m := beforeSetUp(t)
			c, flag := m.consul, "-minted"
			if mode == byLogin {
				flag, m.reach.AuthMethod = "-login", login // what the block that it prints has
			}
			if out, code := m.setUp(flag, "-check"); code != 1 || !strings.Contains(out, "policy pannier-node: is missing\n") {
				t.Fatalf("a check before: %d, %s", code, out)
			}
			m.setUpAndRestart(flag)
			if out, code := m.setUp("-check"); code != 0 || strings.Contains(out, "missing") || strings.Contains(out, "needs") {
				t.Errorf("a check after: %d, %s", code, out)
			}

			m.doctorOfACLs("", "skipped", "CONSUL_HTTP_TOKEN")
			m.doctorOfACLs(c.Management, "ok", "objects as pannier setup consul makes them")
			acl := c.Client(c.Management).ACL()
			policy, _, err := acl.PolicyReadByName("pannier-node", nil)
			check.NoError(t, err)
			policy.Rules = `service_prefix "" { policy = "read" }`
			_, _, err = acl.PolicyUpdate(policy, nil)
			check.NoError(t, err)
			m.doctorOfACLs(c.Management, "warn", "policy pannier-node")
			if out, code := m.setUp(); code != 0 {
				t.Errorf("it is not mended: %d, %s", code, out)
			}
			m.doctorOfACLs(c.Management, "ok", "objects as pannier setup consul makes them")

			spec := m.meshWorkload("w", strings.Replace(sidecarService("web", ""), "port = 9000",
				"port = 9000\n    intentions = [\"api\"]", 1))
			if out, err := m.Command("workload", "start", spec).CombinedOutput(); err == nil ||
				!strings.Contains(string(out), `intentions = "write" in service_prefix`) {
				t.Errorf("without the right: %v, %s", err, out)
			}
			if out, code := m.setUp("-intentions"); code != 0 {
				t.Errorf("%d, %s", code, out)
			}
			m.doctorOfACLs(c.Management, "ok", "objects as pannier setup consul makes them")
			m.Run("workload", "start", spec)
			checkTokenInConsul(t, m, m.service("w"))
			m.Run("workload", "stop", spec)
			m.nothingInMesh()

			if out, code := m.setUp("-destroy"); code != 0 || !strings.Contains(out, "policy pannier-node: is there: removed\n") {
				t.Errorf("%d, %s", code, out)
			}
			m.doctorOfACLs(c.Management, "skipped", "has not made them")
			if _, err := os.Stat(m.Path("consul.token")); err == nil {
				t.Error("the token's file is left")
			}
		})
	}
}

// doctorOfACLs checks what pannier doctor says of Consul's ACLs, with a token of Consul.
func (m *mesh) doctorOfACLs(token, status, why string) {
	m.t.Helper()
	cmd := m.Command("doctor", "-config", m.Path("agent.hcl"), "-o", "json")
	cmd.Env = append(cmd.Env, "CONSUL_HTTP_TOKEN="+token)
	out, _ := cmd.Output() // the code is of all checks
	var all []finding
	check.NoError(m.t, json.Unmarshal(out, &all))
	i := slices.IndexFunc(all, func(f finding) bool { return f.Check == "Consul's ACLs" })
	if i < 0 || all[i].Status != status || !strings.Contains(all[i].Why, why) ||
		(status == "warn") != (all[i].Command == "pannier setup consul -consul default") {
		m.t.Errorf("pannier doctor does not say that they are %s, %q: %s", status, why, out)
	}
}
