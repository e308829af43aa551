package plugins_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/testbin"
	"github.com/pannier/pannier/test/testhost"
)

// The module of an author's own is tested as its author does.
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

// serves runs a workload with a volume of a storage plugin whose drivers are folders.
func serves(t *testing.T, name, program string) {
	t.Helper()
	testbin.RequireRoot(t, "a volume of the example plugin "+name)
	root := t.TempDir()
	h := testhost.New(t, fmt.Sprintf("csi_driver \"shared\" {\n  endpoint = \"unix://%s\"\n}\n", root))
	data, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(filepath.Join(h.PluginDir, name), data, 0o755)
	}
	if err == nil {
		err = os.Remove(filepath.Join(h.PluginDir, "csi-bridge")) // else it would be taken
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Start()
	if list := h.Run("plugin", "list"); !strings.Contains(list, name) || !strings.Contains(list, "storage.v1") {
		t.Errorf("the plugins are\n%s", list)
	}
	h.Run("volume", "create", "dirs/volume.hcl")
	h.Run("workload", "run", "dirs/workload.hcl", "--", "sh", "-c", "echo hello > /data/hello")
	if got := h.Run("workload", "run", "dirs/workload.hcl"); !strings.Contains(got, "hello") {
		t.Errorf("the next workload reads %q", got)
	}
	notes, err := filepath.Glob(filepath.Join(root, "*", "hello"))
	if err != nil || len(notes) != 1 {
		t.Errorf("below the driver's folder: %q, %v", notes, err)
	}
	h.NothingInUse()
	h.Run("volume", "delete", "notes")
	if left, err := os.ReadDir(root); err != nil || len(left) != 0 {
		t.Errorf("left below the driver's folder: %v, %v", left, err)
	}
}
