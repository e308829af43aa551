package fence

import (
	"bufio"
	"context"
	"encoding/json"
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

	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/test/lib/powerloss"
)

// agent is a process with a Client.
type agent struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startAgent(t *testing.T, dir string) *agent {
	t.Helper()
	a := &agent{Cmd: exec.Command(os.Args[0])}
	a.Env = append(os.Environ(), envAgent+"="+dir)
	a.Stderr = os.Stderr
	var err error
	a.in, err = a.StdinPipe()
	must(t, err)
	out, err := a.StdoutPipe()
	must(t, err)
	a.out = bufio.NewReader(out)
	must(t, a.Start())
	t.Cleanup(func() { _ = a.Process.Kill(); _ = a.Wait() })
	return a
}

// tell makes the agent send its fence a state.
func (a *agent) tell(t *testing.T, s State) {
	t.Helper()
	must(t, json.NewEncoder(a.in).Encode(s))
	if line, err := a.out.ReadString('\n'); line != "told <nil>\n" {
		t.Fatalf("the agent said %q, %v", line, err)
	}
}

// fencePID returns the process that listens for a folder.
func fencePID(t *testing.T, dir string) int {
	t.Helper()
	pid := lockHolder(t, dir)
	if pid == 0 {
		t.Fatal("no process has the lock of the fence's folder")
	}
	return pid
}

// lockHolder returns the process that has the lock of a fence's folder; 0: none has it.
func lockHolder(t *testing.T, dir string) int {
	t.Helper()
	var lock unix.Stat_t
	must(t, unix.Stat(filepath.Join(dir, lockFile), &lock))
	locks, err := os.ReadFile("/proc/locks") // proc_locks(5); asking the fence would cut its agent off
	must(t, err)
	for line := range strings.Lines(string(locks)) {
		words := strings.Fields(line)
		if len(words) > 5 && words[1] == "FLOCK" && strings.HasSuffix(words[5], fmt.Sprintf(":%d", lock.Ino)) {
			pid, err := strconv.Atoi(words[4])
			must(t, err)
			return pid
		}
	}
	return 0
}

// State that the fence has confirmed stays in effect, whatever happens to the agent.
func TestAnAgentThatIsStoppedOrKilled(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"stopped": syscall.SIGSTOP, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			v, dir := ext4(t), folder(t)
			a := startAgent(t, dir)
			w := writer(t, filepath.Join(v.target, "times"))
			deadline := boottime.Now().Add(time.Second)
			a.tell(t, State{Times: Times{Stop: deadline, Deadline: deadline}, Mounts: v.mounts})
			must(t, a.Process.Signal(signal))
			notBefore(t, "the writer ended", w.ends(t), deadline)
			r := finished(t, dir, 1)
			if last := lastWritten(t, v.read(t, "times")); last > r.Done {
				t.Errorf("something was written %v after the fence said that it was done", last.Sub(r.Done))
			}
			if name == "killed" {
				if s := open(t, dir).State(); len(s.Mounts) != len(v.mounts) || s.Times.Deadline != deadline {
					t.Errorf("the next agent is told %+v", s)
				}
			}
		})
	}
}

// An agent that is back before the deadline postpones it, and nothing has been unmounted.
func TestNextAgentRenewsTheLease(t *testing.T) {
	v, dir := bound(t), folder(t)
	a := startAgent(t, dir)
	deadline := boottime.Now().Add(time.Hour)
	a.tell(t, State{Times: Times{Stop: deadline, Deadline: deadline}, Mounts: v.mounts})
	fence := fencePID(t, dir)
	must(t, a.Process.Kill())
	c := open(t, dir)
	setDeadline(t, c, deadline.Add(time.Hour))
	if got := c.State(); len(got.Mounts) != 2 {
		t.Errorf("it is told %+v", got)
	}
	if !mounted(t, v.target) || fencePID(t, dir) != fence {
		t.Error("something was taken away, or there is another fence")
	}
}

// A fence that is killed or stopped is restarted with its state.
func TestAFenceThatIsKilledOrStopped(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			v, dir := bound(t), folder(t)
			c := open(t, dir)
			before := boottime.Now().Add(time.Hour)
			update(t, c, func(c Change) { c.Protect(v.mounts[0]); c.SetTimes(Times{Stop: before, Deadline: before}) })
			w := writer(t, filepath.Join(v.target, "times"))
			must(t, syscall.Kill(fencePID(t, dir), signal))
			update(t, c, func(c Change) { c.Protect(v.mounts[1]) }) // what is published meanwhile
			if !w.lives() {
				t.Error("the next fence acted before the deadline")
			}
			deadline := boottime.Now().Add(300 * time.Millisecond)
			setDeadline(t, c, deadline)
			notBefore(t, "the writer ended", w.ends(t), deadline)
			if r := finished(t, dir, 1); len(r.Unmounted) != 2 {
				t.Errorf("the report is %+v", r)
			}
		})
	}
}

