package filesystem

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Programs runs the programs that make and grow file systems. They die with
// the driver, and hold Inherit open until they are gone, so that a successor
// can wait for them.
type Programs struct {
	Inherit *os.File
}

// Format makes a file system on a device. Without force, a device that already
// holds something known is refused by mkfs too.
func (p Programs) Format(ctx context.Context, fsType, device string, force bool) error {
	if err := Supported(fsType); err != nil {
		return err
	}
	// The image is sparse and all zero: discarding it and zeroing its inode
	// tables would only fill the holes.
	args := []string{"-q", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"}
	if fsType == XFS {
		args = []string{"-q", "-K"}
	}
	if force {
		args = append(args, map[string]string{Ext4: "-F", XFS: "-f"}[fsType])
	}
	return p.run(ctx, "mkfs."+fsType, append(args, device)...)
}

// sbin is where programs for the administrator are, whatever PATH the driver
// was started with.
var sbin = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// lookPath is exec.LookPath that also looks in sbin.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, dir := range sbin {
		if err != nil {
			path, err = exec.LookPath(filepath.Join(dir, name))
		}
	}
	return path, err
}

func (p Programs) run(ctx context.Context, name string, args ...string) error {
	// The kernel sends Pdeathsig when the starting thread ends, so keep it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path, err := lookPath(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.Inherit != nil {
		cmd.ExtraFiles = []*os.File{p.Inherit}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w: %s", cmd, err, lastLines(out.String(), 5))
	}
	return nil
}

// lastLines is the end of a program's output on one line.
func lastLines(out string, n int) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
