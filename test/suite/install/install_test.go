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

// published are the modules of this tree that others use, and their folders.
var published = map[string]string{
	root: ".", sdk: "sdk", sdk + "/conformance": "sdk/conformance", root + "/drivers/csi-local": "drivers/csi-local",
}

// A user installs the programs by version, and an author then creates a plugin with pannier. All come from a proxy, and
// none of their modules is replaced. The plugin is built with the SDK that pannier was built with, and little else.
func TestInstallVersionAndBuildPlugin(t *testing.T) {
	proxy := t.TempDir()
	versions := publish(t, proxy)
	bin, work := t.TempDir(), t.TempDir()
	goCommand := func(dir string, args ...string) *exec.Cmd { return goCommand(t, proxy, bin, dir, args...) }

	run(t, goCommand(work, "install", "-trimpath", root+"/drivers/csi-local@"+versions[root+"/drivers/csi-local"]))
	run(t, goCommand(work, "install", "-trimpath", root+"/host/cmd/pannier@"+versions[root],
		root+"/host/cmd/pannier-agent@"+versions[root]))
	pannier := filepath.Join(bin, "pannier")
	if told := string(run(t, exec.Command(pannier, "version"))); !strings.HasPrefix(told, "pannier "+versions[root]+" (") {
		t.Errorf("the installed program prints %q, not the version %s", told, versions[root])
	}

	plugin := filepath.Join(work, "my-storage")
	scaffold := goCommand(work)
	scaffold.Path, scaffold.Args = pannier, []string{pannier, "agent", "plugin", "new", "storage", plugin}
	run(t, scaffold)
	run(t, goCommand(plugin, "build", "-trimpath", "."))
	run(t, goCommand(plugin, "test", "-trimpath", "."))
	mod := parse(t, filepath.Join(plugin, "go.mod"))
	if len(mod.Replace) > 0 || len(mod.Require) > 30 {
		t.Errorf("the plugin has %d modules, with replacements %v", len(mod.Require), mod.Replace)
	}
	for _, r := range mod.Require {
		if r.Mod.Path == sdk && r.Mod.Version == versions[sdk] {
			return
		}
	}
	t.Errorf("the plugin is not built with the SDK's %s", versions[sdk])
}

func parse(t *testing.T, path string) *modfile.File {
	t.Helper()
	return check.Must(modfile.Parse(path, check.Must(os.ReadFile(path))(t), nil))(t)
}

// publish writes the tree's modules to the proxy as a release has them: without replace directives. Each has the
// version that the others require.
func publish(t *testing.T, proxy string) (versions map[string]string) {
	t.Helper()
	versions = map[string]string{root + "/drivers/csi-local": "v0.1.0"} // which none requires
	for _, dir := range published {
		for _, r := range parse(t, filepath.Join(testbin.Root(), dir, "go.mod")).Require {
			if _, ours := published[r.Mod.Path]; ours {
				versions[r.Mod.Path] = r.Mod.Version
			}
		}
	}
	for path, dir := range published {
		version, source := versions[path], copySources(t, filepath.Join(testbin.Root(), dir))
		mod := parse(t, filepath.Join(source, "go.mod"))
		for _, r := range slices.Clone(mod.Replace) {
			check.NoError(t, mod.DropReplace(r.Old.Path, r.Old.Version))
		}
		check.NoError(t, os.WriteFile(filepath.Join(source, "go.mod"), check.Must(mod.Format())(t), 0o644))
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
	return versions
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
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOSUMDB=off", "GOFLAGS=-modcacherw -tags=grpcnotrace", "CGO_ENABLED=0", "GOBIN="+bin,
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
