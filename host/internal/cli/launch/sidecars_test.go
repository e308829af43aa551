package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/test/lib/check"
)

// quick is short timing, so that tests do not wait long for pauses.
var quick = timing{
	first: 20 * time.Millisecond, longest: 200 * time.Millisecond, stable: time.Minute,
	watch: 10 * time.Millisecond, grace: 100 * time.Millisecond, ready: 10 * time.Second, killed: 10 * time.Second,
}

// notes records the messages for the user.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
}

// end records what is reported of a sidecar's end as a message too.
func (n *notes) end(sidecar, how string, restarts int) {
	n.add("reported %s %d: %s", sidecar, restarts, how)
}

func (n *notes) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.lines)
}

func (n *notes) count(text string) (count int) {
	for _, line := range n.all() {
		if strings.Contains(line, text) {
			count++
		}
	}
	return count
}

// beside starts a process that waits for Go, and prepares sidecars for it.
func beside(t *testing.T, plan child.Plan) (*Process, *Sidecars, *notes) {
	t.Helper()
	requireRoot(t)
	t.Cleanup(func() { goleak.VerifyNone(t) })
	p, err := Start(plan)
	check.NoError(t, err)
	t.Cleanup(p.Abort)
	n := &notes{}
	s, err := NewSidecars(p, n.add, n.end)
	check.NoError(t, err)
	s.timing = quick
	t.Cleanup(func() { s.Stop(context.Background(), 0) })
	return p, s, n
}

// always is a sidecar that does not take over.
func always(plan child.Plan) Sidecar {
	return Sidecar{Name: "envoy", Plan: func(int, int) child.Plan { return plan }}
}

func script(text string) child.Plan {
	return child.Plan{Command: "/bin/sh", Args: []string{"-c", text}, Env: os.Environ()}
}

func read(path string) string {
	text, _ := os.ReadFile(path) // A missing file reads as empty.
	return strings.TrimSpace(string(text))
}

func awaitPID(t *testing.T, path string) (pid int) {
	t.Helper()
	check.Eventually(t, "a process id in "+path, func() bool {
		var err error
		pid, err = strconv.Atoi(read(path))
		return err == nil
	})
	return pid
}

// Each end that nobody has asked for is reported with the last line of output that is an error, without what Envoy
// writes before it.
func TestEndsAreReportedWithTheLastLine(t *testing.T) {
	p, s, n := beside(t, script("exec sleep 1000"))
	check.NoError(t, s.Start(t.Context(), always(script("echo one; echo '[2026-11-29 11:58:01.123][1][critical][main] "+
		"[a.cc:1] no such flag' >&2; echo; printf exiting; exit 3"))))
	check.NoError(t, p.Go())
	check.Eventually(t, "two reports", func() bool { return n.count("reported envoy 2: ") > 0 })
	for ends := 1; ends <= 2; ends++ {
		if n.count(fmt.Sprintf("reported envoy %d: it ended with exit code 3: no such flag", ends)) != 1 {
			t.Errorf("reported: %q", n.all())
		}
	}
}

