package newplugin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
)

// The files generated for each kind build, are formatted and pass their tests unchanged, in a directory
// outside the repository.
func TestEachKindBuildsAndTests(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "my-"+kind)
			files, err := Write(Plugin{Kind: kind, Dir: dir, SDKDir: testbin.Root()})
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"main.go", "plugin.go", "plugin_test.go", ".gitignore", "go.mod"} {
				if info, err := os.Stat(filepath.Join(dir, want)); err != nil || info.Size() == 0 {
					t.Errorf("%s of %v: %v", want, files, err)
				}
			}
			if main, err := os.ReadFile(filepath.Join(dir, "main.go")); err != nil || strings.Count(string(main), "\n") > 50 {
				t.Errorf("main.go has more than 50 lines, or: %v", err)
			}
			run(t, dir, "go", "mod", "tidy")
			run(t, dir, "go", "build", ".")
			run(t, dir, "go", "vet", ".")
			run(t, dir, "go", "test", "-count=1", ".")
			if out := run(t, dir, "gofmt", "-l", "."); out != "" {
				t.Errorf("gofmt would change %s", out)
			}
			// Run by hand, the binary prints what it is.
			out, err := exec.Command(filepath.Join(dir, "my-"+kind)).CombinedOutput()
			if want := "my-" + kind + " 0.1.0 is a plugin for pannier (" + kind + ".v1)"; err == nil ||
				!strings.Contains(string(out), want) {
				t.Errorf("run by hand: %s, %v", out, err)
			}
		})
	}
}

func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOSUMDB=off", "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func TestRefused(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	empty := func() string { return filepath.Join(t.TempDir(), "p") }
	for name, tc := range map[string]struct {
		p    Plugin
		says string
	}{
		"a kind that there is not": {Plugin{Kind: "network", Dir: empty()}, "storage"},
		"a folder with something":  {Plugin{Kind: "storage", Dir: full}, "not empty"},
		"a file":                   {Plugin{Kind: "storage", Dir: filepath.Join(full, "mine")}, "not a directory"},
		"a name that is none":      {Plugin{Kind: "storage", Dir: filepath.Join(full, "a b")}, `"a b"`},
		"a module that is none":    {Plugin{Kind: "storage", Dir: empty(), Module: "a b"}, `"a b"`},
		"a checkout of nothing":    {Plugin{Kind: "storage", Dir: empty(), SDKDir: full}, "go.mod"},
		"a checkout of another": {
			Plugin{Kind: "storage", Dir: empty(), SDKDir: filepath.Join(testbin.Root(), "tools")},
			"not a checkout",
		},
	} {
		files, err := Write(tc.p)
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, %v", name, files, err)
		}
	}
	if entries, err := os.ReadDir(full); err != nil || len(entries) != 1 {
		t.Errorf("files were written to a refused directory: %v, %v", entries, err)
	}
}

func TestWithARelease(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "p")
	if _, err := Write(Plugin{
		Kind: "storage", Dir: dir, Module: "git.example.com/me/p",
		SDKVersion: "v1.2.3",
	}); err != nil {
		t.Fatal(err)
	}
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	want := "module git.example.com/me/p\n\ngo 1.26.8\n\nrequire " + SDK + " v1.2.3\n"
	if err != nil || string(mod) != want {
		t.Errorf("%v, %q", err, mod)
	}
}
