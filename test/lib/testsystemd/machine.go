package testsystemd

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testbin"
)

// systemd is the program that is process 1.
const systemd = "/usr/lib/systemd/systemd"

// wait bounds a boot, and the end of what a machine leaves.
const wait = 60 * time.Second

//go:embed root.sh
var rootScript string

// Machine is a systemd, and what it runs.
type Machine struct {
	t      testing.TB
	dir    string
	cgroup string
	init   *exec.Cmd
	boot   io.WriteCloser
}

// New prepares a machine that is not booted yet, or skips the test if that is not possible; notCovered says what is not
// tested then.
func New(t testing.TB, notCovered string) *Machine {
	t.Helper()
	testbin.RequireRoot(t, notCovered)
	for _, program := range []string{systemd, "unshare", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s (Debian: systemd, util-linux); not covered: %s", program, notCovered)
		}
	}
	groups, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil {
		t.Fatal(err)
	}
	if len(groups) == 0 {
		t.Skipf("needs cgroup v2; not covered: %s", notCovered)
	}
	dir, err := os.MkdirTemp("", "ps-")
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{t: t, dir: dir, cgroup: filepath.Join(groups[0].Mountpoint, "pannier-test-"+filepath.Base(dir))}
	t.Cleanup(m.end)
	if err := os.Mkdir(m.cgroup, 0o755); err != nil {
		t.Skipf("no control group can be made; not covered: %s: %v", notCovered, err)
	}
	if err := m.prepare(); err != nil {
		t.Skipf("no machine can be made here; not covered: %s: %v", notCovered, err)
	}
	return m
}

// prepare starts the process that becomes systemd, and waits until its root is there.
func (m *Machine) prepare() error {
	cmd := exec.Command("sh", "-c", rootScript, "sh", m.dir, m.cgroup)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setsid:     true,
	}
	log, err := os.Create(m.log())
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	m.init, m.boot = cmd, in
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		said, _ := os.ReadFile(m.log())
		return fmt.Errorf("make its root: %q, %w: %s", line, err, said)
	}
	return nil
}

func (m *Machine) log() string { return m.dir + ".log" }

// PowerCycle ends the machine as a power failure does, and boots it again with the files that it had; /tmp and /run are
// empty.
func (m *Machine) PowerCycle() {
	m.t.Helper()
	m.again(func() { _ = m.init.Process.Kill() })
}

// Reboot shuts the machine down in order, and boots it again, as PowerCycle.
func (m *Machine) Reboot() {
	m.t.Helper()
	m.again(func() { _, _ = m.Try("systemctl", "reboot") }) // may be killed before it ends
}

// again boots the machine a second time, once end has brought systemd to its end.
func (m *Machine) again(end func()) {
	m.t.Helper()
	disk, err := os.Open(m.Path("/")) // the file system is there as long as it is open
	if err != nil {
		m.t.Fatal(err)
	}
	defer disk.Close()
	end()
	late := time.AfterFunc(wait, func() { _ = m.init.Process.Kill() })
	_ = m.init.Wait() // by a signal
	if !late.Stop() {
		m.t.Fatalf("systemd does not end within %v", wait)
	}
	m.init = nil
	if err := errors.Join(m.removeGroups(), os.Mkdir(m.cgroup, 0o755)); err != nil {
		m.t.Fatal(err)
	}
	if err := m.prepare(); err != nil {
		m.t.Fatal(err)
	}
	restore := exec.Command("sh", "-ec", `
cp -R -d --preserve=mode,ownership,timestamps,links --sparse=always etc var root mnt opt home srv "$1"
cp -R -d --preserve=mode,ownership,timestamps,links .usr/changes/. "$1/usr"`, "sh", m.Path("/"))
	restore.Dir = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), disk.Fd())
	if out, err := restore.CombinedOutput(); err != nil {
		m.t.Fatalf("restore the files: %v\n%s", err, out)
	}
	m.Boot()
}

