package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/test/lib/check"
)

// nobody is the user that runs the programs and prepares their destinations.
const nobody = 65534

// A user who can write in a volume, or in a directory above a destination, must not choose what the host's root mounts
// on, or where it makes directories.
func TestDestinationsThatAUserHasPrepared(t *testing.T) {
	requireRoot(t)
	for name, c := range map[string]struct {
		// prepare makes what the user has prepared in dir, which root owns.
		prepare     func(dir string) error
		destination string
		block       bool
		want        string
	}{
		"a link in a volume of the workload": {
			func(dir string) error { return os.Symlink(dir+"/etc", dir+"/volume/inner") }, "data/inner", false, "symbolic link",
		},
		"a link above the destination": {
			func(dir string) error { return os.Symlink(dir+"/etc", dir+"/link") }, "link/sub", false, "symbolic link",
		},
		"a link in the place of a file": {
			func(dir string) error { return os.Symlink(dir+"/etc/passwd", dir+"/volume/file") }, "data/file", true, "symbolic link",
		},
		"a directory of a user": {
			func(dir string) error { return mkdirOf(dir+"/home", 0o755, nobody) }, "home/new/data", false, "user 65534 can write",
		},
		"a directory of everyone": {
			func(dir string) error { return mkdirOf(dir+"/shared", 0o777, 0) }, "shared/data", false, "everyone can write",
		},
		"a directory that an access control list opens": {
			func(dir string) error { return errors.Join(os.Mkdir(dir+"/acl", 0o755), allow(dir+"/acl", nobody)) },
			"acl/new", false, "access control list",
		},
		"a user's directory in a sticky one": {
			func(dir string) error {
				return errors.Join(mkdirOf(dir+"/tmp", 0o1777, 0), mkdirOf(dir+"/tmp/data", 0o755, nobody))
			}, "tmp/data", false, "everyone can write",
		},
		"root's directory in a user's sticky one": { // whoever owns that may rename what is in it
			func(dir string) error {
				return errors.Join(mkdirOf(dir+"/own", 0o1755, nobody), mkdirOf(dir+"/own/data", 0o755, 0))
			}, "own/data", false, "user 65534 can write",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			check.NoError(t, mkdirOf(dir+"/volume", 0o755, nobody))
			check.NoError(t, mkdirOf(dir+"/etc", 0o755, 0))
			check.NoError(t, os.WriteFile(dir+"/etc/passwd", nil, 0o644))
			check.NoError(t, c.prepare(dir))
			source := dir + "/volume"
			if c.block {
				source = dir + "/etc/passwd"
			}
			p, err := Start(child.Plan{Command: "true", Mounts: []child.Mount{
				{Source: dir + "/volume", Destination: dir + "/data"},
				{Source: source, Destination: filepath.Join(dir, c.destination), Block: c.block},
			}})
			if err == nil {
				mounts, _ := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.PID()))
				p.Abort()
				t.Fatalf("it is bound:\n%s", mounts)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			for _, made := range []string{"etc/sub", "home/new", "acl/new"} {
				if _, err := os.Lstat(filepath.Join(dir, made)); err == nil {
					t.Errorf("%s was made on the host", made)
				}
			}
		})
	}
}

// A driver in a container can exchange its directories with links: a workload does not get what they lead to.
func TestAVolumesPathThatIsALink(t *testing.T) {
	requireRoot(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	check.NoError(t, err)
	check.NoError(t, errors.Join(os.MkdirAll(dir+"/etc/data", 0o755), os.MkdirAll(dir+"/csi/d/data", 0o755),
		os.Symlink("../etc", dir+"/csi/link")))
	for source, want := range map[string]bool{"/csi/d/data": true, "/csi/link/data": false} {
		p, err := Start(child.Plan{Command: "true", VolumesDir: dir + "/csi", Mounts: []child.Mount{
			{Source: dir + source, Destination: dir + "/mnt"},
		}})
		if err == nil {
			p.Abort()
		}
		if (err == nil) != want {
			t.Errorf("%s is bound: %t, %v", source, err == nil, err)
		}
	}
}

// mkdirOf makes a directory with exactly this mode and owner.
func mkdirOf(path string, mode uint32, uid int) error {
	return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, uid, uid), unix.Chmod(path, mode))
}

// allow gives a user all rights on a directory of root by an access control list (acl(5)), in the kernel's encoding:
// version 2, then tag, rights and id of the owner, the user, the group, the mask, and others.
func allow(path string, uid uint32) error {
	list := binary.LittleEndian.AppendUint32(nil, 2)
	const none = 1<<32 - 1
	for _, e := range [][3]uint32{{1, 7, none}, {2, 7, uid}, {4, 5, none}, {16, 7, none}, {32, 5, none}} {
		list = binary.LittleEndian.AppendUint16(list, uint16(e[0]))
		list = binary.LittleEndian.AppendUint16(list, uint16(e[1]))
		list = binary.LittleEndian.AppendUint32(list, e[2])
	}
	return unix.Setxattr(path, "system.posix_acl_access", list, 0)
}

// A volume gives nobody root, even if somebody has put a set-uid program into it; and a session of its own keeps the
// program from typing into the caller's terminal.
func TestNoNewPrivileges(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	check.NoError(t, os.Mkdir(dir+"/volume", 0o755))
	plan := child.Plan{
		Env:    []string{"PATH=" + os.Getenv("PATH")},
		User:   &child.User{UID: nobody, GID: nobody, Groups: []int{nobody}},
		Mounts: []child.Mount{{Source: dir + "/volume", Destination: dir + "/data"}},
	}
	script := `
grep -q '^NoNewPrivs:.*1$' /proc/self/status || exit 1
set -- $(cat /proc/$$/stat)
test "$6" = $$ || exit 3
grep -F " ` + dir + `/data " /proc/self/mountinfo | grep nosuid | grep -q nodev || exit 2
exit 42`
	if code := run(t, plan, script); code != 42 {
		t.Fatalf("exit code %d", code)
	}
	plan.Mounts[0].SUID, plan.Mounts[0].Dev = true, true // by the volume's definition
	if code := run(t, plan, script); code != 2 {
		t.Fatalf("exit code %d of a volume whose definition allows both", code)
	}
}
