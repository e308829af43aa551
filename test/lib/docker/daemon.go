package docker

import (
	"bufio"
	"bytes"
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

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testns"
)

// wait bounds the daemon's start and its end.
const wait = 60 * time.Second

// Daemon is a running dockerd.
type Daemon struct {
	dir string

	namespace *exec.Cmd // holds the mount namespace
	hold      io.Closer // its standard input: it ends with it
	args      []string
	daemon    *exec.Cmd
	ended     chan struct{}
}

// needed are the programs that a daemon needs.
var needed = []string{"dockerd", "docker", "unshare", "nsenter"}

// Start starts a daemon, with more arguments, or skips the test if that is not possible; notCovered says what is not
// tested then.
func Start(t testing.TB, notCovered string, args ...string) *Daemon {
	t.Helper()
	testbin.RequireRoot(t, notCovered)
	for _, program := range needed {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s (Debian: docker.io, util-linux); not covered: %s", program, notCovered)
		}
	}
	d, err := Open(args...)
	if d == nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := d.Close()
		if err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(d.logTail())
		}
		if err := os.RemoveAll(d.dir); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Skipf("dockerd does not start here; not covered: %s: %v\n%s", notCovered, err, d.logTail())
	}
	return d
}

// Open starts a daemon in a network of the calling thread. Close ends it, also after an error with a daemon.
func Open(args ...string) (*Daemon, error) {
	dir, err := os.MkdirTemp("", "pd-") // short: it holds sockets
	if err != nil {
		return nil, err
	}
	d := &Daemon{dir: dir, args: args}
	if err := d.unshare(); err != nil {
		return nil, errors.Join(err, d.Close(), os.RemoveAll(dir))
	}
	err = d.launch()
	return d, err
}

// namespaceScript sets up the namespace like a host's.
const namespaceScript = `
mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /run # where the daemon looks for plugins
echo ready
exec cat
`

func (d *Daemon) unshare() error {
	cmd, err := testns.Unshared(namespaceScript)
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
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
	d.namespace, d.hold = cmd, in
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return fmt.Errorf("make a mount namespace: %q, %w", line, err)
	}
	return nil
}

// PID of a process in the daemon's mount namespace, until the test ends.
func (d *Daemon) PID() int { return d.namespace.Process.Pid }

func (d *Daemon) launch() error {
	log, err := os.OpenFile(d.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(d.PID()), "--mount", "--",
		"dockerd", "--host", "unix://"+d.path("sock"),
		"--data-root", d.path("data"), "--exec-root", d.path("exec"), "--pidfile", d.path("pid"),
		"--log-level=warn", "--iptables=false", "--bridge=none", "--cgroup-parent", d.cgroup())
	cmd.Args = append(cmd.Args, d.args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	d.daemon, d.ended = cmd, ended
	go func() { _ = cmd.Wait(); close(ended) }()
	for deadline := time.Now().Add(wait); ; {
		out, err := d.Command("version").CombinedOutput()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("it ended: %s", cmd.ProcessState)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("it does not answer: %s", out)
		}
	}
}

// Stall stops dockerd (SIGSTOP) until goOn, or until the test ends.
func (d *Daemon) Stall(t testing.TB) (goOn func()) {
	t.Helper()
	pid := d.daemon.Process.Pid
	check.Stop(t, pid)
	goOn = func() { _ = unix.Kill(pid, unix.SIGCONT) }
	t.Cleanup(goOn)
	return goOn
}

// Restart ends the daemon as systemd does, and starts it again. Its containers run on with --live-restore.
func (d *Daemon) Restart(t testing.TB) {
	t.Helper()
	d.again(t, unix.SIGTERM)
}

// Crash kills the daemon, and starts it again.
func (d *Daemon) Crash(t testing.TB) {
	t.Helper()
	d.again(t, unix.SIGKILL)
}

