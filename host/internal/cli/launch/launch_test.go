package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// TestMain also runs this binary as the parents that tests kill. As a child it does not come here.
func TestMain(m *testing.M) {
	if script := os.Getenv("LAUNCH_TEST_PARENT"); script != "" {
		os.Exit(parent(script))
	}
	os.Exit(m.Run())
}

// parent is a process that runs a program and a sidecar as another user, both with the same script, and waits for the
// program.
func parent(text string) int {
	plan := script(text)
	plan.User = &child.User{UID: 65534, GID: 65534}
	p, err := Start(plan)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	s, err := NewSidecars(p, func(format string, args ...any) { fmt.Printf(format+"\n", args...) }, func(string, string, int) {})
	if err == nil {
		err = s.Start(context.Background(), always(plan))
	}
	if err == nil {
		err = p.Go()
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	code, _ := p.Wait()
	return code
}

// The child of the whole program does its work before the agent's packages are initialized. Here it fails for want of a
// plan.
func TestTheChildIsInitializedEarly(t *testing.T) {
	cmd := exec.Command(testbin.Build(t, "host/cmd/pannier"), child.Arg)
	cmd.Env = []string{"GODEBUG=inittrace=1"}
	trace, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != child.CodeNotRun {
		t.Fatalf("%v:\n%s", err, trace)
	}
	if !strings.Contains(string(trace), "init golang.org/x/sys/unix ") {
		t.Errorf("this is no trace:\n%s", trace)
	}
	for _, late := range []string{"google.golang.org/protobuf/reflect/", "github.com/dgraph-io/", "path/filepath "} {
		if strings.Contains(string(trace), "init "+late) {
			t.Errorf("%s is initialized before it:\n%s", late, trace)
		}
	}
}

func requireRoot(t *testing.T) {
	t.Helper()
	testbin.RequireRoot(t, "workloads in their own mount namespace")
}

// run starts a shell script according to the plan and returns its exit code.
func run(t *testing.T, plan child.Plan, script string) int {
	t.Helper()
	plan.Command, plan.Args = "/bin/sh", []string{"-c", script}
	p, err := Start(plan)
	check.NoError(t, err)
	t.Cleanup(p.Abort)
	check.NoError(t, p.Go())
	code, err := p.Wait()
	check.NoError(t, err)
	return code
}

func TestVolumesAreBoundInAPrivateNamespace(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	for _, name := range []string{"rw", "ro"} {
		check.NoError(t, os.MkdirAll(filepath.Join(dir, "src", name), 0o755))
	}
	device := filepath.Join(dir, "src", "device")
	check.NoError(t, os.WriteFile(device, []byte("device"), 0o600))
	inner := filepath.Join(dir, "dst", "rw", "inner")
	plan := child.Plan{Mounts: []child.Mount{
		// The order is deliberate: the second destination is inside the first one, and the first destination
		// hides the sources.
		{Source: filepath.Join(dir, "src", "ro"), Destination: filepath.Join(dir, "src", "inner"), ReadOnly: true},
		{Source: filepath.Join(dir, "src", "rw"), Destination: filepath.Join(dir, "src")},
		{Source: device, Destination: filepath.Join(dir, "dst", "dev", "block"), Block: true},
		{Source: filepath.Join(dir, "src", "rw"), Destination: inner},
	}, Env: []string{"PATH=" + os.Getenv("PATH")}}
	script := fmt.Sprintf(`
cd %s || exit 1
echo hello > src/file || exit 2
echo no > src/inner/file 2>/dev/null && exit 3
test "$(cat dst/dev/block)" = device || exit 4
echo inner > dst/rw/inner/file2 || exit 5
exit 42`, dir)
	if code := run(t, plan, script); code != 42 {
		t.Fatalf("exit code %d", code)
	}
	for name, want := range map[string]string{"file": "hello\n", "file2": "inner\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, "src", "rw", name)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("the host still has a mount: %v", err)
	}
	if info, err := os.Stat(inner); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("destination: %v, %v", info, err)
	}
}

