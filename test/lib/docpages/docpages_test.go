package docpages_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestRecipes fails for a page of docs/recipes that is not in the index, or that no test follows.
func TestRecipes(t *testing.T) {
	dir := filepath.Join(testbin.Root(), "docs/recipes")
	index, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	err = filepath.WalkDir(filepath.Join(testbin.Root(), "test/suite"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		tests.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil || len(pages) < 2 {
		t.Fatalf("the pages are %q: %v", pages, err)
	}
	for _, path := range pages {
		page := filepath.Base(path)
		if page == "README.md" {
			continue
		}
		if !strings.Contains(string(index), "]("+page+")") {
			t.Errorf("docs/recipes/README.md has no link to %s", page)
		}
		if !strings.Contains(tests.String(), `"`+page+`"`) {
			t.Errorf("no test follows docs/recipes/%s", page)
		}
	}
}

// TestBlock reads a block as it stands on its page.
func TestBlock(t *testing.T) {
	if got := docpages.Block(t, "recipes/ansible.md", "run", "play"); got !=
		"ansible-playbook --inventory hosts.ini pannier.yaml\n" {
		t.Errorf("got %q", got)
	}
}
