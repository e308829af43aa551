package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/gotest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// fewest is the minimum number of planted bugs.
const fewest = 25

// TestTable checks that each mutant can be planted in the code as it is, and that its test exists.
func TestTable(t *testing.T) {
	root := testbin.Root()
	names := map[string]bool{}
	for _, m := range all() {
		if names[m.name] {
			t.Errorf("two mutants are named %s", m.name)
		}
		names[m.name] = true
		if m.promise == "" || m.old == m.new {
			t.Errorf("mutant %s breaks no promise, or changes nothing", m.name)
		}
		if _, err := m.apply(root); err != nil {
			t.Error(err)
		}
		if err := gotest.Check(filepath.Join(root, m.pkg), m.run); err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
		}
	}
	if len(names) < fewest {
		t.Errorf("there are %d mutants, want at least %d", len(names), fewest)
	}
}

var update = flag.Bool("update", false, "write the section of docs/guarantees.md instead of checking it")

// TestPage checks that docs/guarantees.md ends with the table of the mutants.
func TestPage(t *testing.T) {
	path := filepath.Join(testbin.Root(), "docs/guarantees.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const heading = "\n## Planted bugs\n"
	before, have, found := strings.Cut(string(text), heading)
	if !found {
		t.Fatalf("%s has no section of planted bugs", path)
	}
	want := section()
	if *update {
		err := os.WriteFile(path, []byte(before+heading+want), 0o644)
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != want {
		t.Errorf("%s does not list the mutants as they are: run make docs", path)
	}
}

func section() string {
	var b strings.Builder
	b.WriteString(`
` + "`make mutants`" + ` plants these bugs, one at a time, and checks that the test fails
([how](../CONTRIBUTING.md#planted-bugs)). This table is written by ` + "`make docs`" + `.

| promise | planted bug that breaks it | test that catches it |
|---|---|---|
`)
	for _, m := range all() {
		run := gotest.Names(m.run)
		if m.seeds > 0 {
			run += fmt.Sprintf(", one of %d seeds", m.seeds)
		}
		fmt.Fprintf(&b, "| %s%s | `%s` | `%s` %s |\n", strings.ToUpper(m.promise[:1]), m.promise[1:], m.name,
			strings.TrimPrefix(m.pkg, "./"), run)
	}
	return b.String()
}

// TestVerdicts checks what counts as caught, with the output of go test -json.
func TestVerdicts(t *testing.T) {
	const (
		run    = `{"Action":"run","Test":"TestA"}` + "\n"
		said   = `{"Action":"output","Test":"TestA","Output":"    a_test.go:7: two writers\n"}` + "\n"
		fails  = `{"Action":"fail","Test":"TestA"}` + "\n" + `{"Action":"fail"}` + "\n"
		panics = `{"Action":"output","Test":"TestA","Output":"panic: test timed out after 5m0s\n"}` + "\n"
	)
	status := errors.New("exit status 1")
	for name, c := range map[string]struct {
		out    string
		ended  error
		caught bool
		why    string
	}{
		"an assertion":           {run + said + fails, status, true, "TestA: a_test.go:7: two writers"},
		"it passes":              {run + `{"Action":"pass","Test":"TestA"}` + "\n", nil, false, passes},
		"no test":                {`{"Action":"pass"}` + "\n", nil, false, "no test ran"},
		"a panic":                {run + panics + fails, status, false, "timed out"},
		"the test binary":        {`{"Action":"build-fail"}` + "\n" + fails, status, false, "does not build"},
		"only the package fails": {run + `{"Action":"fail"}` + "\n", status, false, "without an assertion"},
		"a program of the test": {
			run + `{"Action":"output","Test":"TestA","Output":"    b.go:9: go build ./x in /y: exit status 1\n"}` + "\n" + fails,
			status, false, "go build",
		},
	} {
		v := judge([]byte(c.out), c.ended)
		if v.caught != c.caught || !strings.Contains(v.why, c.why) {
			t.Errorf("%s: %+v, want %t because %q", name, v, c.caught, c.why)
		}
	}
}

// TestPlant plants three bugs in the table of access modes: one that its test catches, one that it does not, and one
// that does not build.
func TestPlant(t *testing.T) {
	s := &session{root: testbin.Root(), dir: t.TempDir(), plain: map[string]func() verdict{}}
	m := mutant{
		name: "a", file: "cluster/claim/rules.go", old: "func nobodyElse(_, _ *Claim) bool    { return true }",
		pkg: claimPkg, run: "^TestModeTable$",
	}
	for new, want := range map[string]verdict{
		"func nobodyElse(_, _ *Claim) bool { return false }": {true, "TestModeTable: "},
		"func nobodyElse(_, _ *Claim) bool { return 1 < 2 }": {false, passes},
		"func nobodyElse(_, _ *Claim) bool { return 1 }":     {false, "does not build"},
	} {
		m.new = new
		if v := s.plant(t.Context(), m); v.caught != want.caught || !strings.Contains(v.why, want.why) {
			t.Errorf("%s: %+v, want %+v", new, v, want)
		}
	}
}
