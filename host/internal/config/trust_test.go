package config

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// An unprivileged user who can write to the configuration, or to a directory above it, adds a driver: a program that
// the agent would run as root. The agent refuses the configuration.
func TestConfigurationThatOthersCanChange(t *testing.T) {
	testbin.RequireRoot(t, "another user who changes the configuration")
	const evil = `csi_driver \"evil\" { command = [\"/bin/id\"] }`
	for name, tc := range map[string]struct {
		open   func(dir string) error // an operator's mistake, with DIR/etc/pannier/agent.hcl
		attack string                 // by the unprivileged user
		path   string                 // that is given to the agent
		at     string                 // what the agent refuses
	}{
		"a file": {
			func(dir string) error { return os.Chmod(dir+"/etc/pannier/agent.hcl", 0o666) },
			"echo EVIL > DIR/etc/pannier/agent.hcl", "/etc/pannier", "/etc/pannier/agent.hcl",
		},
		"the folder": {
			func(dir string) error { return os.Chmod(dir+"/etc/pannier", 0o777) },
			"echo EVIL > DIR/etc/pannier/evil.hcl", "/etc/pannier", "/etc/pannier",
		},
		"a sticky folder": {
			func(dir string) error { return os.Chmod(dir+"/etc/pannier", 0o777|os.ModeSticky) },
			"echo EVIL > DIR/etc/pannier/evil.hcl", "/etc/pannier", "/etc/pannier",
		},
		"a file in an open folder": {
			func(dir string) error { return os.Chmod(dir+"/etc/pannier", 0o777) },
			"rm -f DIR/etc/pannier/agent.hcl; echo EVIL > DIR/etc/pannier/agent.hcl",
			"/etc/pannier/agent.hcl", "/etc/pannier",
		},
		"a folder above": {
			func(dir string) error { return os.Chmod(dir+"/etc", 0o777) },
			"mv DIR/etc/pannier DIR/etc/old; mkdir DIR/etc/pannier; echo EVIL > DIR/etc/pannier/agent.hcl",
			"/etc/pannier", "/etc",
		},
		"a file of its own": {
			func(dir string) error { return os.Chown(dir+"/etc/pannier/agent.hcl", 65534, 65534) },
			"echo EVIL > DIR/etc/pannier/agent.hcl", "/etc/pannier", "/etc/pannier/agent.hcl",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := check.Must(os.MkdirTemp("", "conf"))(t)
			t.Cleanup(func() { os.RemoveAll(dir) })
			check.NoError(t, os.Chmod(dir, 0o755))
			check.NoError(t, os.MkdirAll(dir+"/etc/pannier", 0o755))
			check.NoError(t, os.WriteFile(dir+"/etc/pannier/agent.hcl", []byte(`name = "here"`), 0o644))
			source := Source{
				Paths:       []string{filepath.Join(dir, tc.path)},
				Environment: func(string) (string, bool) { return "", false },
			}
			if _, err := Load(source); err != nil {
				t.Fatalf("before: %v", err)
			}
			check.NoError(t, tc.open(dir))
			attack := exec.Command("/bin/sh", "-ec", strings.NewReplacer("DIR", dir, "EVIL", `"`+evil+`"`).Replace(tc.attack))
			attack.Dir = "/"
			attack.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			if out, err := attack.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", tc.attack, err, out)
			}
			a, err := Load(source)
			if err == nil {
				t.Fatalf("the agent would run %+v", a.Drivers)
			}
			if text := err.Error(); !strings.Contains(text, "is not used: "+dir+tc.at+" ") ||
				!strings.Contains(text, dir+tc.at+",") && !strings.HasSuffix(text, dir+tc.at) {
				t.Errorf("got %v, want %s and what to run", err, tc.at)
			}
		})
	}
}
