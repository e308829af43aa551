package e2e

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
)

// TestUnits lets systemd parse the agent's unit and the documented ones. The programs that they run are
// replaced by existing ones.
func TestUnits(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze (Debian: systemd); not covered: the syntax of units")
	}
	units := documentedUnits(t, "workloads.md")
	maps.Copy(units, documentedUnits(t, "consul.md"))
	if len(units) != 7 {
		t.Fatalf("%d units, want two of docs/workloads.md and five of docs/consul.md", len(units))
	}
	agent, err := os.ReadFile(filepath.Join(testbin.Root(), "packaging/systemd/pannier.service"))
	if err != nil {
		t.Fatal(err)
	}
	units["pannier.service"] = string(agent)
	for _, name := range []string{"pannier.socket", "pannier-workload@.service"} {
		unit, err := os.ReadFile(filepath.Join(testbin.Root(), "packaging/systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		units[name] = string(unit)
	}
	// The fence and the plugins outlive the agent, which is restarted unless it was stopped on purpose.
	for key, want := range map[string]string{
		"KillMode": "process", "OOMPolicy": "continue", "Restart": "on-failure",
		"StartLimitIntervalSec": "0", "Type": "notify",
	} {
		if got := setting(t, string(agent), key); got != want {
			t.Errorf("pannier.service has %s=%s, not %s", key, got, want)
		}
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("docker.service", "[Service]\nExecStart=/bin/true\n")
	program := regexp.MustCompile(`/usr/bin/[a-z-]+`)
	for name, text := range units {
		write(name, program.ReplaceAllString(text, "/bin/true"))
	}
	for name := range units {
		cmd := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, name))
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
		if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), dir) {
			t.Errorf("systemd-analyze verify %s: %v\n%s", name, err, out)
		}
	}
}

// documentedUnits returns the units in a page by name.
func documentedUnits(t *testing.T, page string) map[string]string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(testbin.Root(), "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	units := map[string]string{}
	for _, m := range regexp.MustCompile(
		"(?s)```ini\n# /etc/systemd/system/([a-z-]+\\.[a-z]+)\n(.*?)```").FindAllStringSubmatch(string(raw), -1) {
		units[m[1]] = m[2]
	}
	return units
}

// setting returns the only value of a key in a unit.
func setting(t *testing.T, unit, key string) string {
	t.Helper()
	found := regexp.MustCompile("(?m)^"+key+"=(.*)$").FindAllStringSubmatch(unit, -1)
	if len(found) != 1 {
		t.Fatalf("%d times %s= in the unit\n%s", len(found), key, unit)
	}
	return found[0][1]
}

// TestMeshUnits runs the commands in the documented units of a workload in the mesh, in the units' order and
// as their users, instead of systemd.
func TestMeshUnits(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	xds := m.Path("xds") // its user cannot read the directory of built programs
	raw, err := os.ReadFile(testbin.Build(t, "test/demo/xds"))
	if err == nil {
		err = os.WriteFile(xds, raw, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer(
		"/usr/bin/pannier", m.Pannier, "/usr/bin/envoy", xds, "/var/lib/pannier", m.Path("data"),
		"/etc/pannier/workloads/web.hcl", m.meshWorkload("web", sidecarService("web", "")),
	)
	units := documentedUnits(t, "consul.md")
	unit := func(name, key string) string {
		t.Helper()
		return here.Replace(setting(t, units[name], key))
	}
	run := func(user bool, line string) string {
		t.Helper()
		fields := strings.Fields(line)
		cmd := exec.Command(fields[0], fields[1:]...)
		cmd.Env = []string{"PANNIER_ADDR=unix://" + m.Socket()}
		if user {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: secretsUID, Gid: secretsUID}}
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return string(out)
	}

	run(false, unit("web-workload.service", "ExecStart"))
	for _, name := range []string{"web-envoy.service", "web.service"} {
		if user := unit(name, "User"); user != "web" {
			t.Errorf("%s runs as %q, not as the user in the spec", name, user)
		}
	}
	if out := run(true, unit("web-envoy.service", "ExecStart")); !strings.Contains(out, "listener public_listener") {
		t.Errorf("the proxy got %s", out)
	}
	// With BindsTo= or Requires= the path would be a dependency of the proxy: neither it nor the
	// workload would stop with the program.
	if got := unit("web-envoy-restart.path", "PartOf"); got != "web-envoy.service" {
		t.Errorf("web-envoy-restart.path is a part of %q", got)
	}
	if _, err := os.Stat(unit("web-envoy-restart.path", "PathChanged")); err != nil {
		t.Errorf("what the path unit watches: %v", err)
	}
	environment := unit("web.service", "Environment")
	if lines := m.Run("workload", "status", "-o", "systemd", "web"); !strings.Contains(lines,
		"Environment="+environment+"\n") {
		t.Errorf("web.service has %q, the command prints\n%s", environment, lines)
	}
	if got := run(true, "cat "+strings.TrimPrefix(environment,
		"CONSUL_HTTP_TOKEN_FILE=")); got != m.secret(m.service("web")) {
		t.Error("the program's environment does not name its token file")
	}
	run(false, unit("web-workload.service", "ExecStopPost"))
	m.nothingInMesh()
}
