package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/pannier/pannier/test/lib/gotest"
)

// session tests mutants of the checkout at root. It writes its files to dir.
type session struct {
	root, dir string

	mu    sync.Mutex
	plain map[string]func() verdict // by test: how it ends on the code as it is
}

// verdict reports whether a mutant was caught, or a test failed, and why or why not.
type verdict struct {
	caught bool
	why    string
}

// plant tests one mutant.
func (s *session) plant(ctx context.Context, m mutant) verdict {
	path, changed, err := m.apply(s.root)
	if err != nil {
		return verdict{why: err.Error()}
	}
	dir := filepath.Join(s.dir, m.name)
	overlay, err := m.overlay(path, dir, changed)
	if err != nil {
		return verdict{why: err.Error()}
	}
	defer os.RemoveAll(dir)
	env := []string{"GOFLAGS=" + overlay, "PANNIER_TEST_BIN=" + filepath.Join(dir, "bin"), "PANNIER_TEST_RUN="}
	build := s.command(ctx, env, "go", "build", "./"+m.in)
	if out, err := build.CombinedOutput(); err != nil {
		return verdict{why: fmt.Sprintf("it does not build: %v: %s", err, out)}
	}
	caught, first := 0, ""
	for _, args := range m.runs() {
		if v := s.unmutated(ctx, m, args); v.why != passes {
			return verdict{why: "its test fails on the code as it is: " + v.why}
		}
		v := s.goTest(ctx, env, m, args)
		if v.caught {
			caught++
		}
		if first == "" || v.caught && caught == 1 {
			first = v.why
		}
	}
	if m.seeds > 0 {
		first = fmt.Sprintf("with %d of %d seeds: %s", caught, m.seeds, first)
	}
	return verdict{caught: caught > 0, why: first}
}

// runs returns the flags of the test binary for each run.
func (m mutant) runs() (all [][]string) {
	if m.seeds == 0 {
		return [][]string{m.args}
	}
	for seed := range m.seeds {
		all = append(all, append(append([]string{}, m.args...), fmt.Sprintf("-seed=%d", seed+1)))
	}
	return all
}

// overlay writes the changed content of the file at path into dir, and returns the flag with which the go command reads
// it.
func (m mutant) overlay(path, dir string, changed []byte) (flag string, err error) {
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return "", err
	}
	file, list := filepath.Join(dir, filepath.Base(path)), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{path: file}})
	if err != nil {
		return "", err
	}
	return "-overlay=" + list, errors.Join(os.WriteFile(file, changed, 0o600), os.WriteFile(list, replace, 0o600))
}

func (s *session) command(ctx context.Context, env []string, name string, args ...string) *exec.Cmd {
	return gotest.Command(ctx, s.root, env, name, args...)
}

// unmutated runs a mutant's test on the code as it is, once for all mutants with the same test.
func (s *session) unmutated(ctx context.Context, m mutant, args []string) verdict {
	test := m.pkg + " " + m.run + " " + strings.Join(args, " ")
	s.mu.Lock()
	once := s.plain[test]
	if once == nil {
		once = sync.OnceValue(func() verdict { return s.goTest(ctx, nil, m, args) })
		s.plain[test] = once
	}
	s.mu.Unlock()
	return once()
}

// passes is the usual reason why a mutant is not caught.
const passes = "the test passes"

// timeout bounds one run of a test. A run that has not even ended a minute later is given up: its process may hang in
// the kernel.
const timeout = 5 * time.Minute

// goTest runs the mutant's test once. caught: a test failed, by an assertion.
func (s *session) goTest(ctx context.Context, env []string, m mutant, args []string) verdict {
	ctx, cancel := context.WithTimeout(ctx, timeout+time.Minute)
	defer cancel()
	cmd := s.command(ctx, env, "go", append([]string{
		"test", "-json", "-count=1", "-failfast", "-vet=off", "-timeout", timeout.String(), "-run", m.run, m.pkg,
	}, args...)...)
	out, err := cmd.Output()
	return judge(out, err)
}

var (
	// broken is a line of a test that did not fail by an assertion. The lines of a failed assertion are indented.
	broken = regexp.MustCompile(`^(panic: .*|fatal error: .*)`)
	// unbuilt is the message of testbin where a program could not be built.
	unbuilt = regexp.MustCompile(`go build .* in .*: exit status`)
)

// judge reads the output of go test -json.
func judge(out []byte, ended error) verdict {
	said, failed, ran := map[string]string{}, "", false
	events, err := gotest.Events(out)
	if err != nil {
		return verdict{why: err.Error()}
	}
	for _, e := range events {
		text := e.Output
		switch {
		case e.Action == "build-fail":
			return verdict{why: "the test does not build: go vet the package"}
		case e.Action == "run":
			ran = true
		case e.Action == "fail" && failed == "" && said[e.Test] != "":
			failed = e.Test
		case broken.MatchString(text), unbuilt.MatchString(text):
			return verdict{why: "not by an assertion: " + strings.TrimSpace(text)}
		case said[e.Test] == "" && e.Test != "" && gotest.Assertion.MatchString(text):
			said[e.Test] = strings.TrimSpace(text)
		}
	}
	switch {
	case !ran:
		return verdict{why: fmt.Sprintf("no test ran: %v", ended)}
	case failed != "":
		return verdict{caught: true, why: failed + ": " + said[failed]}
	case ended != nil:
		return verdict{why: fmt.Sprintf("the test ended without an assertion: %v", ended)}
	default:
		return verdict{why: passes}
	}
}