// An unmount on the host must propagate into the workload's namespace; otherwise the namespace would keep the
// volume in use.
func TestHostUnmountReachesTheNamespace(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	mount := func(source, fs string, flags uintptr) {
		check.NoError(t, unix.Mount(source, dir, fs, flags, ""))
	}
	mount("tmpfs", "tmpfs", 0)
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	mount("", "", unix.MS_SHARED)
	sub := filepath.Join(dir, "sub")
	check.NoError(t, os.Mkdir(sub, 0o755))
	check.NoError(t, unix.Mount("tmpfs", sub, "tmpfs", 0, ""))
	p, err := Start(child.Plan{Command: "/bin/sleep", Args: []string{"60"}})
	check.NoError(t, err)
	t.Cleanup(p.Abort)
	inside := func() bool {
		mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", p.PID()))
		check.NoError(t, err)
		return strings.Contains(string(mounts), sub)
	}
	if !inside() {
		t.Fatal("the namespace lacks the mount before the test starts")
	}
	check.NoError(t, unix.Unmount(sub, 0))
	if inside() {
		t.Fatal("the host's unmount did not reach the namespace")
	}
}

func TestUserIsDropped(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	out := filepath.Join(dir, "src")
	check.NoError(t, os.Mkdir(out, 0o777))
	check.NoError(t, os.Chmod(out, 0o777))
	// The destination is outside the test's directory, which other users cannot enter.
	dst := filepath.Join(os.TempDir(), fmt.Sprintf("launch-test-%d", os.Getpid()))
	t.Cleanup(func() { os.Remove(dst) })
	plan := child.Plan{
		Mounts: []child.Mount{{Source: out, Destination: dst}},
		User:   &child.User{UID: 1234, GID: 2345, Groups: []int{2345, 3456}},
		Env:    []string{"PATH=/usr/bin:/bin", "GREETING=hello"},
	}
	if code := run(t, plan, "(id -u; id -g; id -G; echo $GREETING; umask 0 && touch /root/x 2>&1 | wc -l) > "+dst+
		"/id"); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	text, err := os.ReadFile(filepath.Join(out, "id"))
	if err != nil || string(text) != "1234\n2345\n2345 3456\nhello\n1\n" {
		t.Fatalf("%q, %v", text, err)
	}
}

func TestProgramsThatDoNotRun(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	check.NoError(t, os.WriteFile(plain, []byte("text"), 0o644))
	for name, c := range map[string]struct {
		command string
		code    int
	}{
		"not there":       {"/no/such/program", child.CodeNotFound},
		"not in the path": {"no-such-program", child.CodeNotFound},
		"not executable":  {plain, child.CodeNotExecutable},
		"plain in a path": {"plain", child.CodeNotExecutable},
		"a folder":        {dir, child.CodeNotExecutable},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := Start(child.Plan{Command: c.command, Env: []string{"PATH=/bin:" + dir}})
			check.NoError(t, err)
			defer p.Abort()
			failure := (*child.Error)(nil)
			if err := p.Go(); !errors.As(err, &failure) || failure.Code != c.code || !strings.Contains(failure.Text, c.command) {
				t.Fatalf("%v", err)
			}
			if code, err := p.Wait(); code != c.code || err != nil {
				t.Fatalf("exit code %d, %v", code, err)
			}
		})
	}
}

func TestMountThatFails(t *testing.T) {
	requireRoot(t)
	_, err := Start(child.Plan{Mounts: []child.Mount{{Source: "/no/such", Destination: "/tmp"}}, Command: "true"})
	failure := (*child.Error)(nil)
	if !errors.As(err, &failure) || failure.Code != child.CodeNotRun || !strings.Contains(failure.Text, "/no/such") {
		t.Fatal(err)
	}
}

func TestAbortedProgramNeverRuns(t *testing.T) {
	requireRoot(t)
	marker := filepath.Join(t.TempDir(), "ran")
	p, err := Start(child.Plan{Command: "/bin/touch", Args: []string{marker}})
	check.NoError(t, err)
	p.Abort()
	p.Abort()
	if _, err := os.Stat(marker); err == nil {
		t.Fatal("it ran")
	}
}

