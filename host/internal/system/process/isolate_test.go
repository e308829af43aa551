package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

const loop = "while :; do sleep 0.05; done"

func TestNoNewPrivs(t *testing.T) {
	for name, dieWithHost := range map[string]bool{"outlives": false, "dies with the host": true} {
		t.Run(name, func(t *testing.T) {
			spec := shell(t, loop)
			spec.NoNewPrivs, spec.DieWithHost = true, dieWithHost
			p := mustStart(t, spec)
			if got := statusOf(t, procfs.Dir(p.PID())+"/status", "NoNewPrivs"); got != "1" {
				t.Errorf("its NoNewPrivs is %s", got)
			}
			free := mustStart(t, shell(t, loop))
			if got := statusOf(t, procfs.Dir(free.PID())+"/status", "NoNewPrivs"); got != "0" {
				t.Errorf("that of a process that did not ask for it is %s", got)
			}
			for _, p := range []*Process{p, free} {
				if err := p.Stop(within(t, 5*time.Second)); err != nil {
					t.Fatal(err)
				}
			}
			waitFor(t, "threads of the host without the flag only", func() bool {
				threads, _ := filepath.Glob("/proc/self/task/*/status")
				for _, status := range threads {
					if data, err := os.ReadFile(status); err == nil && strings.Contains(string(data), "NoNewPrivs:\t1") {
						return false
					}
				}
				return len(threads) > 0
			})
		})
	}
}

func TestNoInheritedDescriptors(t *testing.T) {
	// A file descriptor like one that a shell left open when it started the host.
	fd, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	spec := shell(t, "")
	spec.Path, spec.Args = "/bin/sleep", []string{"1000"}
	p := mustStart(t, spec)
	defer p.Stop(within(t, 5*time.Second))
	want := "0 /dev/null\n1 " + spec.LogPath + "\n2 " + spec.LogPath + "\n"
	var got string
	defer func() {
		if t.Failed() {
			t.Logf("it has\n%s", got)
		}
	}()
	waitFor(t, "nothing but standard input, output and error", func() bool { // and its libraries while it starts
		got = ""
		open, err := os.ReadDir(procfs.Dir(p.PID()) + "/fd")
		for _, f := range open {
			target, _ := os.Readlink(procfs.Dir(p.PID()) + "/fd/" + f.Name())
			got += f.Name() + " " + target + "\n"
		}
		return err == nil && got == want
	})
}

func TestGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root; not covered: another group")
	}
	for name, row := range map[string]struct{ user, group, want string }{
		"user and group": {"nobody", "daemon", "65534 1 1 65534"},
		"group":          {"", "1", "0 1 1"},
		"user":           {"nobody", "", "65534 65534 65534"},
	} {
		spec := shell(t, "echo $(id -u) $(id -g) $(id -G)")
		spec.User, spec.Group = row.user, row.group
		p := mustStart(t, spec)
		waitDone(t, p)
		if data, _ := os.ReadFile(spec.LogPath); strings.TrimSpace(string(data)) != row.want {
			t.Errorf("%s: ran as %s, want %s", name, data, row.want)
		}
	}
	spec := shell(t, "")
	spec.Group = "no-such-group"
	if _, err := Start(spec); err == nil || !strings.Contains(err.Error(), `look up group "no-such-group"`) {
		t.Errorf("an unknown group: %v", err)
	}
}

func TestLimitOfOpenFiles(t *testing.T) {
	spec := shell(t, loop)
	spec.Limits = Limits{OpenFiles: 99}
	p := mustStart(t, spec)
	defer p.Stop(within(t, 5*time.Second))
	data, err := os.ReadFile(procfs.Dir(p.PID()) + "/limits")
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(data)), " "), "Max open files 99 99") {
		t.Errorf("%v\n%s", err, data)
	}
}

