package hostpath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

const (
	module = "github.com/kubernetes-csi/csi-driver-host-path"
	// Version is the driver's version, as GetPluginInfo reports it.
	Version = "v1.7.2"
	// sum is the module's go.sum hash. The checksum database is also used if the machine's Go settings allow it;
	// this hash is always checked.
	sum = "h1:Q/xVHE0+JvgExSZGW8BuY36y+eHRUfhyR+bRfAdHoCY="
)

// Build returns the path of the driver's program below cache, and builds it first if necessary. Concurrent
// callers, in other processes too, build it once. The first build needs the module proxy.
func Build(ctx context.Context, cache string) (path string, err error) {
	// The Go version is part of the name, because another compiler builds another program.
	dir := filepath.Join(cache, "hostpath", Version+"-"+runtime.Version())
	bin := filepath.Join(dir, "hostpathplugin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the driver's cache folder: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()

	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	}
	src, err := os.MkdirTemp(dir, "src-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the driver's source: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(src)) }()
	if err := download(ctx, src); err != nil {
		return "", err
	}
	if err := compile(ctx, src, bin); err != nil {
		return "", err
	}
	return bin, nil
}

// download puts the module's verified source into dst. The build needs a copy outside the module cache: the
// driver's go.mod has replace directives, which apply only in a main module, and the build completes its
// go.sum.
func download(ctx context.Context, dst string) error {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@"+Version)
	cmd.Dir = dst // outside any module, so that no go.mod applies
	out, err := cmd.Output()
	// The JSON contains the reason for a failure; go itself only exits with 1.
	var mod struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &mod); jsonErr != nil {
		return fmt.Errorf("download %s@%s: %w", module, Version, errors.Join(err, jsonErr))
	}
	if mod.Error != "" {
		return fmt.Errorf("download %s@%s: %s", module, Version, mod.Error)
	}
	if mod.Sum != sum {
		return fmt.Errorf("download %s@%s: its checksum is %q, want %q", module, Version, mod.Sum, sum)
	}
	if err := os.CopyFS(dst, os.DirFS(mod.Dir)); err != nil {
		return fmt.Errorf("copy %s: %w", mod.Dir, err)
	}
	return nil
}

// compile builds the driver in src. The program gets its final name when it is complete.
func compile(ctx context.Context, src, bin string) error {
	tmp := filepath.Join(src, "hostpathplugin.built")
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X main.version="+Version, "-o", tmp, "./cmd/hostpathplugin")
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s@%s: %w\n%s", module, Version, err, out)
	}
	if err := os.Rename(tmp, bin); err != nil {
		return fmt.Errorf("put the driver into the cache: %w", err)
	}
	return nil
}

// lock takes an exclusive flock on path, across processes.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