// If agent and fence are killed, the next fence acts on the state that the previous one saved.
func TestAgentAndFenceAreKilled(t *testing.T) {
	v, dir := bound(t), folder(t)
	a := startAgent(t, dir)
	w := writer(t, filepath.Join(v.target, "times"))
	deadline := boottime.Now().Add(2 * time.Second)
	a.tell(t, State{Times: Times{Stop: deadline, Deadline: deadline}, Mounts: v.mounts})
	fence := fencePID(t, dir)
	must(t, a.Process.Kill())
	_ = a.Wait()
	must(t, syscall.Kill(fence, syscall.SIGKILL))
	open(t, dir)
	notBefore(t, "the writer ended", w.ends(t), deadline)
	finished(t, dir, 1)
}

func TestOneFenceForAFolder(t *testing.T) {
	dir := folder(t)
	c := open(t, dir)
	if err := Run(t.Context(), dir, io.Discard); !errors.Is(err, ErrRunning) {
		t.Errorf("a second fence: %v", err)
	}
	update(t, c, func(c Change) { c.Protect(Mount{Path: "/nowhere"}) })
	fence := fencePID(t, dir)
	must(t, c.Close()) // a folder has one agent, too
	other := open(t, dir)
	if len(other.State().Mounts) != 1 || fencePID(t, dir) != fence {
		t.Errorf("a second client found %+v", other.State())
	}
	for _, file := range []string{socketFile, lockFile, stateFile(), logFile} {
		info, err := os.Stat(filepath.Join(dir, file))
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v", file, info.Mode())
		}
	}
	update(t, other, func(c Change) { c.Release(Mount{Path: "/nowhere"}) })
}

// A fence ends with its agent if it has nothing to guard, and only then.
func TestAFenceThatIsClosed(t *testing.T) {
	dir := folder(t)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for _, guards := range []bool{true, false} {
		c, err := Open(ctx, config(dir))
		must(t, err)
		update(t, c, func(c Change) {
			if guards {
				c.Protect(Mount{Path: "/nowhere"})
			} else {
				c.Release(Mount{Path: "/nowhere"})
			}
		})
		must(t, c.Close())
		if guards {
			if conn, err := dial(dir); err != nil {
				t.Errorf("a fence that guards something ended: %v", err)
			} else {
				conn.close()
			}
			continue
		}
		eventually(t, "the fence's end", func() bool {
			lock, err := lockFolder(dir)
			if err == nil {
				must(t, lock.Close())
			}
			return err == nil
		})
	}
}

// The state of another boot is ignored and removed. That of this boot has to be whole.
func TestStateOfAnotherBoot(t *testing.T) {
	dir := t.TempDir()
	must(t, saveState(dir, State{Times: Times{Deadline: 1}, Mounts: []Mount{{Path: "/x"}}}))
	other := filepath.Join(dir, "state-another.json")
	must(t, os.Rename(filepath.Join(dir, stateFile()), other))
	if s, err := loadState(dir); err != nil || !s.empty() || s.Times.Deadline != 0 {
		t.Errorf("it is %+v, %v", s, err)
	}
	if _, err := os.Stat(other); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of another boot: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, stateFile()), []byte("{"), 0o600))
	if _, err := loadState(dir); err == nil {
		t.Error("half a file was read")
	}
}

// After a loss of power, and so in another boot, a fence starts, whatever is left of the files.
func TestLossOfPower(t *testing.T) {
	for _, fstype := range powerloss.FileSystems {
		t.Run(fstype, func(t *testing.T) {
			dir, cut := powerloss.Disk(t, fstype)
			run(t, "sync", "--file-system", dir)
			must(t, saveState(dir, State{Times: Times{Deadline: 1}, Mounts: []Mount{{Path: "/x"}}}))
			must(t, writeReport(dir, Report{Unmounted: []string{"/x"}})) // which syncs the directory
			cut()
			left, err := filepath.Glob(filepath.Join(dir, "state-*"))
			must(t, err)
			for _, file := range left { // of the boot before
				must(t, os.Rename(file, filepath.Join(dir, "state-before.json")))
			}
			c := open(t, endFence(t, dir))
			if s := c.State(); len(left) != 1 || !s.empty() || s.Times.Deadline != 0 {
				t.Errorf("of %v was read %+v", left, s)
			}
			if r, err := c.Reports(); err != nil || len(r) != 1 || len(r[0].Unmounted) != 1 {
				t.Errorf("the reports are %+v, %v", r, err)
			}
		})
	}
}
