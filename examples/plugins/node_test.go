package plugins_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
)

// built returns the path of the plugin in JavaScript, bundled into one file.
func built(t *testing.T) string {
	t.Helper()
	testbin.CacheDir(t)
	cmd := exec.Command("node-dirs/build")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skipf("%s; not covered: a plugin that is not in Go", strings.TrimSpace(stderr.String()))
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// A plugin that is not written in Go works like any other.
func TestNodeUnderAnAgent(t *testing.T) {
	t.Parallel()
	serves(t, "node-dirs", built(t))
}
