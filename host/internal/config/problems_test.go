package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestProblemsAreBoundedAndCounted(t *testing.T) {
	var p Problems
	for i := range 25 {
		p = append(p, Problem{File: "a.hcl", Line: 25 - i, Text: fmt.Sprint("problem ", i)})
	}
	text := p.err().Error()
	if lines := strings.Split(text, "\n"); len(lines) != 21 || lines[20] != "and 5 more" ||
		lines[0] != "a.hcl:1: problem 24" {
		t.Fatalf("got:\n%s", text)
	}
}

// wantProblems fails unless the error has exactly these lines.
func wantProblems(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("accepted; want:\n%s", strings.Join(want, "\n"))
	}
	if got := err.Error(); got != strings.Join(want, "\n") {
		t.Fatalf("got:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}
