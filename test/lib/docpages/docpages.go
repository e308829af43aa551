// Package docpages reads pages of docs for tests that run their commands, and writes pages that tests generate.
//
// A comment before a code block names it: <!-- run: NAME --> for commands, and another word than run for anything else,
// such as <!-- file: PATH --> for what a file has.
package docpages

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
)

// codeBlock is a code block with the comment before it, if there is one.
var codeBlock = regexp.MustCompile("(?ms)^(?:<!-- ([a-z]+): ([^ \n]+) -->\n)?```([a-z]*)\n(.*?\n)```$")

// Pages are pages of docs.
type Pages struct {
	t      testing.TB
	blocks map[string]string // "PAGE.md, KIND NAME" to the block
	used   map[string]bool
}

// Read reads the pages that match a pattern below docs. When the test has passed, each block with a name must have been
// used, and there must be no shell block without one.
func Read(t testing.TB, pattern string) *Pages {
	t.Helper()
	p := read(t, pattern)
	t.Cleanup(func() {
		if !t.Failed() && !t.Skipped() {
			p.complete()
		}
	})
	return p
}

// Block returns one block of a page of docs.
func Block(t testing.TB, page, kind, name string) string {
	t.Helper()
	return read(t, page).Block(filepath.Base(page), kind, name)
}

func read(t testing.TB, pattern string) *Pages {
	t.Helper()
	p := &Pages{t: t, blocks: map[string]string{}, used: map[string]bool{}}
	found, err := filepath.Glob(filepath.Join(testbin.Root(), "docs", pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("no pages %s: %v", pattern, err)
	}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range codeBlock.FindAllStringSubmatch(string(text), -1) {
			p.add(filepath.Base(path), m[1], m[2], m[3], m[4])
		}
	}
	return p
}

// unnamed is the kind of shell blocks without a name.
const unnamed = "unnamed"

func (p *Pages) add(page, kind, name, language, text string) {
	if kind == "" {
		if language != "sh" {
			return // such as what a command prints
		}
		kind, name = unnamed, text
	}
	where := key(page, kind, name)
	if _, twice := p.blocks[where]; twice && kind != unnamed {
		p.t.Fatalf("docs: %s is there twice", where)
	}
	p.blocks[where] = text
}

func key(page, kind, name string) string { return page + ", " + kind + " " + name }

// Block returns a block by its page, without a folder, and its comment.
func (p *Pages) Block(page, kind, name string) string {
	p.t.Helper()
	where := key(page, kind, name)
	text, ok := p.blocks[where]
	if !ok {
		p.t.Fatalf("docs: there is no %s", where)
	}
	p.used[where] = true
	return text
}

// complete fails for blocks that were not used. Those of the kind shown belong to other tests.
func (p *Pages) complete() {
	p.t.Helper()
	for _, where := range slices.Sorted(maps.Keys(p.blocks)) {
		if !p.used[where] && !strings.Contains(where, ", shown ") {
			p.t.Errorf("docs: this is never run: %s", where)
		}
	}
}

// Generated compares a file of the checkout with the text that a test generates for it, or writes it if update is set.
func Generated(t testing.TB, path, want string, update bool) {
	t.Helper()
	file := filepath.Join(testbin.Root(), path)
	if update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != want {
		t.Errorf("%s is out of date: run make docs", path)
	}
}
