package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupPrefix begins the name of a control group of ours; the process's token follows.
const cgroupPrefix = "pannier-"

// cgroups names the control groups for a process of this spec: below the host's own, so
// that they are inside whatever bounds that.
func (s Spec) cgroups() (unified, pids string) {
	if s.Limits.Memory == 0 && s.Limits.Processes == 0 {
		return "", ""
	}
	name := cgroupPrefix + s.Token
	if base := parents().unified; base != "" {
		unified = filepath.Join(base, name)
	}
	if base := parents().pids; base != "" {
		pids = filepath.Join(base, name)
	}
	return unified, pids
}

// cgroups are the control groups of a Ref, where they stand for it alone.
func (r Ref) cgroups() []string {
	return slices.DeleteFunc([]string{r.Cgroup, r.PidsCgroup}, func(dir string) bool {
		return r.Token == "" || filepath.Base(dir) != cgroupPrefix+r.Token
	})
}

// cgroups are control groups that a process is about to be started in.
type cgroups struct {
	unified *os.File // cgroup v2's folder; nil: none
	pids    string   // that of cgroup v1's pids; empty: none
}

// makeCgroups makes the control groups of a process and sets its limits; nil where none
// can be had, which Unlimited has told.
func makeCgroups(spec Spec) *cgroups {
	g := &cgroups{}
	unified, pids := spec.cgroups()
	if makeCgroup(unified, spec.Limits) {
		if fd, err := unix.Open(unified, unix.O_DIRECTORY|unix.O_PATH|unix.O_CLOEXEC, 0); err == nil {
			g.unified = os.NewFile(uintptr(fd), unified)
		}
	}
	if makeCgroup(pids, spec.Limits) {
		g.pids = pids
	}
	if g.unified == nil && g.pids == "" {
		return nil
	}
	return g
}

func makeCgroup(dir string, limits Limits) bool {
	if dir == "" || os.Mkdir(dir, 0o755) != nil {
		return false
	}
	// Which of these files there are is up to the folder above.
	if n := limits.Processes; n > 0 {
		setControl(dir, "pids.max", strconv.Itoa(n))
	}
	if n := limits.Memory; n > 0 {
		setControl(dir, "memory.max", strconv.FormatInt(n+n/4, 10))
		setControl(dir, "memory.oom.group", "1")
	}
	return true
}

// setControl writes a file of a control group, if it has that.
func setControl(dir, file, value string) {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return
	}
	_, _ = f.WriteString(value)
	_ = f.Close()
}

func (g *cgroups) close() {
	if g != nil && g.unified != nil {
		_ = g.unified.Close()
	}
}

// into lets a process be forked right into the group of cgroup v2.
func (g *cgroups) into(attr *syscall.SysProcAttr) {
	if g != nil && g.unified != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(g.unified.Fd())
	}
}

// enter takes the calling thread into the group of cgroup v1, which what it forks is
// then in from the beginning. leave takes the thread back.
func (g *cgroups) enter() (leave func()) {
	if g == nil || g.pids == "" {
		return func() {}
	}
	tid := strconv.Itoa(unix.Gettid())
	setControl(g.pids, "tasks", tid)
	return func() { setControl(filepath.Dir(g.pids), "tasks", tid) }
}

// inCgroups lists the processes in the control groups of a Ref.
func inCgroups(ref Ref) (pids []int) {
	for _, dir := range ref.cgroups() {
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(data)) {
			pid, err := strconv.Atoi(field)
			// The host itself is listed while a thread of it is in there to fork.
			if err == nil && pid > 0 && pid != os.Getpid() && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// killCgroups kills all that is in the control groups of a Ref at once, so that nothing
// can be forked faster than it is killed. What kernels before 5.14 leave is killed one
// by one: in cgroup v1 it cannot fork any more.
func killCgroups(ref Ref) {
	for _, dir := range ref.cgroups() {
		setControl(dir, "pids.max", "0")
		setControl(dir, "cgroup.kill", "1")
	}
}

// removeCgroups removes the control groups of a Ref whose processes have ended. The last
// of them is in its group until the kernel has taken it apart. A group that is left does
// no harm.
func removeCgroups(ref Ref) {
	for _, dir := range ref.cgroups() {
		for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
			if err := unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				break
			}
		}
	}
}

// outOfMemory tells whether the kernel ended processes of a Ref for their memory, for
// people; empty: it did not.
func outOfMemory(ref Ref) string {
	for _, dir := range ref.cgroups() {
		data, err := os.ReadFile(filepath.Join(dir, "memory.events"))
		if err != nil {
			continue
		}
		if counted(data, "oom_kill") > 0 {
			most, _ := os.ReadFile(filepath.Join(dir, "memory.max"))
			return fmt.Sprintf(" (by the kernel: its control group has no more than %s bytes of memory)", strings.TrimSpace(string(most)))
		}
	}
	return ""
}

// refusedForks is how often processes of a Ref could not fork since they were too many.
func refusedForks(ref Ref) (n int) {
	for _, dir := range ref.cgroups() {
		if data, err := os.ReadFile(filepath.Join(dir, "pids.events")); err == nil {
			n += counted(data, "max")
		}
	}
	return n
}

// counted is one number of an events file: lines of "NAME NUMBER".
func counted(events []byte, name string) int {
	for line := range strings.Lines(string(events)) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			return n
		}
	}
	return 0
}