// The sidecar shares the program's mount namespace. It has its own session, so terminal signals do not reach
// it. setns(2) into a mount namespace changes the working directory, so it has to return to the caller's.
func TestSidecarIsInTheNamespaceOfTheProgram(t *testing.T) {
	dir := t.TempDir()
	source, out := filepath.Join(dir, "source"), filepath.Join(dir, "out")
	for _, d := range []string{source, out} {
		check.NoError(t, os.Mkdir(d, 0o777))
		check.NoError(t, os.Chmod(d, 0o777))
	}
	// The destination is outside the test's directory, which other users cannot enter.
	destination := filepath.Join(os.TempDir(), fmt.Sprintf("sidecar-test-%d", os.Getpid()))
	t.Cleanup(func() { os.Remove(destination) })
	program := script("echo program >> " + destination + "/order; ls -i /proc/self/ns/mnt > " + destination +
		"/program; exit 3")
	program.Mounts = []child.Mount{{Source: source, Destination: destination}}
	p, s, n := beside(t, program)

	sidecar := script(`here=$(pwd -P); cd ` + destination + ` && echo sidecar >> order
(echo $here; readlink /proc/self/ns/mnt; id -u; id -G; echo $GREETING
cut -d' ' -f6 /proc/$$/stat; readlink /proc/$$/fd/0) > all 2>&1
echo $$ > pid; exec sleep 60`)
	sidecar.User = &child.User{UID: 1234, GID: 2345, Groups: []int{2345, 3456}}
	sidecar.Env = append(sidecar.Env, "GREETING=hello")
	check.NoError(t, s.Start(t.Context(), always(sidecar)))
	pid := awaitPID(t, filepath.Join(source, "pid"))
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", p.PID()))
	check.NoError(t, err)
	check.NoError(t, p.Go())
	if code, err := p.Wait(); code != 3 || err != nil {
		t.Fatalf("exit code %d, %v", code, err)
	}
	if got := read(filepath.Join(source, "order")); got != "sidecar\nprogram" {
		t.Errorf("the order was %q", got)
	}
	here := check.Must(os.Getwd())(t)
	want := strings.Join([]string{here, namespace, "1234", "2345 3456", "hello", strconv.Itoa(pid), "/dev/null"}, "\n")
	if got := read(filepath.Join(source, "all")); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := s.StopRestarts(); !slices.Equal(got, []int{pid}) {
		t.Errorf("sessions %v, want %d", got, pid)
	}
	s.Stop(t.Context(), time.Minute)
	if running(pid) {
		t.Error("it still runs")
	}
	if len(n.all()) > 0 {
		t.Errorf("unexpected messages for a sidecar that behaved: %q", n.all())
	}
}

func TestSidecarIsStartedAgain(t *testing.T) {
	dir := t.TempDir()
	_, s, n := beside(t, child.Plan{Command: "true"})
	// It ends three times, in three ways, and leaves a process each time.
	err := s.Start(t.Context(), always(script(fmt.Sprintf(`cd %s
echo $$ >> starts
sleep 60 & echo $! > left.$(wc -l < starts)
case $(wc -l < starts) in
1) exit 0;;
2) exit 7;;
3) kill -9 $$;;
esac
exec sleep 60`, dir))))
	check.NoError(t, err)
	check.Eventually(t, "the fourth start", func() bool { return read(filepath.Join(dir, "left.4")) != "" })
	// It runs a moment before its start is noted.
	check.Eventually(t, "the notes of three restarts", func() bool { return n.count("is started again (pid") == 3 })
	for i, want := range []string{
		"ended with exit code 0 after", "ended with exit code 7 after",
		"was ended by signal 9 (killed) after",
	} {
		if n.count(want) != 1 {
			t.Errorf("%q is not among %q", want, n.all())
		}
		if pid := awaitPID(t, filepath.Join(dir, fmt.Sprintf("left.%d", i+1))); running(pid) {
			t.Errorf("the process left by start %d is still running", i+1)
		}
	}
	if pid := awaitPID(t, filepath.Join(dir, "left.4")); !running(pid) {
		t.Error("a process of the running sidecar was ended")
	}
}

// Pauses double up to the maximum. A run that lasted long enough resets them.
func TestPausesOfASidecar(t *testing.T) {
	for name, c := range map[string]struct {
		stable time.Duration
		grow   bool
	}{
		"short lives": {time.Minute, true},
		"long lives":  {0, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, s, n := beside(t, child.Plan{Command: "true"})
			s.timing.first, s.timing.longest, s.timing.stable = 100*time.Millisecond, 400*time.Millisecond, c.stable
			check.NoError(t, s.Start(t.Context(), always(script("exit 1"))))
			check.Eventually(t, "four ends", func() bool { return n.count("it is started again in") >= 4 })
			s.StopRestarts()
			var pauses []time.Duration
			for _, line := range n.all() {
				if _, text, found := strings.Cut(line, "it is started again in "); found {
					d, err := time.ParseDuration(text)
					check.NoError(t, err)
					pauses = append(pauses, d)
				}
			}
			// Expected: 100, 200, 400, 400 ms, each up to 30 % shorter and rounded to 100 ms.
			if last := pauses[3]; pauses[0] > 200*time.Millisecond || c.grow != (last > 200*time.Millisecond) ||
				last > 600*time.Millisecond {
				t.Errorf("pauses %v", pauses)
			}
		})
	}
}

