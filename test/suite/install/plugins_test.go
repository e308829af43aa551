package install_test

import (
	"bytes"
	"crypto/sha256"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// A plugin that has not changed has the same bytes in the next build, whatever else has changed: an upgrade of a
// package swaps only what has. Only sids changes here, with its version, beside the agent and the documents.
func TestPluginsThatHaveNotChanged(t *testing.T) {
	tree := copySources(t, testbin.Root())
	build := func(version string) map[string][sha256.Size]byte {
		t.Helper()
		bin := t.TempDir()
		cmd := exec.Command("make", "plugins", "BIN="+bin, "VERSION="+version, "LDFLAGS=-s -w")
		cmd.Dir = tree
		run(t, cmd)
		sums := map[string][sha256.Size]byte{}
		check.NoError(t, filepath.WalkDir(bin, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			sums[filepath.Base(path)] = sha256.Sum256(content)
			return err
		}))
		return sums
	}
	edit := func(name, old, replacement string) {
		t.Helper()
		path := filepath.Join(tree, name)
		text := check.Must(os.ReadFile(path))(t)
		if !bytes.Contains(text, []byte(old)) {
			t.Fatalf("%s lacks %q", name, old)
		}
		check.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte(old), []byte(replacement), 1), 0o755))
	}
	version := check.Must(os.ReadFile(filepath.Join(tree, "plugins/sids/VERSION")))(t)
	first := build("v1.0.0")
	edit("plugins/sids/VERSION", strings.TrimSpace(string(version)), "99.0.0")
	edit("host/cmd/pannier/main.go", "func main() {", "func main() {\n\tprintln(\"another agent\")")
	edit("CHANGELOG.md", "## [Unreleased]", "## [Unreleased]\n\n- More.")
	second := build("v1.1.0")
	if len(first) != 8 || len(second) != 8 {
		t.Fatalf("%d and %d programs", len(first), len(second))
	}
	for name, sum := range first {
		if same := second[name] == sum; same != (name != "sids") {
			t.Errorf("%s has the same bytes: %v", name, same)
		}
	}
}
