package plugins_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

func TestPlainIsProved(t *testing.T) {
	t.Parallel()
	conformance.Test(t, conformance.Config{Binary: testbin.BuildDir(t, "plain")})
}

// The commands of docs/plugins.md make a plugin without the SDK that is proven.
func TestPlainFromThePage(t *testing.T) {
	t.Parallel()
	page := string(must(os.ReadFile(filepath.Join(testbin.Root(), "docs/plugins.md")))(t))
	_, block, _ := strings.Cut(page, "<!-- run: plain -->\n```sh\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("the page has no such block")
	}
	bin := t.TempDir()
	must(0, os.Symlink(testhost.New(t, "").Pannier, filepath.Join(bin, "pannier")))(t)
	cmd := exec.Command("bash", "-euc", block)
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "PANNIER_SDK="+testbin.Root())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v\n%s", block, err, out)
	}
}

// The author of a plugin without the SDK debugs it: a running agent takes go-plugin's ReattachConfig from a file, and
// without the file its own process serves again.
func TestPlainIsDebugged(t *testing.T) {
	t.Parallel()
	testbin.RequireRoot(t, "an agent with a plugin under a debugger")
	program := testbin.BuildDir(t, "plain")
	_, said := debugged(t, program, "PLAIN_DEBUG=1")
	line := must(bufio.NewReader(said).ReadString('\n'))(t)
	if !strings.HasPrefix(line, `{"plain":{"Addr":{"Network":"unix"`) {
		t.Fatalf("it printed %q", line)
	}
	h := testhost.New(t, "")
	install(t, h, "plain", must(os.ReadFile(program))(t))
	h.Start()
	at := func(want string) {
		t.Helper()
		h.Eventually("its calls go to "+want, func() error {
			if p := plugin(t, h, "plain"); p.GetState() != "running" || !strings.Contains(line, p.GetDebuggedAt()) ||
				(p.GetDebuggedAt() == "") != (want == "the agent's process") {
				return fmt.Errorf("it is %v", p)
			}
			return nil
		})
	}
	at("the agent's process")
	file := filepath.Join(h.Path("data"), "reattach.json")
	must(0, os.WriteFile(file, []byte(line), 0o600))(t)
	h.Run("agent", "reload")
	at("the author's process")
	must(0, os.Remove(file))(t)
	h.Run("agent", "reload")
	at("the agent's process")
	h.Run("agent", "stop", "-plugins")
	h.AwaitEnd()
}

// An agent runs a plugin that has go-plugin and no SDK, as any other: it logs what the plugin prints, the next agent
// finds the process again, and another file takes over from it.
func TestPlainUnderAnAgent(t *testing.T) {
	t.Parallel()
	testbin.RequireRoot(t, "an agent with the example plugin plain")
	data := must(os.ReadFile(testbin.BuildDir(t, "plain")))(t)
	h := testhost.New(t, "")
	install(t, h, "plain", data)
	h.Start()
	running := func() (p *hostv1.Plugin) {
		h.Eventually("the plugin serves", func() error {
			if p = plugin(t, h, "plain"); p.GetState() != "running" {
				return fmt.Errorf("it is %v", p)
			}
			return nil
		})
		return p
	}
	before := running()
	if before.GetKind() != "bootstrap.v1" || before.GetVersion() != "0.1.0" {
		t.Errorf("the plugin is %v", before)
	}
	h.Eventually("what it prints is in the agent's log", func() error {
		if !strings.Contains(h.LogTail(), "configured with") {
			return fmt.Errorf("the log ends with\n%s", h.LogTail())
		}
		return nil
	})
	h.Kill()
	h.Start()
	if now := running(); now.GetPid() != before.GetPid() || now.GetGeneration() != before.GetGeneration() {
		t.Errorf("the next agent has %v instead of %v", now, before)
	}
	install(t, h, "plain", append(data, "\n// another binary\n"...))
	h.Eventually("the plugin is swapped", func() error {
		now := plugin(t, h, "plain")
		if now.GetSha256() == before.GetSha256() || now.GetState() != "running" || len(now.GetSwaps()) != 1 {
			return fmt.Errorf("it is %v", now)
		}
		return nil
	})
	h.Eventually("the process that was replaced has ended", func() error { return gone(before) })
	last := plugin(t, h, "plain")
	h.Run("agent", "stop", "-plugins")
	h.AwaitEnd()
	if err := gone(last); err != nil {
		t.Errorf("the plugin after its agent: %v", err)
	}
}
