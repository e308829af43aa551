package fence

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/test/lib/testbin"
)

// With one of these in its environment the test binary is a fence (its folder), an agent's client (its folder), or a
// writer (its orders).
const (
	envFence  = "PANNIER_TEST_FENCE"
	envAgent  = "PANNIER_TEST_FENCE_AGENT"
	envWriter = "PANNIER_TEST_FENCE_WRITER"
)

// envNamespace says that the test runs in a mount namespace of its own.
const envNamespace = "PANNIER_TEST_FENCE_NAMESPACE"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envFence) != "":
		if err := Run(context.Background(), os.Getenv(envFence), os.Stderr); err != nil {
			fail(err)
		}
		os.Exit(0)
	case os.Getenv(envAgent) != "":
		fail(beAgent(os.Getenv(envAgent)))
	case os.Getenv(envWriter) != "":
		fail(beWriter(os.Getenv(envWriter)))
	}
	goleak.VerifyTestMain(m)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// beAgent opens a client and sets the states that it reads from its input, one per line; it answers each with a line.
func beAgent(dir string) error {
	c, err := Open(context.Background(), config(dir))
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var s State
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return err
		}
		err := c.Update(context.Background(), func(c Change) {
			c.SetTimes(s.Times)
			c.Protect(s.Mounts...)
			for _, p := range s.Processes {
				c.ProtectProcess(p)
			}
		})
		fmt.Println("told", err)
	}
	return errors.New("the test is over")
}

// beWriter appends the time to the file in orders, a line about each millisecond.
func beWriter(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for record := make([]byte, 8); ; time.Sleep(time.Millisecond) {
		binary.LittleEndian.PutUint64(record, uint64(boottime.Now()))
		if _, err := f.Write(record); err != nil {
			return err
		}
	}
}

// lastWritten returns when a writer last wrote.
func lastWritten(t *testing.T, file string) boottime.Instant {
	t.Helper()
	data, err := os.ReadFile(file)
	must(t, err)
	if len(data) < 8 {
		t.Fatalf("%s has %d bytes: nothing was written", file, len(data))
	}
	whole := len(data) / 8 * 8
	return boottime.Instant(binary.LittleEndian.Uint64(data[whole-8:]))
}

const testTimeout = time.Minute

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func config(dir string) Config {
	return Config{
		Dir: dir, Command: []string{os.Args[0]}, Env: []string{envFence + "=" + dir},
		Log: hclog.New(&hclog.LoggerOptions{Name: "client", Level: hclog.Debug}),
	}
}

// folder makes a fence's folder. Processes that run there are killed when the test ends.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	return endFence(t, dir)
}

// endFence kills the fence of a folder when the test ends.
func endFence(t *testing.T, dir string) string {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, logFile))
			t.Logf("the fence's log:\n%s", log)
		}
		if c, err := dial(dir); err == nil {
			if err := c.kill(); err != nil {
				t.Error(err)
			}
			c.close()
		}
	})
	return dir
}

// inOwnNamespace runs the test in a process with a mount namespace of its own, and returns false in any other.
func inOwnNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(envNamespace) != "" {
		return true
	}
	testbin.RequireRoot(t, "fencing of real mounts")
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--propagation", "private", os.Args[0], "-test.v",
		"-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), envNamespace+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in a mount namespace of its own: %v\n%s", err, out)
	}
	return false
}

// open opens a client that is closed when the test ends.
func open(t *testing.T, dir string) *Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	c, err := Open(ctx, config(dir))
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	return c
}

func update(t *testing.T, c *Client, change func(Change)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	must(t, c.Update(ctx, change))
}

// setDeadline sets both times to the deadline.
func setDeadline(t *testing.T, c *Client, at boottime.Instant) {
	t.Helper()
	update(t, c, func(c Change) { c.SetTimes(Times{Stop: at, Deadline: at}) })
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not seen: %s", what)
		}
	}
}

// finished waits until the n-th report is done, and returns it.
func finished(t *testing.T, dir string, n int) Report {
	t.Helper()
	var r Report
	eventually(t, "a finished report", func() bool {
		all, err := Reports(dir)
		must(t, err)
		if len(all) < n {
			return false
		}
		r = all[n-1]
		return r.Done != 0
	})
	return r
}

// child is a process that is killed when the test ends.
type child struct {
	*exec.Cmd
	ended chan struct{}
	at    boottime.Instant // when its end was seen
}

