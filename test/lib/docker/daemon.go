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

	"github.com/pannier/pannier/test/lib/testbin"
)

// wait bounds the daemon's start and its end.
const wait = 60 * time.Second

// Daemon is a running dockerd.
type Daemon struct {
	t   testing.TB
	dir string

	namespace *exec.Cmd // holds the mount namespace
	hold      io.Closer // its standard input: it ends with it
	daemon    *exec.Cmd
	ended     chan struct{}
}

// Start starts a daemon, or skips the test if that is not possible; notCovered says what is not tested then.
func Start(t testing.TB, notCovered string) *Daemon {
	t.Helper()
	testbin.RequireRoot(t, notCovered)
	for _, program := range []string{"dockerd", "docker", "unshare", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s (Debian: docker.io, util-linux); not covered: %s", program, notCovered)
		}
	}
	dir, err := os.MkdirTemp("", "pd-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{t: t, dir: dir}
	t.Cleanup(d.stop)
	d.unshare()
	if err := d.launch(); err != nil {
		t.Skipf("dockerd does not start here; not covered: %s: %v\n%s", notCovered, err, d.logTail())
	}
	return d
}

// namespaceScript sets up the namespace like a host's. It starts as a copy of the caller's, which would keep other
// tests' volumes in use.
const namespaceScript = `
set -e
while read -r _ _ _ _ path _; do
	case $path in "$1"/*) echo "$path" ;; esac
done </proc/self/mountinfo | sort -r | while read -r path; do umount -l "$path" || true; done
mount --make-rshared /
echo ready
exec cat
`

func (d *Daemon) unshare() {
	d.t.Helper()
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", namespaceScript, "sh", tmp)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		d.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.namespace, d.hold = cmd, in
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		d.t.Fatalf("make a mount namespace: %q, %v", line, err)
	}
}

// PID of a process in the daemon's mount namespace, until the test ends.
func (d *Daemon) PID() int { return d.namespace.Process.Pid }

func (d *Daemon) launch() error {
	log, err := os.Create(d.path("log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("nsenter", "--target", strconv.Itoa(d.PID()), "--mount", "--",
		"dockerd", "--host", "unix://"+d.path("sock"),
		"--data-root", d.path("data"), "--exec-root", d.path("exec"), "--pidfile", d.path("pid"),
		"--log-level=warn", "--iptables=false", "--bridge=none", "--cgroup-parent", d.cgroup())
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

// stop ends the daemon with all its containers.
func (d *Daemon) stop() {
	if d.daemon != nil {
		if ids, err := d.Command("ps", "--all", "--quiet").Output(); err == nil && len(ids) > 0 {
			_ = d.Command(append([]string{"rm", "--force"}, strings.Fields(string(ids))...)...).Run()
		}
		_ = d.daemon.Process.Signal(unix.SIGTERM)
		select {
		case <-d.ended:
		case <-time.After(wait):
			d.t.Errorf("dockerd does not end\n%s", d.logTail())
		}
		_ = unix.Kill(-d.daemon.Process.Pid, unix.SIGKILL)
		<-d.ended
	}
	if d.t.Failed() {
		d.t.Log(d.logTail())
	}
	d.killRest()
	if d.namespace != nil {
		_ = d.hold.Close()
		_ = d.namespace.Wait()
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		groups, _ := filepath.Glob(pattern + d.cgroup())
		for _, group := range groups {
			if err := unix.Rmdir(group); err != nil && !errors.Is(err, unix.ENOENT) {
				d.t.Errorf("remove the control group %s: %v", group, err)
			}
		}
	}
	if err := os.RemoveAll(d.dir); err != nil {
		d.t.Error(err)
	}
}

// killRest kills what survived the daemon, such as a container's shim: processes named after the daemon's
// directory, or with a mount of it.
func (d *Daemon) killRest() {
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
			return
		}
	}
	d.t.Errorf("processes of dockerd are left\n%s", d.logTail())
}

// inside says whether a process is in the daemon's own mount namespace, such as a program that the test runs
// there.
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
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+d.path("sock"), "DOCKER_CONFIG="+d.dir)
	return cmd
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