func TestFirstToGoWithoutMemory(t *testing.T) {
	spec := shell(t, loop)
	spec.Limits = Limits{Memory: 1 << 30}
	p := mustStart(t, spec)
	defer p.Stop(within(t, 5*time.Second))
	data, err := os.ReadFile(procfs.Dir(p.PID()) + "/oom_score_adj")
	if err != nil || strings.TrimSpace(string(data)) != oomScore {
		t.Errorf("%v: %s", err, data)
	}
}

// A process that drops the token, leaves the group and ignores SIGTERM is found in the control group, and cannot fork
// more than it may.
func TestForkBombEndsWhole(t *testing.T) {
	needCgroups(t)
	const most = 60
	dir := t.TempDir()
	spec := shell(t, fmt.Sprintf(`for i in $(seq 100); do
		setsid env -i sh -c 'trap "" TERM; echo > %s/$$; exec sleep 1000' 2>/dev/null &
	done; %s`, dir, loop))
	spec.Limits = Limits{Processes: most}
	p := mustStart(t, spec)
	ref := p.Ref()
	waitFor(t, "many children", func() bool { return p.Usage().Processes > most/2 })
	if parents().lack == nil || parents().pids != "" {
		waitFor(t, "a refused fork", func() bool { return p.Usage().Refused > 0 })
		if got := p.Usage().Processes; got > most {
			t.Errorf("there are %d processes, %d are allowed", got, most)
		}
	}
	waitFor(t, "children that have come up", func() bool {
		files, err := os.ReadDir(dir)
		return err == nil && len(files) >= 10
	})
	if err := p.Stop(within(t, 100*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if pid, err := strconv.Atoi(f.Name()); err != nil || alive(pid) {
			t.Errorf("child %s is still there (%v)", f.Name(), err)
		}
	}
	noCgroups(t, ref)
}

// The next host finds what is in the control groups of a process that ended, and
// removes them.
func TestNextHostEndsWhatIsInTheControlGroup(t *testing.T) {
	needCgroups(t)
	file := filepath.Join(t.TempDir(), "pid")
	spec := shell(t, `setsid env -i sh -c 'trap "" TERM; echo $$ > `+file+`; while :; do sleep 0.05; done' & `+loop)
	spec.Limits = Limits{Memory: 1 << 30, Processes: 50}
	cmd, ref := host(t, spec)
	child := readPid(t, file)
	cmd.Process.Kill()
	cmd.Wait()
	if err := syscall.Kill(ref.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the leader's end", func() bool { return !alive(ref.PID) })
	if _, err := Find(t.Context(), ref); !errors.Is(err, ErrGone) || !alive(child) {
		t.Fatalf("the leader is gone and the child %d is not: %v", child, err)
	}
	for name, stranger := range map[string]Ref{
		"another token": {Token: NewToken(), BootID: ref.BootID, Cgroup: ref.Cgroup, PidsCgroup: ref.PidsCgroup},
		"another boot":  {Token: ref.Token, BootID: "another", Cgroup: ref.Cgroup, PidsCgroup: ref.PidsCgroup},
	} {
		if err := Clean(within(t, time.Millisecond), stranger); err != nil || !alive(child) {
			t.Fatalf("%s: %v, or the child was stopped", name, err)
		}
	}
	// From the intent: the host may have been killed before it knew more.
	if err := Clean(within(t, 100*time.Millisecond), Ref{
		Token: ref.Token, BootID: ref.BootID, LogPath: ref.LogPath, Cgroup: ref.Cgroup, PidsCgroup: ref.PidsCgroup,
	}); err != nil {
		t.Fatal(err)
	}
	if alive(child) {
		t.Error("the child is still there")
	}
	noCgroups(t, ref)
}

// A start that fails leaves no control group, and the host is in none of them.
func TestNoControlGroupIsLeft(t *testing.T) {
	needCgroups(t)
	before := statusOf(t, "/proc/self/cgroup", "")
	spec := shell(t, "")
	spec.Limits = Limits{Processes: 50}
	spec.Path = "/does/not/exist"
	if _, err := Start(spec); err == nil {
		t.Fatal("started")
	}
	noCgroups(t, spec.Intent())
	spec = shell(t, loop)
	spec.Limits = Limits{Processes: 50}
	spec.DieWithHost = true // so that the thread that forked stays
	p := mustStart(t, spec)
	noThreads(t, spec.Token)
	if after := statusOf(t, "/proc/self/cgroup", ""); after != before {
		t.Errorf("the host was in\n%s\nand is in\n%s", before, after)
	}
	if err := p.Stop(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	noCgroups(t, p.Ref())
}

// No host sees the end of a process that ends with its host.
func TestControlGroupsThatNobodyUsesAreSwept(t *testing.T) {
	needCgroups(t)
	spec := shell(t, loop)
	spec.Limits, spec.DieWithHost = Limits{Processes: 50}, true
	cmd, ref := host(t, spec)
	running := mustStart(t, func() Spec { s := shell(t, loop); s.Limits = spec.Limits; return s }())
	defer running.Stop(within(t, 5*time.Second))
	young := Spec{Token: NewToken(), Limits: spec.Limits}
	makeCgroups(young).close()
	defer removeCgroups(young.Intent())
	cmd.Process.Kill()
	cmd.Wait()
	sweep := func(at time.Time) {
		sweepCgroups(parents().unified, at)
		sweepCgroups(parents().pids, at)
	}
	sweep(time.Now())
	for _, dir := range young.Intent().cgroups() {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("a young one was swept: %v", err)
		}
	}
	waitFor(t, "the end of its groups", func() bool { // the kernel takes the process out a little later
		sweep(time.Now().Add(unused + time.Second))
		for _, dir := range ref.cgroups() {
			if _, err := os.Stat(dir); err == nil {
				return false
			}
		}
		return len(ref.cgroups()) > 0
	})
	for _, dir := range running.Ref().cgroups() {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("one that is in use was swept: %v", err)
		}
	}
}

func TestUsage(t *testing.T) {
	const size = 64 << 20
	for name, limits := range map[string]Limits{"in a control group": {Memory: 1 << 30}, "in its process group": {}} {
		t.Run(name, func(t *testing.T) {
			// tail keeps a line in its memory until it is whole.
			spec := shell(t, fmt.Sprintf(`(head -c %d /dev/zero; sleep 1000) | tail & while :; do :; done`, size))
			spec.Limits = limits
			p := mustStart(t, spec)
			waitFor(t, "its memory", func() bool { return p.Usage().Memory >= size })
			waitFor(t, "its time", func() bool { return p.Usage().CPU >= 200*time.Millisecond })
			if u := p.Usage(); u.Processes < 3 || u.Processes > 5 || u.Memory > 2*size {
				t.Errorf("%+v", u)
			}
			if err := p.Stop(within(t, 5*time.Second)); err != nil {
				t.Fatal(err)
			}
			if u := p.Usage(); u != (Usage{}) {
				t.Errorf("after its end: %+v", u)
			}
		})
	}
}

// statusOf returns one field of a status file, or all of the file.
func statusOf(t *testing.T, path, field string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if field == "" {
		return string(data)
	}
	_, rest, ok := strings.Cut(string(data), "\n"+field+":")
	if !ok {
		t.Fatalf("no %s in %s", field, path)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

func needCgroups(t *testing.T) {
	t.Helper()
	if parents().unified == "" && parents().pids == "" {
		t.Skipf("needs control groups (%v); not covered: what left its group and its token", Unlimited())
	}
}

// noThreads checks that no thread of the host is in the control groups of a process.
func noThreads(t *testing.T, token string) {
	t.Helper()
	threads, _ := filepath.Glob("/proc/self/task/*/cgroup")
	for _, thread := range threads {
		if data, err := os.ReadFile(thread); err == nil && strings.Contains(string(data), token) {
			t.Errorf("a thread of the host is in the process's group:\n%s", data)
		}
	}
}

func noCgroups(t *testing.T, ref Ref) {
	t.Helper()
	if len(ref.cgroups()) == 0 {
		t.Error("it had no control group")
	}
	for _, dir := range ref.cgroups() {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the control group %s is left: %v", dir, err)
		}
	}
}
