package plugins_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// From nothing to running plugins, as docs/plugins.md tells it: made by the command in a
// folder outside the tree, built, proved, and found by an agent that runs.
func TestNewPlugins(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, "")
	h.Start()
	kinds := []string{"storage", "identity", "registration", "bootstrap", "device"}
	made := t.TempDir()
	binary := func(kind string) string { return filepath.Join(made, "my-"+kind, "my-"+kind) }
	t.Run("made and proved", func(t *testing.T) {
		for _, kind := range kinds {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				dir := filepath.Dir(binary(kind))
				build := exec.Command("go", "build", "-C", dir, ".")
				for _, cmd := range []*exec.Cmd{
					h.Command("plugin", "new", kind, dir, "-sdk", testbin.Root()), build, h.Command("plugin", "test", "-kind", kind,
						binary(kind)),
				} {
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Fatalf("%s: %v\n%s", cmd, err, out)
					}
				}
			})
		}
	})
	if t.Failed() {
		return
	}
	for _, kind := range kinds {
		name := filepath.Base(binary(kind))
		install(t, h, name, must(os.ReadFile(binary(kind)))(t))
		h.Eventually(name+" is up", func() error {
			p, err := find(h, name)
			if err != nil || p.GetState() != "running" || p.GetKind() != kind+".v1" {
				return fmt.Errorf("it is %v, %w", p, err)
			}
			return nil
		})
	}
	h.Run("agent", "stop", "-plugins")
	h.AwaitEnd()
}

func TestExamplesAreProved(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(*testing.T) string{
		"dirs":      func(t *testing.T) string { return testbin.BuildDir(t, "dirs") },
		"node-dirs": built,
	} {
		t.Run(name, func(t *testing.T) {
			testbin.RequireRoot(t, "volumes of "+name)
			conformance.Storage(t, conformance.Config{
				Binary: build(t), Config: []byte(`{"mode":"0750"}`), Driver: conformance.Driver("unix://" + t.TempDir()),
			})
		})
	}
}
