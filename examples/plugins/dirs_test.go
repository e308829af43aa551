package plugins_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The example module passes its own tests, run as its author runs them.
func TestDirsTestsItself(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "test", "-count=1", "./...")
	cmd.Dir = "dirs"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDirsUnderAnAgent(t *testing.T) {
	t.Parallel()
	serves(t, "dirs", testbin.BuildDir(t, "dirs"))
}

// The configuration describes itself.
func TestDirsInfo(t *testing.T) {
	t.Parallel()
	agent, dirs := testbin.Build(t, "host/cmd/pannier-agent"), testbin.BuildDir(t, "dirs")
	out, err := exec.Command(agent, "plugin", "info", dirs).CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?m)^mode +string +0755 +the mode of the directories`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
}

// serves runs a workload with a volume of a storage plugin whose drivers are directories, restarts the agent,
// which must find the plugin again, and swaps the plugin.
func serves(t *testing.T, name, program string) {
	t.Helper()
	testbin.RequireRoot(t, "a volume of the example plugin "+name)
	root := t.TempDir()
	h := testhost.New(t, fmt.Sprintf("csi_driver \"dirs\" {\n  endpoint = \"unix://%s\"\n}\n", root))
	data := must(os.ReadFile(program))(t)
	install(t, h, name, data)
	must(0, os.Remove(filepath.Join(h.PluginDir, "csi-bridge")))(t) // otherwise csi-bridge would be used
	h.Start()
	if list := h.Run("plugin", "list"); !strings.Contains(list, name) || !strings.Contains(list, "storage.v1") {
		t.Errorf("the plugins are\n%s", list)
	}
	h.Run("volume", "create", "dirs/volume.hcl")
	h.Run("workload", "run", "dirs/workload.hcl", "--", "sh", "-c", "echo hello > /data/hello")
	before := plugin(t, h, name)
	h.Kill()
	h.Start()
	if now := plugin(t, h, name); now.GetPid() != before.GetPid() || now.GetGeneration() != before.GetGeneration() {
		t.Errorf("the next agent has %v instead of %v", now, before)
	}
	install(t, h, name, append(data, "\n// another binary\n"...))
	h.Eventually("the plugin is swapped", func() error {
		now := plugin(t, h, name)
		if now.GetSha256() == before.GetSha256() || now.GetState() != "running" || len(now.GetSwaps()) != 1 ||
			now.GetDraining() != 0 {
			return fmt.Errorf("it is %v", now)
		}
		return nil
	})
	h.Eventually("the process that was replaced has ended", func() error { return gone(before) })
	if got := h.Run("workload", "run", "dirs/workload.hcl"); !strings.Contains(got, "hello") {
		t.Errorf("the next workload reads %q", got)
	}
	if notes := must(filepath.Glob(filepath.Join(root, "*", "hello")))(t); len(notes) != 1 {
		t.Errorf("below the driver's folder: %q", notes)
	}
	h.NothingInUse()
	h.Run("volume", "delete", "notes")
	if left := must(os.ReadDir(root))(t); len(left) != 0 {
		t.Errorf("left below the driver's folder: %v", left)
	}
	last := plugin(t, h, name)
	h.Run("agent", "stop", "-plugins")
	h.AwaitEnd()
	if err := gone(last); err != nil {
		t.Errorf("the plugin after its agent: %v", err)
	}
}

// gone returns an error while a plugin's process runs. A process that has ended may not have been reaped yet
// (proc_pid_stat(5)).
func gone(p *hostv1.Plugin) error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.GetPid()))
	if err != nil || strings.Contains(string(stat), ") Z ") || strings.Contains(string(stat), ") X ") {
		return nil //nolint:nilerr // there is no such process
	}
	return fmt.Errorf("process %d runs", p.GetPid())
}

// install puts a program into the plugin directory as an operator does.
func install(t *testing.T, h *testhost.Host, name string, data []byte) {
	t.Helper()
	path := filepath.Join(h.PluginDir, name)
	must(0, os.WriteFile(path+".new", data, 0o755))(t)
	must(0, os.Rename(path+".new", path))(t)
}

// plugin returns a plugin from the agent's status.
func plugin(t *testing.T, h *testhost.Host, name string) *hostv1.Plugin {
	t.Helper()
	return must(find(h, name))(t)
}

func find(h *testhost.Host, name string) (*hostv1.Plugin, error) {
	resp, err := h.Client().Plugins.ListPlugins(context.Background(), &hostv1.ListPluginsRequest{})
	if err != nil {
		return nil, err
	}
	for _, p := range resp.GetPlugins() {
		if p.GetName() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("there is no plugin %q among %v", name, resp.GetPlugins())
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}
