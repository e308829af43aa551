// Package testns runs a package's tests in a mount namespace of their own, in
// which mounts propagate as they do on a host with systemd.
//
// Without it, every program that makes a namespace meanwhile, in the tests of
// another package say, would get a copy of our mounts and keep our volumes in use
// for as long as it runs.
//
// Nothing that the tests have started outlives them, whatever ends them.
package testns

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// envParent is set in the namespace, to the process that made it.
const envParent = "PANNIER_TEST_NAMESPACE"

// Main is what a package's TestMain calls. It does not return. Without root the
// tests run where they are, and skip what needs root. sideBySide tests run at the same
// time, where nobody says otherwise: most wait for something most of their time; 0:
// as many as there are processors.
func Main(m *testing.M, sideBySide int) {
	if sideBySide > 0 {
		SideBySide(sideBySide)
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

// SideBySide lets so many of a package's tests run at the same time, unless the flag
// -test.parallel says otherwise; a process with this one's arguments does the same. A TestMain
// calls it whose tests mostly wait: else they are as many as there are processors.
func SideBySide(tests int) {
	n := strconv.Itoa(tests)
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", n); err != nil {
		panic(err)
	}
	os.Args = append(os.Args[:1], append([]string{"-test.parallel=" + n}, os.Args[1:]...)...)
}

// prepare gives back what the new namespace got a copy of, since it would keep the
// volumes of others in use, and lets its mounts propagate to the namespaces that are
// made in it.
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