func TestSignals(t *testing.T) {
	requireRoot(t)
	ready := filepath.Join(t.TempDir(), "ready")
	p, err := Start(child.Plan{
		Command: "/bin/sh",
		Args:    []string{"-c", "trap 'exit 9' USR1; touch " + ready + "; while :; do sleep 0.01; done"}, Env: os.Environ(),
	})
	check.NoError(t, err)
	t.Cleanup(p.Abort)
	check.NoError(t, p.Go())
	check.Eventually(t, "the trap", func() bool { _, err := os.Stat(ready); return err == nil })
	check.NoError(t, p.Signal(syscall.SIGUSR1))
	if code, err := p.Wait(); code != 9 || err != nil {
		t.Fatalf("%d, %v", code, err)
	}
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Fatalf("a signal after the end: %v", err)
	}
	if code := run(t, child.Plan{}, "kill -TERM $$"); code != 128+15 {
		t.Fatalf("exit code %d", code)
	}
}

// Program and sidecar end with the command, even if that is killed with SIGKILL. PR_SET_PDEATHSIG is cleared when a
// process changes its user, so it must be set after the change.
func TestProgramAndSidecarDieWithTheirParent(t *testing.T) {
	requireRoot(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "LAUNCH_TEST_PARENT=echo $$; exec sleep 60")
	out := check.Must(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout // where the sidecar's output goes
	check.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var pids []int
	for lines := bufio.NewScanner(out); len(pids) < 2 && lines.Scan(); {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil || !running(pid) {
			t.Fatalf("not a running process: %q", lines.Text())
		}
		pids = append(pids, pid)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(pids) != 2 {
		t.Fatalf("the processes are %v, want two", pids)
	}
	check.Eventually(t, "the end of both", func() bool { return !slices.ContainsFunc(pids, running) })
}

func TestLeftoversAreEnded(t *testing.T) {
	requireRoot(t)
	dir := t.TempDir()
	// Process a ends on SIGTERM and process b ignores it. Each has its own session.
	script := fmt.Sprintf(`
setsid sh -c 'echo $$ > %[1]s/a; exec sleep 60' &
setsid sh -c 'trap "" TERM; echo $$ > %[1]s/b; while :; do sleep 0.05; done' &
while ! test -s %[1]s/a || ! test -s %[1]s/b; do sleep 0.01; done`, dir)
	if code := run(t, child.Plan{Env: os.Environ()}, script); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	// The grace for b is an hour, and the context shortens it.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	told, err := EndLeftovers(ctx, time.Hour)
	if err != nil || told < 2 {
		t.Fatalf("told %d, %v", told, err)
	}
	for _, name := range []string{"a", "b"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		check.NoError(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		check.NoError(t, err)
		if running(pid) {
			t.Errorf("process %s is still running", name)
		}
	}
	if told, err := EndLeftovers(t.Context(), time.Second); told != 0 || err != nil {
		t.Fatalf("nothing should be left to end: ended %d, %v", told, err)
	}
}

func TestLookupUser(t *testing.T) {
	for text, want := range map[string]string{
		"root":      "0:0 root",
		"0":         "0:0 root",
		"54321":     "54321:54321 ",
		"54321:0":   "54321:0 ",
		"root:4321": "0:4321 root",
	} {
		u, err := LookupUser(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := fmt.Sprintf("%d:%d %s", u.UID, u.GID, u.Name); got != want || u.Groups[0] != u.GID {
			t.Errorf("%s: got %s %v, want %s", text, got, u.Groups, want)
		}
	}
	for _, text := range []string{"", "no-such-user", "-1", "4294967295", "root:no-such-group", "root:"} {
		if u, err := LookupUser(text); err == nil {
			t.Errorf("%q: accepted as %+v", text, u)
		}
	}
}

func running(pid int) bool {
	s, err := procfs.ReadStat(procfs.Dir(pid))
	return err == nil && !s.Ended()
}
