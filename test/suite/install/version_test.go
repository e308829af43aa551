package install_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// Every tag of a release is a version of the changelog, whose versions are in order.
func TestChangelog(t *testing.T) {
	text := string(check.Must(os.ReadFile(testbin.Root() + "/CHANGELOG.md"))(t))
	headings := regexp.MustCompile(`(?m)^## .*$`).FindAllString(text, -1)
	if len(headings) < 2 || headings[0] != "## [Unreleased]" {
		t.Fatalf("the changelog has no versions after Unreleased: %q", headings)
	}
	form := regexp.MustCompile(`^## \[([0-9]+\.[0-9]+\.[0-9]+(?:-(?:alpha|beta|rc)\.[0-9]+)?)\] - 20[0-9]{2}-[0-9]{2}-[0-9]{2}$`)
	var versions []string
	for _, heading := range headings[1:] {
		match := form.FindStringSubmatch(heading)
		if match == nil {
			t.Fatalf("%q is not ## [X.Y.Z] - DATE", heading)
		}
		if len(versions) > 0 && !lower(t, match[1], versions[len(versions)-1]) {
			t.Errorf("%s comes after %s", match[1], versions[len(versions)-1])
		}
		versions = append(versions, match[1])
	}
	list := exec.Command("git", "tag", "--list", "v[0-9]*")
	list.Dir = testbin.Root()
	for _, tag := range strings.Fields(string(run(t, list))) {
		if !slices.Contains(versions, strings.TrimPrefix(tag, "v")) {
			t.Errorf("the tag %s is no version of the changelog", tag)
		}
	}
}

// Plugins and drivers have versions of their own. One that differs from the tag of its version needs another one.
func TestPluginVersions(t *testing.T) {
	for _, file := range append(check.Must(filepath.Glob(testbin.Root()+"/plugins/*/VERSION"))(t),
		check.Must(filepath.Glob(testbin.Root()+"/drivers/*/VERSION"))(t)...) {
		text := strings.TrimSpace(string(check.Must(os.ReadFile(file))(t)))
		if _, err := version.NewSemver(text); err != nil || strings.HasPrefix(text, "v") {
			t.Errorf("%s has %q: %v", file, text, err)
		}
		dir := check.Must(filepath.Rel(testbin.Root(), filepath.Dir(file)))(t)
		tag := dir + "/v" + text
		git := func(args ...string) error {
			cmd := exec.Command("git", args...)
			cmd.Dir = testbin.Root()
			return cmd.Run()
		}
		if git("rev-parse", "--verify", "-q", "refs/tags/"+tag) == nil && git("diff", "--quiet", tag, "--", dir) != nil {
			t.Errorf("%s differs from the tag %s: give it the next version, in its file VERSION", dir, tag)
		}
	}
}

func lower(t *testing.T, a, b string) bool {
	t.Helper()
	return check.Must(version.NewSemver(a))(t).LessThan(check.Must(version.NewSemver(b))(t))
}

// A build has the version of its tag, and one without a tag a version before the one that comes.
func TestVersion(t *testing.T) {
	dir := t.TempDir()
	check.NoError(t, os.Mkdir(dir+"/tools", 0o755))
	script := check.Must(os.ReadFile(testbin.Root() + "/tools/version"))(t)
	check.NoError(t, os.WriteFile(dir+"/tools/version", script, 0o755))
	log := "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\n## [0.1.0] - 2026-01-01\n"
	check.NoError(t, os.WriteFile(dir+"/CHANGELOG.md", []byte(log), 0o644))
	git := func(args ...string) {
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		cmd.Dir = dir
		run(t, cmd)
	}
	is := func(want string) {
		t.Helper()
		cmd := exec.Command(dir + "/tools/version")
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
		if got := strings.TrimSpace(string(run(t, cmd))); !regexp.MustCompile("^" + want + "$").MatchString(got) {
			t.Errorf("the version is %s, not %s", got, want)
		}
	}
	is(`v0\.2\.0-dev`)
	git("init", "-q")
	git("add", ".")
	git("commit", "-q", "-m", "first")
	git("tag", "-a", "-m", "the SDK's", "sdk/v0.2.0")
	is(`v0\.2\.0-dev\.1\.g[0-9a-f]{7,}`)
	git("tag", "v0.2.0")
	is(`v0\.2\.0`)
	git("commit", "-q", "--allow-empty", "-m", "second")
	is(`v0\.2\.0-1-g[0-9a-f]{7,}`)
	check.NoError(t, os.WriteFile(dir+"/CHANGELOG.md", []byte(log+"more\n"), 0o644))
	is(`v0\.2\.0-1-g[0-9a-f]{7,}-dirty`)
}

// Packages have versions that their managers put in the order in which they are made.
func TestPackageVersions(t *testing.T) {
	ascending := []struct{ version, deb, apk string }{
		{"v0.2.0-dev", "0.2.0~dev", "0.2.0_pre"},
		{"v0.2.0-dev.7.gfbcdef0", "0.2.0~dev.7.gfbcdef0", "0.2.0_pre7"},
		{"v0.2.0-dev.12.gabcdef0", "0.2.0~dev.12.gabcdef0", "0.2.0_pre12"},
		{"v0.2.0-rc.1", "0.2.0~rc.1", "0.2.0_rc1"},
		{"v0.2.0-rc.1-2-gabcdef0", "0.2.0~rc.1+2.gabcdef0", "0.2.0_rc1_p2"},
		{"v0.2.0-rc.10", "0.2.0~rc.10", "0.2.0_rc10"},
		{"v0.2.0", "0.2.0", "0.2.0"},
		{"v0.2.0-4-gfbcdef0", "0.2.0+4.gfbcdef0", "0.2.0_p4"},
		{"v0.2.0-12-gabcdef0-dirty", "0.2.0+12.gabcdef0.dirty", "0.2.0_p12"},
		{"v0.2.1", "0.2.1", "0.2.1"},
	}
	for n, want := range ascending {
		of := func(packager string) string {
			return strings.TrimSpace(string(run(t, exec.Command(testbin.Root()+"/tools/version", packager, want.version))))
		}
		if deb, rpm, apk := of("deb"), of("rpm"), of("apk"); deb != want.deb || rpm != want.deb || apk != want.apk {
			t.Errorf("%s is %s for dpkg, %s for rpm, %s for apk", want.version, deb, rpm, apk)
		}
		if n == 0 {
			continue
		}
		before := ascending[n-1]
		if _, err := exec.LookPath("dpkg"); err != nil {
			t.Log("there is no dpkg; not covered: its order")
		} else if err := exec.Command("dpkg", "--compare-versions", before.deb, "lt", want.deb).Run(); err != nil {
			t.Errorf("dpkg does not put %s before %s: %v", before.deb, want.deb, err)
		}
		if _, err := exec.LookPath("rpm"); err != nil {
			t.Log("there is no rpm; not covered: its order")
			continue
		}
		order := exec.Command("rpm", "--eval", `%{lua:print(rpm.vercmp("`+before.deb+`", "`+want.deb+`"))}`)
		if got := strings.TrimSpace(string(run(t, order))); got != "-1" {
			t.Errorf("rpm compares %s with %s: %s, not -1", before.deb, want.deb, got)
		}
	}
}
