package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/gotest"
)

// TestTable checks that each attack says what it has to, and that its test exists.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range all() {
		if a.who == "" || a.tries == "" || a.stops == "" {
			t.Errorf("%v does not say who tries what, and what stops it", a)
		}
		if strings.Contains(a.run, "|") {
			t.Errorf("%v names several tests: make an attack of each", a)
		}
		if seen[a.tries] {
			t.Errorf("%v is there twice", a)
		}
		seen[a.tries] = true
		if err := gotest.Check(filepath.Join(root, a.pkg), a.run); err != nil {
			t.Errorf("%v: %v", a, err)
		}
	}
}

var update = flag.Bool("update", false, "write the table in docs/operations/security.md instead of checking it")

// TestPage checks that docs/operations/security.md has the table of the attacks.
func TestPage(t *testing.T) {
	path := filepath.Join(root, "docs/operations/security.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- attacks -->\n", "<!-- end of attacks -->\n"
	before, rest, found := strings.Cut(string(text), begin)
	have, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no place for the attacks", path)
	}
	want := table()
	if *update {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != want {
		t.Errorf("%s does not list the attacks as they are: run make docs", path)
	}
}

func table() string {
	var b strings.Builder
	b.WriteString("\n| who | tries to | what stops it | test | what remains |\n|---|---|---|---|---|\n")
	last := ""
	for _, a := range all() {
		who := a.who
		if who == last {
			who = ""
		}
		last = a.who
		fmt.Fprintf(&b, "| %s | %s | %s | `%s` %s | %s |\n", who, a.tries, a.stops, strings.TrimPrefix(a.pkg, "./"),
			strings.ReplaceAll(gotest.Names(a.run), "_", " "), a.remains)
	}
	return b.String() + "\n"
}

// TestVerdicts checks what counts as tried, and as worked.
func TestVerdicts(t *testing.T) {
	event := func(action, test string) gotest.Event { return gotest.Event{Action: action, Test: test} }
	said := func(test string) gotest.Event {
		return gotest.Event{Action: "output", Test: test, Output: "    a_test.go:7: let in"}
	}
	for name, c := range map[string]struct {
		run    string
		events []gotest.Event
		want   outcome
	}{
		"it is refused":           {"^TestA$", []gotest.Event{event("pass", "TestA")}, outcome{refused: true}},
		"it works":                {"^TestA$", []gotest.Event{said("TestA"), event("fail", "TestA")}, outcome{worked: true, why: ": a_test.go:7: let in"}},
		"one of two works":        {"^Test[AB]$", []gotest.Event{event("fail", "TestA"), event("pass", "TestB")}, outcome{worked: true}},
		"it is skipped":           {"^TestA$", []gotest.Event{said("TestA"), event("skip", "TestA")}, outcome{why: ": a_test.go:7: let in"}},
		"part of it is skipped":   {"^TestA$", []gotest.Event{event("skip", "TestA/b"), event("pass", "TestA")}, outcome{}},
		"it does not exist":       {"^TestA$", []gotest.Event{event("pass", "TestAB")}, outcome{why: ": no such test ran"}},
		"its subtest is refused":  {"^TestA$/^b$", []gotest.Event{event("pass", "TestA/b"), event("fail", "TestA/c"), event("fail", "TestA")}, outcome{refused: true}},
		"its subtest is gone":     {"^TestA$/^b$", []gotest.Event{event("pass", "TestA/c"), event("pass", "TestA")}, outcome{why: ": no such test ran"}},
		"it does not get so far":  {"^TestA$/^b$", []gotest.Event{said("TestA"), event("fail", "TestA")}, outcome{why: ": a_test.go:7: let in"}},
		"the test does not build": {"^TestA$", []gotest.Event{event("build-fail", "")}, outcome{why: ": the test does not build: go vet the package"}},
	} {
		if got := (attack{run: c.run}).judge(c.events); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
