package plugins_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
)

// built returns the path of an example in another language, as its own build makes one file of it.
func built(t *testing.T, example string) string {
	t.Helper()
	return printed(t, example+"/build")
}

// printed returns what a command prints that makes something in the cache. With exit code 3 it lacks a program for it.
func printed(t *testing.T, command string) string {
	t.Helper()
	testbin.CacheDir(t)
	cmd := exec.Command(command)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skipf("%s; not covered: a plugin in another language", strings.TrimSpace(stderr.String()))
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// A plugin that is not written in Go works like any other.
func TestNodeUnderAnAgent(t *testing.T) {
	t.Parallel()
	serves(t, "node-dirs", built(t, "node-dirs"))
}
