package install_test

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// A release of one commit has the same bytes whoever builds it, and says what it contains. What was changed, or signed
// by another key, is refused.
func TestDist(t *testing.T) {
	cache := testbin.CacheDir(t)
	var dist [2]string
	for n, dir := range []string{t.TempDir() + "/a", t.TempDir() + "/another/folder"} {
		run(t, exec.Command("git", "clone", "-q", testbin.Root(), dir))
		build := exec.Command("make", "dist")
		build.Dir, build.Env = dir, append(os.Environ(), "PANNIER_CACHE="+cache, "TMPDIR="+t.TempDir())
		run(t, build)
		dist[n] = dir + "/dist"
	}
	names := check.Must(filepath.Glob(dist[0] + "/*"))(t)
	if len(names) != 2 {
		t.Fatalf("a release is %v, want an archive and its checksum", names)
	}
	for _, name := range names {
		a := check.Must(os.ReadFile(name))(t)
		b := check.Must(os.ReadFile(filepath.Join(dist[1], filepath.Base(name))))(t)
		if !bytes.Equal(a, b) {
			t.Errorf("%s has other bytes in another folder: %d and %d", filepath.Base(name), len(a), len(b))
		}
	}
	archive := check.Must(filepath.Glob(dist[0] + "/*.tar.gz"))(t)[0]
	opened := t.TempDir()
	run(t, exec.Command("tar", "-C", opened, "-x", "-z", "--strip-components", "1", "-f", archive))
	t.Run("it says what it contains", func(t *testing.T) { contents(t, opened) })
	t.Run("its signature", func(t *testing.T) { signature(t, filepath.Dir(filepath.Dir(archive)), archive, cache) })
}

// forTests are modules that only tests need.
var forTests = []string{
	"github.com/anishathalye/porcupine", "github.com/kubernetes-csi/csi-test", "github.com/onsi/",
	"github.com/rogpeppe/go-internal", "github.com/stretchr/", "go.uber.org/goleak", "pgregory.net/rapid",
}

// contents checks that the bills of materials and the licences have all modules of the programs in dir.
func contents(t *testing.T, dir string) {
	notices := string(check.Must(os.ReadFile(dir + "/THIRD-PARTY-NOTICES"))(t))
	for _, program := range []string{
		"pannier", "csi-local", "plugins/csi-bridge", "plugins/sids", "plugins/consul-services", "plugins/envoy-bootstrap",
		"plugins/docker-volume",
	} {
		info := check.Must(buildinfo.ReadFile(filepath.Join(dir, program)))(t)
		var bom struct {
			Components []struct{ Name, Version string }
		}
		text := check.Must(os.ReadFile(filepath.Join(dir, "sbom", filepath.Base(program)+".cdx.json")))(t)
		check.NoError(t, json.Unmarshal(text, &bom))
		for _, dep := range info.Deps {
			if !slices.Contains(bom.Components, struct{ Name, Version string }{dep.Path, dep.Version}) {
				t.Errorf("the bill of materials of %s lacks %s %s", program, dep.Path, dep.Version)
			}
			if dep.Path != sdk && !strings.Contains(notices, "\n"+dep.Path+"@"+dep.Version+"/") {
				t.Errorf("the notices lack the licence of %s %s, which is in %s", dep.Path, dep.Version, program)
			}
			// raft-autopilot has its mocks in the package itself. What of them is linked is never called.
			if program == "pannier" && strings.HasPrefix(dep.Path, "github.com/stretchr/") {
				continue
			}
			if slices.ContainsFunc(forTests, func(prefix string) bool { return strings.HasPrefix(dep.Path, prefix) }) {
				t.Errorf("%s contains %s, which is for tests", program, dep.Path)
			}
		}
	}
}

// signature signs a release as `make sign` does, and verifies it as docs/releasing.md says.
func signature(t *testing.T, checkout, archive, cache string) {
	tool := exec.Command(testbin.Root()+"/tools/tool", "minisign")
	minisign := strings.TrimSpace(string(run(t, tool)))
	keys := t.TempDir()
	for _, name := range []string{"ours", "another"} {
		run(t, exec.Command(minisign, "-G", "-W", "-p", filepath.Join(keys, name+".pub"), "-s", filepath.Join(keys, name)))
	}
	sign := exec.Command("make", "sign", "KEY="+filepath.Join(keys, "ours"))
	sign.Dir, sign.Env = checkout, append(os.Environ(), "PANNIER_CACHE="+cache)
	run(t, sign)
	dist := filepath.Dir(archive)
	verify := func(key string) error {
		script := `"$0" -V -p "$1" -m SHA256SUMS && sha256sum -c SHA256SUMS`
		cmd := exec.Command("sh", "-c", script, minisign, filepath.Join(keys, key+".pub"))
		cmd.Dir = dist
		return cmd.Run()
	}
	check.NoError(t, verify("ours"))
	if verify("another") == nil {
		t.Error("the key of somebody else verifies it")
	}
	for _, path := range []string{archive, filepath.Join(dist, "SHA256SUMS")} {
		whole := check.Must(os.ReadFile(path))(t)
		changed := bytes.Clone(whole)
		changed[len(changed)/2] ^= 1
		check.NoError(t, os.WriteFile(path, changed, 0o644))
		if verify("ours") == nil {
			t.Errorf("a changed %s is not noticed", filepath.Base(path))
		}
		check.NoError(t, os.WriteFile(path, whole, 0o644))
	}
	check.NoError(t, verify("ours"))
}
