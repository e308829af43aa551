package consul

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
)

// Binary returns the path of Consul's program. If it is not in the cache it is built, which takes minutes.
// Concurrent test processes build it once.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := build(testbin.CacheDir(t))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func build(cache string) (path string, err error) {
	lock, err := os.OpenFile(filepath.Join(cache, "consul.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", fmt.Errorf("open the lock of Consul's build: %w", err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock Consul's build: %w", err)
	}
	// Another version than the usual one is a tool of its own: consul-1.22.
	tool := cmp.Or(os.Getenv("PANNIER_TEST_CONSUL"), "consul")
	cmd := exec.Command(filepath.Join(testbin.Root(), "tools", "tool"), tool)
	var messages strings.Builder
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("build Consul: %w\n%s", err, messages.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// cleanEnv returns the environment without Consul's own variables.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "CONSUL_") {
			env = append(env, kv)
		}
	}
	return env
}
