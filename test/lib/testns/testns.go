// Package testns runs a package's tests in their own mount namespace, in which mounts propagate as on a host with
// systemd.
//
// Without it, every program that makes a namespace meanwhile, such as in another package's tests, would get a copy
// of our mounts and keep our volumes in use for as long as it runs.
//
// No process of the tests outlives them, however they end.
package testns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
)

// envParent is set in the namespace, to the process that made it.
const envParent = "PANNIER_TEST_NAMESPACE"

// detachOthers unmounts what is mounted below $1, and forgets it.
const detachOthers = `
while read -r _ _ _ _ path _; do
	case $path in "$1"/*) echo "$path" ;; esac
done </proc/self/mountinfo | sort -r | while read -r path; do umount -l "$path" || true; done
shift
`

// Unshared is a shell that runs a script (sh -e) in a private mount namespace, a copy of the tests' without what is
// mounted below their temporary directory: the copies would keep other tests' volumes in use.
func Unshared(script string, args ...string) (*exec.Cmd, error) {
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return nil, err
	}
	shell := []string{"--mount", "--propagation", "private", "sh", "-ec", detachOthers + script, "sh", tmp}
	return exec.Command("unshare", append(shell, args...)...), nil
}

// Main is called by a package's TestMain. It does not return. Without root the tests run in the present namespace,
// and skip what needs root. sideBySide tests run in parallel unless the command line says otherwise, because most
// tests mostly wait; 0: as many as there are processors.
func Main(m *testing.M, sideBySide int) {
	if sideBySide > 0 {
		check.SideBySide(sideBySide)
	}
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	switch os.Getenv(envParent) {
	case strconv.Itoa(os.Getppid()): // the first process in it
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the tests' mount namespace:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	case "":
		code, err := runInNamespace()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	default: // a process that a test has started from its own program
		os.Exit(m.Run())
	}
}

// prepare unmounts the mounts that the new namespace got a copy of, since it would keep others' volumes in use,
// and lets its mounts propagate to namespaces that are made in it.
func prepare() error {
	loops, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(m.Source, "/dev/loop"), false
	})
	if err != nil {
		return err
	}
	for _, m := range slices.Backward(loops) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", m.Mountpoint, err)
		}
	}
	return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}
