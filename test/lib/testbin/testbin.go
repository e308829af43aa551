// Package testbin builds this module's programs for tests and checks what the machine allows. It is for tests
// only.
package testbin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Root returns the top directory of the checkout.
func Root() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("testbin: no caller information")
	}
	return filepath.Join(filepath.Dir(file), "..", "..", "..")
}

// CacheDir returns a directory for things that are built once and used by many test runs. It is outside the tree:
// $PANNIER_CACHE, or pannier in the user's cache directory.
func CacheDir(t testing.TB) string {
	t.Helper()
	_ = os.Getenv(envRun) // read the variable, so that go test does not reuse a result
	dir := os.Getenv("PANNIER_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			base = os.TempDir()
		}
		dir = filepath.Join(base, "pannier")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatalf("make the cache folder: %v", err)
	}
	return dir
}

// Build compiles one main package of this tree, named by its directory such as "drivers/csi-local", and returns
// the program's path. Concurrent callers, in other test processes too, build it once: the go command skips the
// link if the program is up to date.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	return build(t, Root(), "./"+pkg, filepath.Base(pkg))
}

// BuildTags is Build with build tags. Its programs are in a directory of their own.
func BuildTags(t testing.TB, pkg string, tags ...string) string {
	t.Helper()
	all := strings.Join(tags, ",")
	return build(t, Root(), "./"+pkg, filepath.Join(all, filepath.Base(pkg)), "-tags", all)
}

// BuildVersion is Build of a program that reports another version: a plugin, whose own is in its file VERSION, or one
// whose version the linker sets.
func BuildVersion(t testing.TB, pkg, version string) string {
	t.Helper()
	name, own := filepath.Join(version, filepath.Base(pkg)), filepath.Join(Root(), pkg, "VERSION")
	if _, err := os.Stat(own); errors.Is(err, os.ErrNotExist) {
		return build(t, Root(), "./"+pkg, name, "-ldflags=-s -w -X main.version=v"+version)
	}
	dir := t.TempDir()
	file, overlay := filepath.Join(dir, "VERSION"), filepath.Join(dir, "overlay.json")
	list, err := json.Marshal(map[string]any{"Replace": map[string]string{own: file}})
	if err = errors.Join(err, os.WriteFile(file, []byte(version), 0o600), os.WriteFile(overlay, list, 0o600)); err != nil {
		t.Fatal(err)
	}
	return build(t, Root(), "./"+pkg, name, "-overlay="+overlay)
}

// Pannier builds pannier with pannier-agent beside it, as make build does, and returns its path.
func Pannier(t testing.TB) string {
	t.Helper()
	Build(t, "host/cmd/pannier-agent")
	return Build(t, "host/cmd/pannier")
}

// BuildDir compiles the main package in a directory that may be in another module, such as a fixture below
// testdata.
func BuildDir(t testing.TB, dir string) string {
	t.Helper()
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	return build(t, abs, ".", "fixture-"+strings.ReplaceAll(strings.Trim(abs, "/"), "/", "-"))
}

func build(t testing.TB, dir, pkg, name string, flags ...string) string {
	t.Helper()
	bin := os.Getenv(envBin)
	if bin == "" {
		bin = filepath.Join(CacheDir(t), "test-bin", fmt.Sprintf("%x", hash(Root())))
	}
	if raceEnabled {
		bin = filepath.Join(bin, "race")
		flags = append(flags, "-race")
	}
	out := filepath.Join(bin, name)
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		t.Fatal(err)
	}
	unlock := lock(t, out+".lock")
	defer unlock()
	// Without debugging tables the program is linked, copied and hashed faster.
	args := append([]string{"build", "-ldflags=-s -w", "-o", out}, flags...)
	if _, done := built.Load(out); done {
		return out
	}
	stamp := out + ".run"
	run := []byte(os.Getenv(envRun))
	if last, err := os.ReadFile(stamp); err == nil && len(run) > 0 && bytes.Equal(last, run) {
		built.Store(out, true)
		return out
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = dir
	if msg, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s in %s: %v\n%s", pkg, dir, err, msg)
	}
	if err := os.WriteFile(stamp, run, 0o644); err != nil {
		t.Fatal(err)
	}
	built.Store(out, true)
	return out
}

// envRun names an environment variable that has a different value in each `make test`. A program that one
// package has built is up to date for all other packages with the same value. If it is empty, each package
// asks the go command. The go command records that a test has read the variable, and does not reuse a cached
// test result if the value differs.
const envRun = "PANNIER_TEST_RUN"

// envBin names an environment variable with a directory for the built programs, instead of one in the cache.
// make mutants uses it to build programs with planted bugs.
const envBin = "PANNIER_TEST_BIN"

// built caches the paths of the programs that this process has built.
var built sync.Map

// RequireRoot skips the test if it does not run as root, and says what is not covered then.
func RequireRoot(t testing.TB, notCovered string) {
	t.Helper()
	_ = os.Getenv(envRun) // read the variable, so that go test does not reuse the result of a run as another user
	if os.Geteuid() != 0 {
		t.Skipf("needs root (mounts, loop devices); not covered: %s", notCovered)
	}
}

// lock takes an exclusive flock on path, across processes.
func lock(t testing.TB, path string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatalf("lock %s: %v", path, err)
	}
	return func() { f.Close() }
}

func hash(s string) uint32 {
	h := uint32(2166136261)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return h
}
