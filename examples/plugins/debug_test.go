package plugins_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// debugged starts a plugin as its author does under a debugger, with a variable that makes it wait for an agent. It
// returns the command and what that prints.
func debugged(t *testing.T, program, variable string) (*exec.Cmd, io.Reader) {
	t.Helper()
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), variable, "TMPDIR="+t.TempDir())
	said := must(cmd.StdoutPipe())(t)
	must(0, cmd.Start())(t)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, said
}

// A plugin runs under a debugger and the agent uses that process. It may be halted in the middle of a call
// for as long as the call may take, and then continues.
func TestPluginThatIsDebugged(t *testing.T) {
	t.Parallel()
	testbin.RequireRoot(t, "a plugin under a debugger")
	program := testbin.BuildDir(t, "dirs")
	author, said := debugged(t, program, "PANNIER_PLUGIN_DEBUG=1")
	env := ""
	for lines := bufio.NewScanner(said); env == "" && lines.Scan(); {
		if text := strings.TrimSpace(lines.Text()); strings.HasPrefix(text, "PANNIER_REATTACH_PLUGINS='") {
			env = strings.ReplaceAll(text, "'", "")
		}
	}
	if want := `PANNIER_REATTACH_PLUGINS={"dirs":"/`; !strings.HasPrefix(env, want) {
		t.Fatalf("it printed %q", env)
	}

	root := t.TempDir()
	h := testhost.New(t, fmt.Sprintf(
		"csi_driver \"dirs\" {\n  endpoint = \"unix://%s\"\n}\nplugin \"dirs\" {\n  config {\n    mode = \"0701\"\n  }\n}\n", root))
	install(t, h, "dirs", must(os.ReadFile(program))(t))
	must(0, os.Remove(filepath.Join(h.PluginDir, "csi-bridge")))(t)
	h.Env = append(h.Env, env)
	h.Start()
	before := plugin(t, h, "dirs")
	socket := strings.TrimSuffix(env[strings.Index(env, ":\"")+2:], "\"}")
	if out := h.Run("plugin", "status", "dirs"); !strings.Contains(out, "its calls go to "+socket) {
		t.Errorf("the status does not say that it is debugged:\n%s", out)
	}

	check.Stop(t, author.Process.Pid)
	created := make(chan testhost.Result, 1)
	go func() { created <- h.Try("volume", "create", "dirs/volume.hcl") }()
	select {
	case r := <-created:
		t.Fatalf("answered while the process was halted: %+v", r)
	case <-time.After(300 * time.Millisecond): // nothing reports that a call waits
	}
	must(0, author.Process.Signal(unix.SIGCONT))(t)
	if r := <-created; r.Code != 0 {
		t.Fatalf("%+v\n%s", r, h.LogTail())
	}
	made := must(filepath.Glob(filepath.Join(root, "*")))(t)
	if len(made) != 1 || must(os.Stat(made[0]))(t).Mode().Perm() != 0o701 {
		t.Errorf("made with the configuration: %q", made)
	}
	h.Run("workload", "run", "dirs/workload.hcl", "--", "sh", "-c", "echo hello > /data/hello")
	if now := plugin(t, h, "dirs"); now.GetPid() != before.GetPid() || now.GetRestarts() != 0 {
		t.Errorf("the agent's plugin changed to %v from %v", now, before)
	}

	// The process ends on SIGTERM, and the agent reports that it does not answer.
	must(0, author.Process.Signal(unix.SIGTERM))(t)
	must(0, author.Wait())(t)
	h.Eventually("the agent reports that it is gone", func() error {
		if p := plugin(t, h, "dirs"); !strings.Contains(p.GetLastError(), "the debugged plugin does not answer") {
			return fmt.Errorf("it says %q", p.GetLastError())
		}
		return nil
	})
	if _, err := os.Stat(filepath.Dir(socket)); !os.IsNotExist(err) {
		t.Errorf("the socket's folder: %v", err)
	}

	// Without that process, the agent's own plugin process serves.
	h.Stop()
	h.Env = nil
	h.Start()
	h.Run("volume", "delete", "notes")
	h.Run("agent", "stop", "-plugins")
	h.AwaitEnd()
}
