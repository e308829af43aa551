package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/testbin"
)

// TestUnits lets systemd read the agent's unit and those of the documentation.
// Their programs need not be here, so each is taken for one that is.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("needs systemd-analyze (Debian: systemd); not covered: the syntax of units")
	}
	read := func(path string) string {
		t.Helper()
		raw, err := os.ReadFile(filepath.Join(testbin.Root(), path))
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	units := map[string]string{"pannier.service": read("packaging/systemd/pannier.service")}
	for _, m := range regexp.MustCompile("(?s)```ini\n# /etc/systemd/system/([a-z-]+.service)\n(.*?)```").FindAllStringSubmatch(read("docs/workloads.md"), -1) {
		units[m[1]] = m[2]
	}
	if len(units) != 3 {
		t.Fatalf("%d units, want the agent's and two of the documentation", len(units))
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
