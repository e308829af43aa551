package plugins_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// fence matches a code block: its language, the words after that, and its text.
var fence = regexp.MustCompile("(?s)```(hcl|sh)([a-z ]*)\n(.*?)```")

// TestGuide runs the tutorial in docs/plugins.md exactly as written. Files are named by their first line, and
// the agent's block keeps running while the next blocks are run.
func TestGuide(t *testing.T) {
	t.Parallel()
	testbin.RequireRoot(t, "the commands of docs/plugins.md")
	page := string(must(os.ReadFile(filepath.Join(testbin.Root(), "docs/plugins.md")))(t))
	_, page, _ = strings.Cut(page, "\n## Thirty minutes")
	page, _, _ = strings.Cut(page, "\n## ")
	blocks := fence.FindAllStringSubmatch(page, -1)
	if len(blocks) < 8 {
		t.Fatalf("%d blocks", len(blocks))
	}

	h := testhost.New(t, "") // provides a directory and the cleanup; its agent is never started
	bin := t.TempDir()
	must(0, os.Symlink(h.Pannier, filepath.Join(bin, "pannier")))(t)
	volumes := t.TempDir()
	env := append(os.Environ(),
		"PATH="+bin+":"+os.Getenv("PATH"), "PANNIER_SDK="+testbin.Root(), "NO_COLOR=1", "PANNIER_ADDR=unix://"+h.Socket(),
		"PANNIER_SOCKET="+h.Socket(), "PANNIER_DATA_DIR="+h.Path("data"), "PANNIER_HTTP_PORT=0")
	dir := h.Dir
	for _, b := range blocks {
		kind, text := b[1]+b[2], strings.ReplaceAll(b[3], "/srv/my-volumes", volumes)
		switch kind {
		case "hcl":
			name, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
			must(0, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))(t)
		case "sh agent":
			runAgent(t, h, dir, env, text)
		case "sh":
			cmd := exec.Command("bash", "-euc", text)
			cmd.Dir, cmd.Env = dir, env
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s\n%v\n%s", text, err, out)
			}
			if strings.Contains(text, "\ncd my-storage\n") {
				dir = filepath.Join(dir, "my-storage")
			}
		default:
			t.Errorf("a block of %q would not be run", kind)
		}
	}
	if hello := must(os.ReadFile(filepath.Join(volumes, "notes/hello")))(t); string(hello) != "hello\n" {
		t.Errorf("the workload wrote %q", hello)
	}
	h.Eventually("the new version serves", func() error {
		p, err := find(h, "my-storage")
		if err != nil || p.GetVersion() != "0.2.0" || p.GetState() != "running" {
			return fmt.Errorf("it is %v, %w", p, err)
		}
		return nil
	})
	h.Run("agent", "stop", "-plugins")
}

// runAgent runs the agent's block in the background until the end of the test, and waits until the agent is
// ready.
func runAgent(t *testing.T, h *testhost.Host, dir string, env []string, command string) {
	t.Helper()
	var log bytes.Buffer
	agent := exec.Command("bash", "-euc", "exec "+command)
	agent.Dir, agent.Env, agent.Stdout, agent.Stderr = dir, env, &log, &log
	agent.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(0, agent.Start())(t)
	t.Cleanup(func() {
		_ = agent.Process.Signal(unix.SIGTERM)
		_ = agent.Wait()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", log.String())
		}
	})
	h.Eventually("the agent is ready", func() error {
		s, err := h.Status()
		if err != nil {
			return err
		}
		if !s.GetReady() || len(s.GetDrivers()) != 1 || !s.GetDrivers()[0].GetHealthy() {
			return fmt.Errorf("it is %v", s)
		}
		return nil
	})
}
