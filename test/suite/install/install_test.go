package install_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

const (
	root = "github.com/pannier/pannier"
	sdk  = root + "/sdk"
)

// A user installs pannier by version, and an author then creates a plugin with it. The plugin gets the SDK
// from the proxy.
func TestInstallVersionAndBuildPlugin(t *testing.T) {
	proxy := t.TempDir()
	version := publish(t, proxy)
	bin, work := t.TempDir(), t.TempDir()
	goCommand := func(dir string, args ...string) *exec.Cmd { return goCommand(t, proxy, bin, dir, args...) }

	run(t, goCommand(work, "install", "-trimpath", root+"/host/cmd/pannier@"+version))
	pannier := filepath.Join(bin, "pannier")
	if told := string(run(t, exec.Command(pannier, "version"))); !strings.HasPrefix(told, "pannier "+version+" (") {
		t.Errorf("the installed program prints %q, not the version %s", told, version)
	}

	plugin := filepath.Join(work, "my-storage")
	scaffold := goCommand(work)
	scaffold.Path, scaffold.Args = pannier, []string{pannier, "plugin", "new", "storage", plugin}
	run(t, scaffold)
	run(t, goCommand(plugin, "build", "-trimpath", "."))
	modules := strings.Fields(string(run(t, goCommand(plugin, "list", "-m", "all"))))
	if i := slices.Index(modules, sdk); i < 0 || modules[i+1] != version {
		t.Errorf("the plugin was built with %q, not with the SDK's %s", modules, version)
	}
	for _, m := range modules {
		if m == root || strings.Contains(m, "raft") || strings.Contains(m, "badger") || strings.Contains(m, "consul") {
			t.Errorf("an author's module requires %s", m)
		}
	}
}

// publish writes the tree's modules to the proxy, each with the SDK version that the root module requires.
func publish(t *testing.T, proxy string) (version string) {
	t.Helper()
	mod := check.Must(modfile.Parse("go.mod", check.Must(os.ReadFile(filepath.Join(testbin.Root(), "go.mod")))(t), nil))(t)
	if len(mod.Replace) > 0 || len(mod.Exclude) > 0 {
		t.Fatal("go install MODULE@VERSION refuses a module whose go.mod has replace or exclude directives")
	}
	for _, r := range mod.Require {
		if r.Mod.Path == sdk {
			version = r.Mod.Version
		}
	}
	for path, dir := range map[string]string{root: ".", sdk: "sdk"} {
		source := copySources(t, filepath.Join(testbin.Root(), dir))
		to := filepath.Join(proxy, path, "@v")
		check.NoError(t, os.MkdirAll(to, 0o755))
		write := func(ext string, content []byte) {
			check.NoError(t, os.WriteFile(filepath.Join(to, version+ext), content, 0o644))
		}
		write(".mod", check.Must(os.ReadFile(filepath.Join(source, "go.mod")))(t))
		write(".info", check.Must(json.Marshal(map[string]any{"Version": version, "Time": time.Unix(0, 0).UTC()}))(t))
		check.NoError(t, os.WriteFile(filepath.Join(to, "list"), []byte(version+"\n"), 0o644))
		archive := check.Must(os.Create(filepath.Join(to, version+".zip")))(t)
		check.NoError(t, zip.CreateFromDir(archive, module.Version{Path: path, Version: version}, source))
		check.NoError(t, archive.Close())
	}
	return version
}

// copySources copies the files below dir that git tracks, or would track. Build results are left out.
func copySources(t *testing.T, dir string) string {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate")
	list.Dir = dir
	to := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimRight(string(run(t, list)), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if os.IsNotExist(err) {
			continue // deleted but not committed
		}
		check.NoError(t, err)
		check.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o755))
		check.NoError(t, os.WriteFile(filepath.Join(to, name), content, 0o644))
	}
	return to
}

// goCommand returns a go command that gets the published modules from the proxy, and all others from where
// this machine has them. It has its own module cache, so that nothing of the published modules stays on the
// machine.
func goCommand(t *testing.T, proxy, bin, dir string, args ...string) *exec.Cmd {
	t.Helper()
	env := strings.Split(strings.TrimSpace(string(run(t, exec.Command("go", "env", "GOMODCACHE", "GOPROXY")))), "\n")
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOSUMDB=off", "GOFLAGS=-modcacherw", "CGO_ENABLED=0", "GOBIN="+bin,
		"GOMODCACHE="+filepath.Join(proxy, "modcache"), "GOPROXY=file://"+proxy+",file://"+env[0]+"/cache/download,"+env[1])
	return cmd
}

func run(t *testing.T, cmd *exec.Cmd) []byte {
	t.Helper()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, stderr.String())
	}
	return out
}
