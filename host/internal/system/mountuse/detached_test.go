package mountuse

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// What was unmounted lazily is in no table. Its users are found by the ID that it had, whatever they have of it.
func TestDetached(t *testing.T) {
	testbin.RequireRoot(t, "mounts that are detached")
	source := t.TempDir() // of a file system with other mounts
	at := filepath.Join(t.TempDir(), "at")
	check.NoError(t, os.Mkdir(at, 0o755)) //nolint:gosec // as a mount point
	program, err := os.ReadFile("/bin/sleep")
	check.NoError(t, err)
	check.NoError(t, os.WriteFile(source+"/program", program, 0o755)) //nolint:gosec // it is one
	check.NoError(t, unix.Mount(source, at, "", unix.MS_BIND, ""))
	detached := false
	defer func() {
		if !detached {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	}()
	table, err := Read(Self)
	check.NoError(t, err)
	n := slices.IndexFunc(table, func(m *mountinfo.Info) bool { return m.Mountpoint == at })
	if n < 0 {
		t.Fatalf("%s is not in the table", at)
	}
	ids := []int{table[n].ID}
	var s Search
	if users, err := s.Detached(ids); err != nil || len(users) != 0 {
		t.Errorf("of a mount that is there: %v, %v", users, err)
	}

	fd, err := unix.Open(at+"/program", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check.NoError(t, err)
	mapped, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	check.NoError(t, err)
	defer func() { _ = unix.Munmap(mapped) }()
	check.NoError(t, unix.Close(fd))
	users := map[int]string{os.Getpid(): " mapped"}
	for script, why := range map[string]string{
		"cd /; exec sleep 1000 <" + at + "/program": " open",
		"exec sleep 1000":                    "its cwd is",
		"cd /; exec " + at + "/program 1000": "its exe is",
	} {
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = at
		check.NoError(t, cmd.Start())
		users[cmd.Process.Pid] = why
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		check.Eventually(t, "it has begun", func() bool {
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
			return err == nil && strings.HasSuffix(string(args), "\x001000\x00")
		})
	}
	check.NoError(t, unix.Unmount(at, unix.MNT_DETACH))
	detached = true
	found, err := s.Detached(ids)
	check.NoError(t, err)
	for _, u := range found {
		if why := users[u.PID]; why == "" || !strings.Contains(u.Why, why) {
			t.Errorf("process %d: %s, want %q", u.PID, u.Why, why)
		}
		delete(users, u.PID)
	}
	if len(users) > 0 {
		t.Errorf("not found: %v", users)
	}
}
