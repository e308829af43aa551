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
// by another key, is refused, also once it is installed from a package.
func TestDist(t *testing.T) {
	cache := testbin.CacheDir(t)
	minisign := strings.TrimSpace(string(run(t, exec.Command(testbin.Root()+"/tools/tool", "minisign"))))
	keys := t.TempDir()
	for _, name := range []string{"ours", "another"} {
		run(t, exec.Command(minisign, "-G", "-W", "-p", filepath.Join(keys, name+".pub"), "-s", filepath.Join(keys, name)))
	}
	checkouts := []string{t.TempDir() + "/a", t.TempDir() + "/another/folder"}
	build := func(checkout string, args ...string) {
		t.Helper()
		cmd := exec.Command("make", args...)
		cmd.Dir, cmd.Env = checkout, append(os.Environ(), "PANNIER_CACHE="+cache, "TMPDIR="+t.TempDir())
		run(t, cmd)
	}
	for n, dir := range checkouts {
		run(t, exec.Command("git", "clone", "-q", testbin.Root(), dir))
		run(t, exec.Command("cp", keys+"/ours.pub", dir+"/packaging/pannier.pub"))
		if n == 0 {
			build(dir, "dist")
			build(dir, "sign", "KEY="+keys+"/ours")
			continue
		}
		// The first signature is of the programs, and is in the packages; the second is of the packages.
		check.NoError(t, os.Mkdir(dir+"/dist", 0o755))
		run(t, exec.Command("sh", "-c", `cp "$0"/dist/*.minisig "$1/dist"`, checkouts[0], dir))
		sums := check.Must(filepath.Glob(checkouts[0] + "/dist/*_*.SHA256SUMS"))(t)
		run(t, exec.Command("cp", sums[0], dir+"/dist"))
		build(dir, "packages")
		build(dir, "sign", "KEY="+keys+"/ours")
	}
	var names []string
	for _, name := range check.Must(filepath.Glob(checkouts[0] + "/dist/*_*"))(t) {
		name = filepath.Base(name)
		names = append(names, name)
		a := check.Must(os.ReadFile(filepath.Join(checkouts[0], "dist", name)))(t)
		b := check.Must(os.ReadFile(filepath.Join(checkouts[1], "dist", name)))(t)
		if !bytes.Equal(a, b) {
			t.Errorf("%s has other bytes in another folder: %d and %d", name, len(a), len(b))
		}
	}
	if len(names) != 3 {
		t.Fatalf("a release is %v, want an archive, the checksums of its programs and their signature", names)
	}
	dist := checkouts[1] + "/dist"
	opened := t.TempDir()
	run(t, exec.Command("sh", "-c", `tar -C "$1" -x -z --strip-components 1 -f "$0"/*.tar.gz`, dist, opened))
	t.Run("it says what it contains", func(t *testing.T) { contents(t, opened) })
	t.Run("its signature", func(t *testing.T) { signature(t, dist, minisign, keys) })
	t.Run("what is installed", func(t *testing.T) { installed(t, dist) })
	t.Run("lintian", func(t *testing.T) { lintian(t, dist) })
}

// forTests are modules that only tests need.
var forTests = []string{
	"github.com/anishathalye/porcupine", "github.com/chromedp/", "github.com/gorilla/websocket", "github.com/hashicorp/cronexpr",
	"github.com/hashicorp/nomad/", "github.com/kubernetes-csi/csi-test", "github.com/onsi/",
	"github.com/rogpeppe/go-internal", "github.com/stretchr/", "go.uber.org/goleak", "pgregory.net/rapid",
}

