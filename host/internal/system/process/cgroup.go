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

// cgroupPrefix begins the name of our control groups; the process's token follows.
const cgroupPrefix = "pannier-"

// cgroups returns the control groups for a process of this spec. They are below the host's own, so the host's limits
// apply to them too.
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

// cgroups returns the control groups of a Ref that were made for it alone.
func (r Ref) cgroups() []string {
	return slices.DeleteFunc([]string{r.Cgroup, r.PidsCgroup}, func(dir string) bool {
		return r.Token == "" || filepath.Base(dir) != cgroupPrefix+r.Token
	})
}

// cgroups are the control groups that a process is about to be started in.
type cgroups struct {
	unified *os.File // the directory in cgroup v2; nil: none
	pids    string   // the directory in cgroup v1's pids hierarchy; empty: none
}

// makeCgroups makes the control groups of a process and sets its limits; nil if none can be made (see Unlimited).
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
	// The directory above decides which of these files exist.
	if n := limits.Processes; n > 0 {
		setControl(dir, "pids.max", strconv.Itoa(n))
	}
	if n := limits.Memory; n > 0 {
		setControl(dir, "memory.max", strconv.FormatInt(n+n/4, 10))
		setControl(dir, "memory.oom.group", "1")
	}
	return true
}

// setControl writes a file of a control group, if it exists.
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

// into makes the process start directly in the group of cgroup v2.
func (g *cgroups) into(attr *syscall.SysProcAttr) {
	if g != nil && g.unified != nil {
		attr.UseCgroupFD, attr.CgroupFD = true, int(g.unified.Fd())
	}
}

// enter moves the calling thread into the group of cgroup v1, where the processes that it forks then start. The kernel
// may take 10 ms and more for it, and for leave, since it waits for all processors.
func (g *cgroups) enter() {
	if g != nil && g.pids != "" {
		setControl(g.pids, "tasks", strconv.Itoa(unix.Gettid()))
	}
}

// leave moves the thread back. A thread that ends need not leave.
func (g *cgroups) leave() {
	if g != nil && g.pids != "" {
		setControl(filepath.Dir(g.pids), "tasks", strconv.Itoa(unix.Gettid()))
	}
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
			// The host itself is listed while one of its threads is in the group to fork.
			if err == nil && pid > 0 && pid != os.Getpid() && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// killCgroups kills everything in the control groups of a Ref at once, so that nothing can fork faster than it is
// killed. Kernels before 5.14 lack cgroup.kill: their processes are killed one by one, and cannot fork any more in
// cgroup v1.
func killCgroups(ref Ref) {
	for _, dir := range ref.cgroups() {
		setControl(dir, "pids.max", "0")
		setControl(dir, "cgroup.kill", "1")
	}
}

// removeCgroups removes the control groups of a Ref whose processes have ended. The kernel may take a moment to
// release the last one. A group that is left does no harm.
func removeCgroups(ref Ref) {
	for _, dir := range ref.cgroups() {
		for end := time.Now().Add(time.Second); ; time.Sleep(time.Millisecond) {
			if err := unix.Rmdir(dir); !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				break
			}
		}
	}
}

// outOfMemory says, for people, that the kernel killed processes of a Ref because of their memory; empty: it did not.
func outOfMemory(ref Ref) string {
	for _, dir := range ref.cgroups() {
		data, err := os.ReadFile(filepath.Join(dir, "memory.events"))
		if err != nil {
			continue
		}
		if counted(data, "oom_kill") > 0 {
			most, _ := os.ReadFile(filepath.Join(dir, "memory.max"))
			return fmt.Sprintf(" (by the kernel: its control group is limited to %s bytes of memory)",
				strings.TrimSpace(string(most)))
		}
	}
	return ""
}

// refusedForks returns how often processes of a Ref could not fork because they were too many.
func refusedForks(ref Ref) (n int) {
	for _, dir := range ref.cgroups() {
		if data, err := os.ReadFile(filepath.Join(dir, "pids.events")); err == nil {
			n += counted(data, "max")
		}
	}
	return n
}

// counted returns one number of an events file, which has lines of "NAME NUMBER".
func counted(events []byte, name string) int {
	for line := range strings.Lines(string(events)) {
		if text, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(text))
			return n
		}
	}
	return 0
}