func TestSidecarThatCannotBeStarted(t *testing.T) {
	_, s, n := beside(t, child.Plan{Command: "true"})
	err := s.Start(t.Context(), always(child.Plan{Command: "no-such-proxy", Env: []string{"PATH=/bin"}}))
	failure := (*child.Error)(nil)
	if !errors.As(err, &failure) || failure.Code != child.CodeNotRun ||
		!strings.Contains(failure.Text, `sidecar "envoy": command "no-such-proxy" not found`) {
		t.Fatalf("%v", err)
	}
	if got := s.StopRestarts(); len(got) > 0 || len(n.all()) > 0 {
		t.Errorf("sessions %v, notes %q", got, n.all())
	}
}

// The program's file is missing for a moment while it is being replaced.
func TestSidecarWhoseProgramVanishes(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "proxy")
	write := func() {
		t.Helper()
		check.NoError(t, os.WriteFile(program+".new", []byte("#!/bin/sh\necho >> "+dir+"/starts\nexit 1\n"), 0o755))
		check.NoError(t, os.Rename(program+".new", program))
	}
	write()
	_, s, n := beside(t, child.Plan{Command: "true"})
	check.NoError(t, s.Start(t.Context(), always(child.Plan{Command: program, Env: os.Environ()})))
	check.NoError(t, os.Remove(program))
	check.Eventually(t, "a start that fails", func() bool { return n.count("cannot be started again") > 0 })
	before := n.count("is started again (pid")
	write()
	check.Eventually(t, "a start that works", func() bool { return n.count("is started again (pid") > before })
}

// A sidecar keeps running while the program's leftover processes are ended, because they may still use it.
func TestLeftoversAreEndedBeforeSidecars(t *testing.T) {
	dir := t.TempDir()
	p, s, n := beside(t, script(fmt.Sprintf(`cd %s
setsid sh -c 'echo $$ > left; exec sleep 60' &
while ! test -s left; do sleep 0.01; done`, dir)))
	err := s.Start(t.Context(), always(script(fmt.Sprintf(`cd %s
trap 'echo asked >> asked; exit 0' TERM
sh -c 'echo $$ > child; exec sleep 60' &
echo $$ > sidecar; while :; do sleep 0.01; done`, dir))))
	check.NoError(t, err)
	sidecar, child := awaitPID(t, filepath.Join(dir, "sidecar")), awaitPID(t, filepath.Join(dir, "child"))
	check.NoError(t, p.Go())
	if code, err := p.Wait(); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v", code, err)
	}
	left := awaitPID(t, filepath.Join(dir, "left"))
	if told, err := EndLeftovers(t.Context(), time.Minute, s.StopRestarts()...); told != 1 || err != nil {
		t.Errorf("told %d, %v", told, err)
	}
	if running(left) || !running(sidecar) || !running(child) || read(filepath.Join(dir, "asked")) != "" {
		t.Fatal("the leftover is running, or the sidecar or its child is not")
	}
	s.Stop(t.Context(), time.Minute)
	if running(sidecar) || running(child) || read(filepath.Join(dir, "asked")) != "asked" {
		t.Errorf("it is still running, or was not asked to end: %q", read(filepath.Join(dir, "asked")))
	}
	if told, err := EndLeftovers(t.Context(), time.Minute); told != 0 || err != nil {
		t.Errorf("nothing should be left to end: ended %d, %v", told, err)
	}
	if len(n.all()) > 0 {
		t.Errorf("notes %q", n.all())
	}
}