// contents checks that the bills of materials and the licences have all modules of the programs in dir.
func contents(t *testing.T, dir string) {
	notices := string(check.Must(os.ReadFile(dir + "/THIRD-PARTY-NOTICES"))(t))
	pages := string(check.Must(os.ReadFile(dir + "/sbom/web.cdx.json"))(t)) // what is embedded is no module
	if !strings.Contains(notices, "htmx.org@4.0.1") || !strings.Contains(pages, "pkg:npm/htmx.org@4.0.1") {
		t.Error("the notices or the bill of materials of plugins/web lack htmx")
	}
	for _, program := range []string{
		"pannier", "pannier-agent", "csi-local", "plugins/csi-bridge", "plugins/sids", "plugins/consul-services", "plugins/envoy-bootstrap",
		"plugins/docker-volume", "plugins/web", "plugins/nomad-api",
	} {
		info := check.Must(buildinfo.ReadFile(filepath.Join(dir, program)))(t)
		var bom struct {
			Components []struct{ Name, Version string }
		}
		text := check.Must(os.ReadFile(filepath.Join(dir, "sbom", filepath.Base(program)+".cdx.json")))(t)
		check.NoError(t, json.Unmarshal(text, &bom))
		for _, dep := range info.Deps {
			ours := strings.HasPrefix(dep.Path, root)
			if dep.Replace != nil { // as the tree has it, and no release
				dep = dep.Replace
			}
			if !slices.Contains(bom.Components, struct{ Name, Version string }{dep.Path, dep.Version}) {
				t.Errorf("the bill of materials of %s lacks %s %s", program, dep.Path, dep.Version)
			}
			if !ours && !strings.Contains(notices, "\n"+dep.Path+"@"+dep.Version+"/") {
				t.Errorf("the notices lack the licence of %s %s, which is in %s", dep.Path, dep.Version, program)
			}
			// raft-autopilot has its mocks in the package itself. What of them is linked is never called. nomad-api answers
			// with the types of Nomad's own client.
			if program == "pannier-agent" && strings.HasPrefix(dep.Path, "github.com/stretchr/") ||
				program == "plugins/nomad-api" {
				continue
			}
			if slices.ContainsFunc(forTests, func(prefix string) bool { return strings.HasPrefix(dep.Path, prefix) }) {
				t.Errorf("%s contains %s, which is for tests", program, dep.Path)
			}
		}
	}
}

// signature verifies a release as docs/releasing.md says.
func signature(t *testing.T, dist, minisign, keys string) {
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
	paths := []string{filepath.Join(dist, "SHA256SUMS")}
	for _, end := range []string{".tar.gz", ".deb", ".rpm", ".apk"} {
		found := check.Must(filepath.Glob(dist + "/*" + end))(t)
		if len(found) != 1 {
			t.Fatalf("there are the files %q", found)
		}
		paths = append(paths, found[0])
	}
	for _, path := range paths {
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

// installed opens the package of Debian: its program knows the release's key, and finds what was changed.
func installed(t *testing.T, dist string) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb; not covered: what a package installs is verified with the key that is built in")
	}
	root := t.TempDir()
	run(t, exec.Command("sh", "-c", `dpkg-deb -x "$0"/*.deb "$1"`, dist, root))
	verify := func() (string, error) {
		out, err := exec.Command(root+"/usr/bin/pannier", "self", "verify").CombinedOutput()
		return string(out), err
	}
	if out, err := verify(); err != nil || !strings.Contains(out, "all is as in Pannier v") {
		t.Errorf("as it was installed: %v: %s", err, out)
	}
	byHand := exec.Command("sha256sum", "-c", "lib/pannier/SHA256SUMS")
	byHand.Dir = root + "/usr"
	run(t, byHand)
	plugin := root + "/usr/lib/pannier/plugins/csi-bridge"
	content := check.Must(os.ReadFile(plugin))(t)
	content[len(content)/2] ^= 1
	check.NoError(t, os.WriteFile(plugin, content, 0o755))
	if out, err := verify(); err == nil || !strings.Contains(out, "changed") || !strings.Contains(out, plugin) {
		t.Errorf("a changed plugin: %v: %s", err, out)
	}
}

// lintian checks the package of Debian; packaging/debian/lintian-overrides says what cannot be otherwise.
func lintian(t *testing.T, dist string) {
	if _, err := exec.LookPath("lintian"); err != nil {
		t.Skip("needs lintian; not covered: that the package of Debian is as others are")
	}
	cmd := exec.Command("sh", "-c", `lintian --allow-root --fail-on error,warning "$0"/*.deb`, dist)
	if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "unused-override") {
		t.Errorf("%v\n%s", err, out)
	}
}
