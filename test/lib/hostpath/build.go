package hostpath

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
)

// The versions of the driver, as GetPluginInfo reports them.
const (
	Version = "v1.7.2"
	// FirstVersion is the driver as it was for CSI 1.0, in another module. It keeps its volumes in memory and in /tmp.
	FirstVersion = "v1.0.2"
)

// release says how a version is built.
type release struct {
	version string
	module  string
	// sum is the module's go.sum hash. The checksum database is also used if the machine's Go settings allow it;
	// this hash is always checked.
	sum string
	// pkg is the program's package, and variable the one with its version.
	pkg, variable string
	// mod and sums are go.mod and go.sum of a module that has none.
	mod, sums []byte
}

//go:embed first.mod
var firstMod []byte

//go:embed first.sum
var firstSums []byte

var (
	newest = release{
		version: Version, module: "github.com/kubernetes-csi/csi-driver-host-path",
		sum: "h1:Q/xVHE0+JvgExSZGW8BuY36y+eHRUfhyR+bRfAdHoCY=",
		pkg: "./cmd/hostpathplugin", variable: "main.version",
	}
	first = release{
		version: FirstVersion, module: "github.com/kubernetes-csi/drivers",
		sum: "h1:kaEAMfo+W5YFr23yedBIY+NGnNjr6/PbPzx7N4GYgiQ=",
		pkg: "./app/hostpathplugin", variable: "github.com/kubernetes-csi/drivers/pkg/hostpath.vendorVersion",
		mod: firstMod, sums: firstSums,
	}
)

// Build returns the paths of the driver's program and of its first version below cache, and builds them first if
// necessary. Concurrent callers, in other processes too, build them once. The first build needs the module proxy.
func Build(ctx context.Context, cache string) (path, firstPath string, err error) {
	if path, err = newest.build(ctx, cache); err != nil {
		return "", "", err
	}
	firstPath, err = first.build(ctx, cache)
	return path, firstPath, err
}

func (r release) build(ctx context.Context, cache string) (path string, err error) {
	// The Go version is part of the name, because another compiler builds another program.
	dir := filepath.Join(cache, "hostpath", r.version+"-"+runtime.Version())
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
	if err := r.download(ctx, src); err != nil {
		return "", err
	}
	if err := r.compile(ctx, src, bin); err != nil {
		return "", err
	}
	return bin, nil
}

// download puts the module's verified source into dst. The build needs a copy outside the module cache: the
// driver's go.mod has replace directives, which apply only in a main module, and the build completes its
// go.sum.
func (r release) download(ctx context.Context, dst string) error {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", r.module+"@"+r.version)
	cmd.Dir = dst // outside any module, so that no go.mod applies
	out, err := cmd.Output()
	// The JSON contains the reason for a failure; go itself only exits with 1.
	var mod struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &mod); jsonErr != nil {
		return fmt.Errorf("download %s@%s: %w", r.module, r.version, errors.Join(err, jsonErr))
	}
	if mod.Error != "" {
		return fmt.Errorf("download %s@%s: %s", r.module, r.version, mod.Error)
	}
	if mod.Sum != r.sum {
		return fmt.Errorf("download %s@%s: its checksum is %q, want %q", r.module, r.version, mod.Sum, r.sum)
	}
	if err := os.CopyFS(dst, os.DirFS(mod.Dir)); err != nil {
		return fmt.Errorf("copy %s: %w", mod.Dir, err)
	}
	if r.mod == nil {
		return nil
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dst, "go.mod"), r.mod, 0o644),
		os.WriteFile(filepath.Join(dst, "go.sum"), r.sums, 0o644))
}

// compile builds the driver in src. The program gets its final name when it is complete.
func (r release) compile(ctx context.Context, src, bin string) error {
	tmp := filepath.Join(src, "hostpathplugin.built")
	cmd := exec.CommandContext(ctx, "go", "build", "-mod=mod", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X "+r.variable+"="+r.version, "-o", tmp, r.pkg)
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s@%s: %w\n%s", r.module, r.version, err, out)
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
