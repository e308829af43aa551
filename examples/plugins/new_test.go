package plugins_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"aead.dev/minisign"

	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The steps of docs/plugins.md for each kind, and for a plugin in each other language: made by the command outside the
// repository, built, tested, proved, signed, installed, found by an agent that takes only what is signed, and swapped
// for the next version.
func TestNewPlugins(t *testing.T) {
	t.Parallel()
	testbin.RequireRoot(t, "volumes of plugins in other languages")
	public, private, err := minisign.GenerateKey(rand.Reader)
	must(0, err)(t)
	made, releases := t.TempDir(), t.TempDir()
	h := testhost.New(t, fmt.Sprintf("plugin_signing {\n  keys = [%q]\n  require_signature = true\n}\n", public))
	for _, own := range must(os.ReadDir(h.PluginDir))(t) {
		must(0, os.Remove(filepath.Join(h.PluginDir, own.Name())))(t)
	}
	h.Start()
	dir := func(name string) string { return filepath.Join(made, name) }
	run := func(t *testing.T, cmd *exec.Cmd) {
		t.Helper()
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	// release signs what was built, under the name that it has in a release, and returns that file.
	release := func(t *testing.T, name, version string) (file string) {
		t.Helper()
		file = fmt.Sprintf("%s_v%s_linux_%s", name, version, runtime.GOARCH)
		data := must(os.ReadFile(filepath.Join(dir(name), name)))(t)
		hash := minisign.NewReader(bytes.NewReader(data))
		_, _ = io.Copy(io.Discard, hash) // it cannot fail
		signature := hash.SignWithComments(private, "timestamp:1\tfile:"+file+"\thashed", "")
		path := filepath.Join(releases, file)
		must(0, os.WriteFile(path, data, 0o755))(t)
		must(0, os.WriteFile(path+".minisig", signature, 0o644))(t)
		return path
	}
	all := map[string]struct {
		kind, source string
		lang         string
	}{
		"my-storage":      {"storage", "main.go", "go"},
		"my-identity":     {"identity", "main.go", "go"},
		"my-registration": {"registration", "main.go", "go"},
		"my-bootstrap":    {"bootstrap", "main.go", "go"},
		"my-device":       {"device", "main.go", "go"},
		"my-frontend":     {"frontend", "main.go", "go"},
		"my-js-storage":   {"storage", "main.js", "node"},
		"my-py-storage":   {"storage", "__main__.py", "python"},
	}
	var installing sync.Mutex
	for name, p := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newArgs := []string{"agent", "plugin", "new", p.kind, dir(name), "-lang", p.lang}
			testArgs := []string{"agent", "plugin", "test", "-kind", p.kind, filepath.Join(dir(name), name)}
			var tools []string
			if p.lang == "go" {
				run(t, h.Command(append(newArgs, "-sdk", testbin.Root())...))
			} else {
				run(t, h.Command(newArgs...))
				tools = toolsOf(t, p.lang, dir(name))
				testArgs = append(testArgs, "-driver", "unix://"+t.TempDir())
			}
			build := func() {
				cmd := exec.Command("make", "-C", dir(name), "build")
				if p.lang == "go" {
					cmd = exec.Command("go", "build", "-C", dir(name), ".")
				}
				cmd.Env = append(os.Environ(), tools...)
				run(t, cmd)
			}
			build()
			if p.lang == "go" {
				run(t, exec.Command("go", "vet", "-C", dir(name), "."))
				run(t, exec.Command("go", "test", "-C", dir(name), "."))
				if out, err := exec.Command("gofmt", "-l", dir(name)).Output(); err != nil || len(out) > 0 {
					t.Errorf("gofmt would change %s, %v", out, err)
				}
			}
			run(t, h.Command(testArgs...))
			config := "-config=" + h.Path("agent.hcl")
			for _, version := range []string{"0.1.0", "0.2.0"} {
				source := filepath.Join(dir(name), p.source)
				text := must(os.ReadFile(source))(t)
				must(0, os.WriteFile(source, bytes.ReplaceAll(text, []byte("0.1.0"), []byte(version)), 0o644))(t)
				build()
				file := release(t, name, version)
				installing.Lock() // a second installation at a time is refused
				out, err := h.Command("agent", "plugin", "install", config, file).CombinedOutput()
				installing.Unlock()
				if err != nil {
					t.Fatalf("install %s: %v\n%s", file, err, out)
				}
				if p.kind == "frontend" && version == "0.1.0" {
					text := must(os.ReadFile(h.Path("agent.hcl")))(t)
					h.Write("agent.hcl", fmt.Sprintf("%s\nplugin %q {\n  listen \"http\" {\n    address = \"unix://%s\"\n  }\n}\n",
						text, name, h.Path("door.sock")))
					run(t, h.Command("agent", "reload"))
				}
				h.Eventually(name+" "+version+" serves", func() error {
					now, err := find(h, name)
					if err != nil || now.GetState() != "running" || now.GetKind() != p.kind+".v1" || now.GetVersion() != version {
						return fmt.Errorf("it is %v, %w", now, err)
					}
					return nil
				})
			}
		})
	}
	t.Cleanup(func() {
		h.Run("agent", "stop", "-plugins")
		h.AwaitEnd()
	})
}

// toolsOf provides what the build of a new plugin in another language takes from the network, as it is in the cache.
// It returns variables for the environment of the build.
func toolsOf(t *testing.T, lang, dir string) (env []string) {
	t.Helper()
	switch lang {
	case "node": // what npm ci makes of the lock file
		cache := filepath.Dir(filepath.Dir(built(t, "node-dirs")))
		lock := sha256.Sum256(must(os.ReadFile("node-dirs/package-lock.json"))(t))
		modules := filepath.Join(cache, fmt.Sprintf("modules-%x", lock[:8]), "node_modules")
		must(0, os.Symlink(modules, filepath.Join(dir, "node_modules")))(t)
		now := time.Now()
		must(0, os.Chtimes(modules, now, now))(t) // newer than the lock file
	case "python":
		env = []string{"PYTHON=" + printed(t, "python-dirs/python")}
	}
	return env
}

func TestExamplesAreProved(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func(*testing.T) string{
		"dirs":        func(t *testing.T) string { return testbin.BuildDir(t, "dirs") },
		"node-dirs":   func(t *testing.T) string { return built(t, "node-dirs") },
		"python-dirs": func(t *testing.T) string { return built(t, "python-dirs") },
	} {
		t.Run(name, func(t *testing.T) {
			testbin.RequireRoot(t, "volumes of "+name)
			conformance.Test(t, conformance.Config{
				Binary: build(t), Config: []byte(`{"mode":"0750"}`), Driver: conformance.Driver("unix://" + t.TempDir()),
			})
		})
	}
}