func start(t *testing.T, cmd *exec.Cmd) *child {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{Cmd: cmd, ended: make(chan struct{})}
	ready := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		ready <- line
		_ = cmd.Wait()
		c.at = boottime.Now()
		close(c.ended)
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-c.ended })
	select {
	case line := <-ready:
		if !strings.HasSuffix(line, "ready\n") {
			t.Fatalf("%v said %q", cmd.Args, line)
		}
	case <-time.After(testTimeout):
		t.Fatalf("%v says nothing", cmd.Args)
	}
	return c
}

// ends waits until it has ended.
func (c *child) ends(t *testing.T) boottime.Instant {
	t.Helper()
	select {
	case <-c.ended:
	case <-time.After(testTimeout):
		t.Fatalf("process %d still runs: %v", c.Process.Pid, c.Args)
	}
	return c.at
}

func (c *child) lives() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

func writer(t *testing.T, file string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envWriter+"="+file)
	return start(t, cmd)
}

// shell runs a script, which prints ready and continues.
func shell(t *testing.T, script string, args ...string) *child {
	t.Helper()
	return start(t, exec.Command("sh", append([]string{"-ec", script, "sh"}, args...)...))
}

// volume is something that is mounted at a staging path and bound at a published one.
type volume struct {
	staging, target string
	mounts          []Mount
	backing         string // its folder on the host, or its image
	image           bool
}

// bound makes a volume that is a folder of the host's file system.
func bound(t *testing.T) volume {
	t.Helper()
	v := newVolume(t)
	v.backing = filepath.Join(filepath.Dir(v.staging), "backing")
	must(t, os.Mkdir(v.backing, 0o700))
	v.mount(t, v.backing, "", unix.MS_BIND)
	return v
}

// ext4 makes a volume with a file system of its own, on a loop device.
func ext4(t *testing.T) volume {
	t.Helper()
	v := newVolume(t)
	v.backing, v.image = image(t, filepath.Dir(v.staging), "ext4"), true
	v.mount(t, loop(t, v.backing), "ext4", 0)
	return v
}

func newVolume(t *testing.T) volume {
	t.Helper()
	testbin.RequireRoot(t, "fencing of real mounts")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	v := volume{staging: filepath.Join(dir, "staging"), target: filepath.Join(dir, "target")}
	must(t, os.Mkdir(v.staging, 0o700))
	must(t, os.Mkdir(v.target, 0o700))
	v.mounts = []Mount{{Path: v.target, Workload: redis}, {Path: v.staging, Staging: true}}
	return v
}

func (v volume) mount(t *testing.T, source, fstype string, flags uintptr) {
	t.Helper()
	must(t, unix.Mount(source, v.staging, fstype, flags, ""))
	t.Cleanup(func() { unmountQuietly(v.staging) })
	must(t, unix.Mount(v.staging, v.target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { unmountQuietly(v.target) })
}

func unmountQuietly(path string) {
	for unix.Unmount(path, unix.MNT_DETACH) == nil {
	}
}

// read returns a file of the volume after it was unmounted.
func (v volume) read(t *testing.T, name string) string {
	t.Helper()
	if !v.image {
		return filepath.Join(v.backing, name)
	}
	dir := t.TempDir()
	must(t, unix.Mount(loop(t, v.backing), dir, "ext4", unix.MS_RDONLY, ""))
	t.Cleanup(func() { unmountQuietly(dir) })
	return filepath.Join(dir, name)
}

// image makes a file with a file system in it.
func image(t *testing.T, dir, fstype string) string {
	t.Helper()
	file := filepath.Join(dir, "image")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, map[string]int64{"ext4": 32 << 20, "xfs": 300 << 20}[fstype]))
	run(t, "mkfs."+fstype, "-q", file)
	return file
}

func loop(t *testing.T, image string) string {
	t.Helper()
	device := strings.TrimSpace(run(t, "losetup", "--find", "--show", image))
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	return device
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}

// mounted reports whether something is mounted at or below a path.
func mounted(t *testing.T, path string) bool {
	t.Helper()
	table, err := mountuse.Read(mountuse.Self)
	must(t, err)
	for _, m := range table {
		if mountuse.Within(m.Mountpoint, path) {
			return true
		}
	}
	return false
}
