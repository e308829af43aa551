package drivers

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

const (
	nobody   = "nobody"
	stranger = 65534 // its number
)

// asStranger runs a script as an unprivileged user.
func asStranger(t *testing.T, script string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-ec", script)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// publicDir is a directory that all users can pass.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := shortDir(t)
	check.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// An unprivileged user who can write to a driver's program, or to a directory above it, puts a program of its own
// there. The agent does not run it.
func TestProgramThatOthersCanReplace(t *testing.T) {
	testbin.RequireRoot(t, "another user who replaces a driver's program")
	for name, tc := range map[string]struct {
		open   func(dir string) error // an operator's mistake, with DIR/opt/csi/driver
		attack string                 // by the unprivileged user
		run    string                 // what the agent advises
	}{
		"the program": {
			func(dir string) error { return os.Chmod(dir+"/opt/csi/driver", 0o777) },
			"cat EVIL > DIR/opt/csi/driver", "chmod go-w DIR/opt/csi/driver",
		},
		"its directory": {
			func(dir string) error { return os.Chmod(dir+"/opt/csi", 0o777) },
			"rm -f DIR/opt/csi/driver; cp EVIL DIR/opt/csi/driver", "chmod go-w DIR/opt/csi",
		},
		"a directory above": {
			func(dir string) error { return os.Chmod(dir+"/opt", 0o777) },
			"mv DIR/opt/csi DIR/opt/old; mkdir DIR/opt/csi; cp EVIL DIR/opt/csi/driver", "chmod go-w DIR/opt",
		},
		"a directory of its own": {
			func(dir string) error { return os.Chown(dir+"/opt/csi", stranger, stranger) },
			"rm -f DIR/opt/csi/driver; cp EVIL DIR/opt/csi/driver", "chown -h root DIR/opt/csi",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := publicDir(t)
			program, proof := filepath.Join(dir, "opt/csi/driver"), filepath.Join(dir, "proof")
			check.NoError(t, os.MkdirAll(filepath.Dir(program), 0o755))
			check.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755))
			evil := filepath.Join(publicDir(t), "evil")
			check.NoError(t, os.WriteFile(evil, fmt.Appendf(nil, "#!/bin/sh\nid -u > %s\n", proof), 0o755))
			check.NoError(t, tc.open(dir))
			asStranger(t, strings.NewReplacer("DIR", dir, "EVIL", evil).Replace(tc.attack))

			h := open(t, shortDir(t), Spec{ID: "a", Command: []string{program}})
			d := h.wait("a", "tried", func(d Driver) bool { return strings.Contains(d.Message, "the next start is in") })
			if as, err := os.ReadFile(proof); err == nil {
				t.Errorf("the stranger's program was run, as user %s", strings.TrimSpace(string(as)))
			}
			want := strings.ReplaceAll(tc.run, "DIR", dir)
			if !strings.Contains(d.Message, "run "+want) || !strings.Contains(d.Message, program) {
				t.Errorf("the driver's message is %q, want the program and %q", d.Message, want)
			}
		})
	}
}

// A driver that runs as another user does not become root by a set-user-id program.
func TestDriverGainsNoPrivileges(t *testing.T) {
	testbin.RequireRoot(t, "a driver as another user")
	dir := publicDir(t)
	check.NoError(t, os.Chown(dir, stranger, stranger))
	check.NoError(t, os.Chmod(dir, 0o700))
	bin := publicDir(t)
	text, err := os.ReadFile("/bin/cat")
	check.NoError(t, err)
	check.NoError(t, os.WriteFile(bin+"/cat", text, 0o755))
	check.NoError(t, os.Chmod(bin+"/cat", 0o755|os.ModeSetuid))
	secret, proof := filepath.Join(bin, "secret"), filepath.Join(dir, "proof")
	check.NoError(t, os.WriteFile(secret, []byte("of root"), 0o600))

	dataDir := shortDir(t)
	check.NoError(t, os.Chmod(dataDir, 0o711)) //nolint:gosec // as the agent makes it: the user must reach the copy
	h := open(t, dataDir, Spec{
		ID: "a", User: nobody, Endpoint: "unix://" + dir + "/csi.sock",
		Command: []string{"/bin/sh", "-c", bin + "/cat " + secret + " >" + proof},
	})
	h.wait("a", "run", func(d Driver) bool { return strings.Contains(d.Message, "the next start is in") })
	if text, err := os.ReadFile(proof); err != nil || len(text) > 0 {
		t.Errorf("user %s read what is only root's: %q, %v", nobody, text, err)
	}
}

// A program with another checksum is not run, until the configuration names it.
func TestChecksumOfADriver(t *testing.T) {
	dataDir := shortDir(t)
	spec := supervised("a")
	spec.Checksum = "sha256:" + strings.Repeat("0", 64)
	h := open(t, dataDir, spec)
	d := h.wait("a", "tried", func(d Driver) bool { return strings.Contains(d.Message, "the next start is in") })
	h.mustNotHaveHappened("started")
	program, err := os.ReadFile(spec.Command[0])
	check.NoError(t, err)
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(program))
	if !strings.Contains(d.Message, sum) || !strings.Contains(d.Message, spec.Checksum) {
		t.Errorf("the driver's message is %q, want both checksums", d.Message)
	}
	check.NoError(t, h.Close(true))

	unchecked := open(t, dataDir, supervised("a"))
	pid := unchecked.healthy("a").PID
	check.NoError(t, unchecked.Close(false))
	spec.Checksum = sum
	checked := open(t, dataDir, spec)
	if d := checked.healthy("a"); d.PID == pid {
		t.Error("a process of a program that was not checked serves")
	}
}

// A driver that eats the machine's memory is stopped at its limit, with all that it has started.
func TestDriverAboveItsLimits(t *testing.T) {
	spec := supervised("a", "-eat", "512")
	spec.Limits = process.Limits{Memory: 128 << 20, OpenFiles: 100}
	h := open(t, shortDir(t), spec)
	h.wait("a", "stopped", func(d Driver) bool {
		return strings.Contains(d.Message, "of memory, its limits allow 128 MiB; the next start is in")
	})
	h.mustHaveHappened("started", "stopped", "failed")

	modest := supervised("b")
	modest.Limits = process.Limits{Memory: 128 << 20, OpenFiles: 100}
	h = open(t, shortDir(t), modest)
	pid := h.healthy("b").PID
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	check.NoError(t, err)
	if !regexp.MustCompile(`Max open files +100 +100 `).Match(limits) {
		t.Errorf("its limits are\n%s", limits)
	}
}
