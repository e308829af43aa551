package newplugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

func TestRefused(t *testing.T) {
	full := t.TempDir()
	check.NoError(t, os.WriteFile(filepath.Join(full, "mine"), nil, 0o600))
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
