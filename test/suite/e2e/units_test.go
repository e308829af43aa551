package e2e

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
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
	if len(units) != 6 {
		t.Fatalf("%d units, want two of docs/workloads.md and four of docs/consul.md", len(units))
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
