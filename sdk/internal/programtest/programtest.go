// Package programtest builds the plugins below testdata that the SDK's tests run as processes.
package programtest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
)

var (
	mu    sync.Mutex
	built = map[string]string{} // by folder
)

// Build compiles the main package in dir and returns the program's path. The program is in the user's cache
// directory, so that the go command skips the link when nothing has changed. Tests with the race detector get a
// program with it.
func Build(t testing.TB, dir string) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if path, ok := built[dir]; ok {
		return path
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	args := []string{"build", "-ldflags=-s -w"}
	if raceEnabled() {
		args = append(args, "-race")
	}
	name := fmt.Sprintf("%s-%.8x", filepath.Base(abs), sha256.Sum256(fmt.Append(nil, abs, args)))
	path := filepath.Join(cache, "pannier", "test-bin", name)
	cmd := exec.Command("go", append(args, "-o", path, ".")...)
	cmd.Dir = abs
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build in %s: %v\n%s", abs, err, out)
	}
	built[dir] = path
	return path
}

func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