// Boot starts systemd, and waits until it has started everything.
func (m *Machine) Boot() {
	m.t.Helper()
	if _, err := io.WriteString(m.boot, "boot\n"); err != nil {
		m.t.Fatal(err)
	}
	m.Eventually("systemd is up", func() error {
		out, _ := m.Try("systemctl", "is-system-running") // fails unless it says running
		if state := strings.TrimSpace(out); state != "running" && state != "degraded" {
			return errors.New(state)
		}
		return nil
	})
}

// PID of systemd in the test's namespace.
func (m *Machine) PID() int { return m.init.Process.Pid }

// Path returns where the test finds a file of the machine.
func (m *Machine) Path(inside string) string {
	return filepath.Join("/proc", strconv.Itoa(m.PID()), "root", inside)
}

// Write writes a file of the machine. A unit is known after a boot or Run("systemctl", "daemon-reload").
func (m *Machine) Write(path, content string, mode os.FileMode) {
	m.t.Helper()
	err := os.MkdirAll(filepath.Dir(m.Path(path)), 0o755) //nolint:gosec // as on a host
	if err == nil {
		err = os.WriteFile(m.Path(path), []byte(content), mode)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// Read returns a file of the machine; empty: there is none.
func (m *Machine) Read(path string) string {
	m.t.Helper()
	data, err := os.ReadFile(m.Path(path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	return string(data)
}

// Install copies a program into the machine, under its path there.
func (m *Machine) Install(program, path string) {
	m.t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		m.t.Fatal(err)
	}
	// A program that runs keeps its file. A child that is being forked must not have the new one open for writing: it
	// could not be executed.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	m.Write(path+".new", string(data), 0o755)
	if err := os.Rename(m.Path(path+".new"), m.Path(path)); err != nil {
		m.t.Fatal(err)
	}
}

// Command prepares a command in the machine, as root.
func (m *Machine) Command(args ...string) *exec.Cmd {
	enter := []string{
		"--target", strconv.Itoa(m.PID()), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--",
	}
	cmd := exec.Command("nsenter", append(enter, args...)...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C"}
	return cmd
}

// Try runs a command in the machine and returns everything it printed.
func (m *Machine) Try(args ...string) (string, error) {
	out, err := m.Command(args...).CombinedOutput()
	return string(out), err
}

// Run runs a command in the machine that must succeed, and returns everything it printed.
func (m *Machine) Run(args ...string) string {
	m.t.Helper()
	out, err := m.Try(args...)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s\n%s", strings.Join(args, " "), err, out, m.Journal())
	}
	return out
}

// Journal returns the end of the machine's log.
func (m *Machine) Journal() string {
	out, err := m.Try("journalctl", "--no-pager", "--lines=300", "--output=short-precise")
	if err != nil {
		said, _ := os.ReadFile(m.log())
		return fmt.Sprintf("the journal cannot be read: %v\n%s\n%s", err, out, said)
	}
	return out
}

// Eventually waits until fn returns nil.
func (m *Machine) Eventually(what string, fn func() error) {
	m.t.Helper()
	for deadline := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("not within %v: %s: %v\n%s", wait, what, err, m.Journal())
		}
	}
}

// end kills the machine, with all that it runs, and removes what is left of it.
func (m *Machine) end() {
	if m.init != nil {
		_ = m.init.Process.Kill() // the kernel kills everything else in its namespace
		_ = m.init.Wait()
	}
	if err := errors.Join(m.removeGroups(), os.RemoveAll(m.dir), os.RemoveAll(m.log())); err != nil {
		m.t.Error(err)
	}
}

// removeGroups removes the machine's control groups, from the innermost outwards, as soon as the kernel has seen their
// last process go.
func (m *Machine) removeGroups() error {
	for deadline := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		if err := removeGroups(m.cgroup); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// removeGroups removes a control group with those below it.
func removeGroups(group string) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeGroups(filepath.Join(group, e.Name())))
		}
	}
	return errors.Join(err, unix.Rmdir(group))
}
