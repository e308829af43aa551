package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestApply plants bugs in code that was moved, laid out anew and renamed since they were written.
func TestApply(t *testing.T) {
	const code = `package p

// Grant is free() && true, as far as this comment is concerned.
func (s *store) Grant(h holder) bool {
	if   s.free() && // nobody has it
		h.Alive {
		return true
	}
	return false
}

func other() bool { return free() }

const limit = 3
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "b.go"), []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		decl, old, new string
		want           string // part of the changed code, or of the error
		fails          bool
	}{
		"as it stands":           {"store.Grant", "if s.free() && h.Alive {", "if s.free() {", "bool {\n\tif s.free() {\n\t\treturn true", false},
		"a renamed variable":     {"store.Grant", "s.free() && claim.Alive", "s.free() || claim.Alive", "if   s.free() || h.Alive {", false},
		"a renamed field":        {"store.Grant", "s.free() && h.IsAlive", "h.IsAlive", "if   h.Alive {", false},
		"a constant":             {"limit", "limit = 3", "limit = 4", "const limit = 4\n", false},
		"another name, two uses": {"store.Grant", "if s.free() && s.Alive {", "if s.free() {", "0 times", true},
		"names of other code":    {"store.Grant", "if a.b() && s.c {", "if true {", "most names", true},
		"more than once":         {"store.Grant", "return", "panic(0); return", "2 times", true},
		"in a comment":           {"store.Grant", "nobody has it", "", "most names", true},
		"in another function":    {"other", "s.free() && h.Alive", "true", "most names", true},
		"no such function":       {"store.Revoke", "return true", "", "0 declarations", true},
	} {
		path, changed, err := mutant{name: "a", in: ".", decl: c.decl, old: c.old, new: c.new}.apply(dir)
		got := string(changed)
		if err != nil {
			got = err.Error()
		}
		if (err != nil) != c.fails || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q (an error: %t)", name, got, c.want, c.fails)
		}
		if err == nil && path != filepath.Join(dir, "b.go") {
			t.Errorf("%s: in %s", name, path)
		}
	}
}