func (d *Daemon) again(t testing.TB, end os.Signal) {
	t.Helper()
	if err := d.daemon.Process.Signal(end); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.ended:
	case <-time.After(wait):
		t.Fatalf("dockerd does not end\n%s", d.logTail())
	}
	if err := d.launch(); err != nil {
		t.Fatalf("dockerd does not start again: %v\n%s", err, d.logTail())
	}
}

// Close ends the daemon with all its containers. Its log stays in Dir.
func (d *Daemon) Close() error {
	var errs []error
	if d.daemon != nil {
		if ids, err := d.Command("ps", "--all", "--quiet").Output(); err == nil && len(ids) > 0 {
			_ = d.Command(append([]string{"rm", "--force"}, strings.Fields(string(ids))...)...).Run()
		}
		_ = d.daemon.Process.Signal(unix.SIGTERM)
		select {
		case <-d.ended:
		case <-time.After(wait):
			errs = append(errs, errors.New("dockerd does not end"))
		}
		_ = unix.Kill(-d.daemon.Process.Pid, unix.SIGKILL)
		<-d.ended
	}
	errs = append(errs, d.killRest())
	if d.namespace != nil {
		_ = d.hold.Close()
		_ = d.namespace.Wait()
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		groups, _ := filepath.Glob(pattern + d.cgroup())
		for _, group := range groups {
			if err := unix.Rmdir(group); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove the control group %s: %w", group, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Dir is the daemon's folder, which the caller of Open removes.
func (d *Daemon) Dir() string { return d.dir }

// killRest kills what survived the daemon, such as a container's shim: processes named after the daemon's
// directory, or with a mount of it.
func (d *Daemon) killRest() error {
	for deadline := time.Now().Add(wait); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		found := false
		entries, _ := filepath.Glob("/proc/[0-9]*")
		for _, entry := range entries {
			pid, err := strconv.Atoi(filepath.Base(entry))
			if err != nil || pid == os.Getpid() || d.namespace != nil && pid == d.PID() {
				continue
			}
			cmdline, _ := os.ReadFile(entry + "/cmdline")
			mounts, _ := os.ReadFile(entry + "/mountinfo")
			if bytes.Contains(cmdline, []byte(d.dir+"/")) || bytes.Contains(mounts, []byte(d.dir+"/data/")) && !d.inside(pid) {
				found = unix.Kill(pid, unix.SIGKILL) == nil || found
			}
		}
		if !found {
			return nil
		}
	}
	return errors.New("processes of dockerd are left")
}

// inside reports whether a process is in the daemon's own mount namespace, such as a program that the test runs there.
func (d *Daemon) inside(pid int) bool {
	if d.namespace == nil {
		return false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	ours, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", d.PID()))
	return err == nil && err2 == nil && theirs == ours
}

// cgroup is the parent of the containers' control groups.
func (d *Daemon) cgroup() string { return "/pannier-test-" + filepath.Base(d.dir) }

func (d *Daemon) path(name string) string { return filepath.Join(d.dir, name) }

func (d *Daemon) logTail() string {
	raw, _ := os.ReadFile(d.path("log"))
	return "dockerd's log ends with:\n" + string(raw[max(0, len(raw)-6<<10):])
}

// Command prepares a docker command.
func (d *Daemon) Command(args ...string) *exec.Cmd {
	cmd := exec.Command("docker", args...)
	cmd.Env = append(os.Environ(), d.Env()...)
	return cmd
}

// Env lets docker commands reach the daemon.
func (d *Daemon) Env() []string {
	return []string{"DOCKER_HOST=unix://" + d.path("sock"), "DOCKER_CONFIG=" + d.dir}
}

// Run runs a docker command that must succeed, and returns its output.
func (d *Daemon) Run(t testing.TB, args ...string) string {
	t.Helper()
	out, err := d.Try(args...)
	if err != nil {
		t.Fatalf("docker %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// Try runs a docker command and returns everything it printed.
func (d *Daemon) Try(args ...string) (string, error) {
	out, err := d.Command(args...).CombinedOutput()
	return string(out), err
}