// The host replaces a sidecar's input file by renaming a new one over it. The sidecar is restarted at once
// with the new file, whether or not it ends on SIGTERM.
func TestSidecarReadsANewFile(t *testing.T) {
	for name, c := range map[string]struct {
		trap   string
		killed int
	}{
		"it ends when asked": {"exit 0", 0},
		"it does not":        {"", 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, seen := filepath.Join(dir, "bootstrap"), filepath.Join(dir, "seen")
			write := func(text string) {
				t.Helper()
				check.NoError(t, os.WriteFile(file+".new", []byte(text), 0o400))
				check.NoError(t, os.Rename(file+".new", file))
			}
			_, s, n := beside(t, child.Plan{Command: "true"})
			s.timing.first = time.Hour // an end of its own would not lead to a restart within the test
			if c.killed == 0 {
				s.timing.grace = time.Minute
			}
			write("first\n")
			sidecar := always(script("trap '" + c.trap + "' TERM; cat " + file + " >> " + seen +
				"; while :; do sleep 0.01; done"))
			sidecar.File = file
			check.NoError(t, s.Start(t.Context(), sidecar))
			check.Eventually(t, "the first file", func() bool { return read(seen) == "first" })
			write("second\n")
			check.Eventually(t, "the second file", func() bool { return read(seen) == "first\nsecond" })
			time.Sleep(5 * s.timing.watch) // the watcher sees the same file again
			if n.count("has to read a new "+file) != 1 || n.count("it is killed") != c.killed || n.count("ended") != 0 {
				t.Errorf("notes %q", n.all())
			}
			// A removed file does not cause a restart, nor does a new one after StopRestarts.
			check.NoError(t, os.Remove(file))
			time.Sleep(5 * s.timing.watch)
			pid := s.StopRestarts()
			write("third\n")
			time.Sleep(5 * s.timing.watch)
			if n.count("has to read") != 1 {
				t.Errorf("notes %q", n.all())
			}
			s.Stop(t.Context(), time.Minute*time.Duration(1-c.killed))
			if len(pid) != 1 || running(pid[0]) || read(seen) != "first\nsecond" {
				t.Errorf("sessions %v, seen %q", pid, read(seen))
			}
		})
	}
}

// After StopRestarts, a sidecar that ends is not restarted.
func TestSettledSidecarIsNotStartedAgain(t *testing.T) {
	dir := t.TempDir()
	_, s, n := beside(t, child.Plan{Command: "true"})
	check.NoError(t, s.Start(t.Context(), always(script("echo $$ >> "+dir+"/starts; exec sleep 60"))))
	pid := awaitPID(t, filepath.Join(dir, "starts"))
	s.StopRestarts()
	check.NoError(t, unix.Kill(pid, unix.SIGKILL))
	select {
	case <-s.all[0].done:
	case <-time.After(time.Minute):
		t.Fatal("it is kept")
	}
	if got := s.StopRestarts(); len(got) > 0 || read(filepath.Join(dir, "starts")) != strconv.Itoa(pid) ||
		len(n.all()) > 0 {
		t.Errorf("sessions %v, starts %q, notes %q", got, read(filepath.Join(dir, "starts")), n.all())
	}
}

// A sidecar that ignores SIGTERM is killed after the grace, or at once if the context is cancelled.
func TestSidecarThatDoesNotEnd(t *testing.T) {
	for name, c := range map[string]struct {
		grace   time.Duration
		hurried bool
	}{
		"after the grace": {100 * time.Millisecond, false},
		"in a hurry":      {time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "pid")
			_, s, n := beside(t, child.Plan{Command: "true"})
			plan := script("trap '' TERM; echo $$ > " + out + "; while :; do sleep 0.05; done")
			check.NoError(t, s.Start(t.Context(), always(plan)))
			pid := awaitPID(t, out)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.hurried {
				cancel()
			}
			s.Stop(ctx, c.grace)
			if running(pid) || n.count(`sidecar "envoy" did not end when it was asked to`) != 1 {
				t.Errorf("it is still running, or the kill is not reported: %q", n.all())
			}
		})
	}
}
