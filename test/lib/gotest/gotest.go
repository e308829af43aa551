// Package gotest runs the tests of this checkout by the go command, and reads what came of them. It is for the programs
// of test that run tests.
package gotest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Event is a line of go test -json (go doc test2json). Output has no line end.
type Event struct {
	Action, Test, Output string
}

// Events reads the output of go test -json.
func Events(out []byte) (all []Event, err error) {
	for lines := json.NewDecoder(bytes.NewReader(out)); lines.More(); {
		var e Event
		if err := lines.Decode(&e); err != nil {
			return nil, fmt.Errorf("go test -json: %w: %s", err, out)
		}
		e.Output = strings.TrimRight(e.Output, "\n")
		all = append(all, e)
	}
	return all, nil
}

// Command returns a command in the checkout at root, with these variables added to the environment. It is interrupted
// with ctx, and killed when it has not ended a minute later.
func Command(ctx context.Context, root string, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	return cmd
}

// Main runs a program of test until it ends or a signal interrupts it, and exits with 1 unless it is ok.
func Main(name string, run func(ctx context.Context) (ok bool, err error)) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ok, err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// Assertion matches the first line of what t.Error, t.Fatal or t.Log prints.
var Assertion = regexp.MustCompile(`^\s+[\w-]+\.go:\d+: `)

var testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\([tf] \*testing\.[TF]\)`)

// Check returns an error unless a test in the package in dir matches the first part of run, in the form of go test's
// flag -run.
func Check(dir, run string) error {
	name, _, _ := strings.Cut(run, "/")
	want, err := regexp.Compile(name)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, f := range files {
		text, readErr := os.ReadFile(f)
		for _, found := range testFunc.FindAllStringSubmatch(string(text), -1) {
			if want.MatchString(found[1]) {
				return nil
			}
		}
		err = errors.Join(err, readErr)
	}
	return errors.Join(err, fmt.Errorf("no test of %s matches %s", dir, run))
}

// Names returns a test's -run regexp as people read it.
func Names(run string) string {
	return strings.NewReplacer("^", "", "$", "", "(", "", ")", "", "|", ", ").Replace(run)
}
