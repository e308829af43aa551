package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
)

// program is a shell script that runs, with private in a mount namespace of its own. What is left of it is killed when
// the test ends.
type program struct {
	*exec.Cmd
	inode uint64
	reap  func()
}

// run starts a script and returns once it has printed "ready".
func runScript(t *testing.T, private bool, script string) program {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if private {
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	out, err := cmd.StdoutPipe()
	check.NoError(t, err)
	check.NoError(t, cmd.Start())
	pin, ns, err := namespaceOf(cmd.Process.Pid)
	check.NoError(t, err)
	reap := sync.OnceFunc(func() { _ = cmd.Wait() })
	t.Cleanup(func() {
		if private {
			for _, pid := range process.InMountNamespace(ns.Inode) {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		reap()
		pin.Close()
	})
	line := bufio.NewScanner(out)
	for line.Scan() && line.Text() != "ready" {
	}
	check.NoError(t, line.Err())
	if line.Text() != "ready" {
		t.Fatalf("the script ended before it was ready: %s", script)
	}
	return program{cmd, ns.Inode, reap}
}

const (
	idle = "echo ready; exec sleep 1000"
	// stubborn ignores SIGTERM.
	stubborn = "trap '' TERM; echo ready; sleep 1000"
	// daemonising leaves a grandchild that is in a session of its own and ignores SIGTERM.
	daemonising = `setsid sh -c 'trap "" TERM; (echo ready; exec sleep 1000) & exit' & exec sleep 1000`
)

func (p program) pid() int { return p.Process.Pid }

func (p program) ref() process.Ref { return refOf(p.pid()) }

// refOf is what the kernel says of a process, or of one that has ended.
func refOf(pid int) process.Ref {
	st, err := procfs.ReadStat(procfs.Dir(pid))
	if err != nil {
		st.StartTime = 1
	}
	return process.Ref{BootID: process.BootID(), PID: pid, StartTime: st.StartTime}
}

// kill sends SIGKILL to the process alone.
func (p program) kill(t *testing.T) {
	t.Helper()
	check.NoError(t, p.Process.Kill())
	p.reap()
}

// alive reports whether the process itself has not ended.
func (p program) alive() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid()))
	return err == nil && !strings.Contains(string(stat), ") Z ") && !strings.Contains(string(stat), ") X ")
}

// A stop kills all that is in the mount namespace of a workload's process: an owner names none in a namespace that it
// shares with others, unless that is the agent's, in which nothing is killed but the process.
func TestOwnerNamesNoneInASharedNamespace(t *testing.T) {
	const parent = "sleep 1000 & echo ready; wait"
	for _, private := range []bool{false, true} {
		owner := runScript(t, private, parent)
		children := check.Must(os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", owner.pid())))(t)
		child, err := strconv.Atoi(strings.TrimSpace(string(children)))
		check.NoError(t, err)
		ref := owner.ref()
		i := &instance{rec: record{Owner: &ref}}
		if err := i.mayName(child, ref); errors.Is(err, ErrNotOwner) != private || err != nil && !private {
			t.Errorf("with an owner in a namespace of its own, %t: %v", private, err)
		}
	}
}

// A later process with the owner's PID is not the owner: it has not started the workload, and is not to be killed with
// it.
func TestALaterProcessIsNoOwner(t *testing.T) {
	h, owner := newHost(t), runScript(t, false, idle)
	h.volume(t, full, "a")
	_, err := h.Start(t.Context(), spec("w", "a"), Options{Owner: owner.ref()})
	check.NoError(t, err)
	later := owner.ref()
	later.StartTime++
	if err := h.Running(ref("w"), owner.pid(), later); !errors.Is(err, ErrNotOwner) {
		t.Errorf("a later process names the workload's: %v", err)
	}
	if _, err := h.Start(t.Context(), spec("other"), Options{Owner: later}); !errors.Is(err, process.ErrGone) {
		t.Errorf("a later process owns a workload: %v", err)
	}
	earlier := owner.ref()
	earlier.StartTime--
	if err := (&instance{rec: record{Owner: &earlier}}).isOwner(owner.ref()); !errors.Is(err, ErrNotOwner) {
		t.Errorf("a later process is taken for the owner: %v", err)
	}
	check.NoError(t, h.Running(ref("w"), owner.pid(), owner.ref()))
	h.stop(t, "w")
	h.clean(t)
}

func TestTheOwnerEnds(t *testing.T) {
	t.Run("while it runs", func(t *testing.T) {
		h, owner := newHost(t), runScript(t, false, idle)
		h.volume(t, full, "a")
		w, err := h.Start(t.Context(), spec("w", "a"), Options{Owner: owner.ref()})
		if err != nil || w.OwnerPID != owner.pid() {
			t.Fatalf("%+v, %v", w, err)
		}
		owner.kill(t)
		if w := h.ended(t, "w"); w.State != Stopped || !strings.Contains(w.Message, "its owner") {
			t.Errorf("%s: %s", w.State, w.Message)
		}
		h.clean(t)
	})
	t.Run("while it starts", func(t *testing.T) {
		h, owner := newHost(t), runScript(t, false, idle)
		h.volume(t, full, "a")
		held := newGate()
		h.on("stage:after", 1, held.hold)
		h.impatient()
		go func() { held.await(t); owner.kill(t) }()
		_, err := h.Start(t.Context(), spec("w", "a"), Options{Owner: owner.ref()})
		if w := h.ended(t, "w"); !errors.Is(err, ErrFailed) || w.State != Failed ||
			!strings.Contains(w.Message, "given up: its owner") {
			t.Errorf("%s: %v", w.State, err)
		}
		h.clean(t)
	})
	t.Run("before it starts", func(t *testing.T) {
		h, owner := newHost(t), runScript(t, false, idle)
		owner.kill(t)
		if _, err := h.Start(t.Context(), spec("w"), Options{Owner: owner.ref()}); !errors.Is(err, process.ErrGone) {
			t.Error(err)
		}
		h.clean(t)
	})
	for _, state := range []State{Starting, Running} {
		t.Run("while the host is away and it is "+string(state), func(t *testing.T) {
			h, owner := newHost(t), runScript(t, false, idle)
			h.volume(t, full, "a")
			held := newGate()
			if state == Starting {
				h.on("stage:before", 1, held.hold)
				go func() { _, _ = h.Start(context.Background(), spec("w", "a"), Options{Owner: owner.ref()}) }()
				held.await(t)
			} else if _, err := h.Start(t.Context(), spec("w", "a"), Options{Owner: owner.ref()}); err != nil {
				t.Fatal(err)
			}
			h = h.next(t)
			owner.kill(t)
			h.open(t)
			if w := h.ended(t, "w"); !strings.Contains(w.Message, "its owner") {
				t.Errorf("%s: %s", w.State, w.Message)
			}
			if h.count("claim w")+h.count("stage a")+h.count("publish a") > 0 {
				t.Errorf("steps were taken: %v", h.happened())
			}
			h.clean(t)
		})
	}
}

// The owner outlives the host and is observed by the next one.
func TestTheOwnerEndsAfterARestart(t *testing.T) {
	h, owner := newHost(t), runScript(t, false, idle)
	h.volume(t, full, "a")
	_, err := h.Start(t.Context(), spec("w", "a"), Options{Owner: owner.ref()})
	check.NoError(t, err)
	h = h.restart(t)
	if w := h.running(t, "w"); w.OwnerPID != owner.pid() {
		t.Errorf("its owner is %d", w.OwnerPID)
	}
	owner.kill(t)
	h.ended(t, "w")
	h.clean(t)
}

func TestTheProcessEnds(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			h, p := newHost(t), runScript(t, true, daemonising)
			h.volume(t, full, "a")
			h.start(t, spec("w", "a"))
			check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
			if w, _ := h.Get(ref("w")); w.PID != p.pid() {
				t.Errorf("its process is %d", w.PID)
			}
			if restart {
				h = h.restart(t)
			}
			p.kill(t)
			if w := h.ended(t, "w"); w.State != Stopped || !strings.Contains(w.Message, "its process") {
				t.Errorf("%s: %s", w.State, w.Message)
			}
			if left := process.InMountNamespace(p.inode); len(left) > 0 {
				t.Errorf("its children live on: %v", left)
			}
			h.clean(t)
		})
	}
}

func TestAStopAsksAndThenKills(t *testing.T) {
	t.Run("asks", func(t *testing.T) {
		h := newHost(t)
		h.volume(t, full, "a")
		w := h.start(t, spec("w", "a"))
		note := filepath.Join(w.Mounts[0].HostPath, "note") // it can still write what it has
		p := runScript(t, true, fmt.Sprintf("trap 'echo bye >%s; exit' TERM; echo ready; sleep 1000 & wait", note))
		check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
		h.stop(t, "w")
		if said, err := os.ReadFile(filepath.Join(h.driver.base, "external-a", "note")); string(said) != "bye\n" {
			t.Errorf("it was not asked: %q, %v", said, err)
		}
		h.clean(t)
	})
	t.Run("asks by its own signal, and has its own time", func(t *testing.T) {
		h := newHost(t)
		sp := spec("w")
		sp.Exec = &specs.Exec{Command: "sh", KillSignal: "SIGINT", KillTimeout: "300ms"}
		h.start(t, sp)
		note := filepath.Join(t.TempDir(), "note")
		p := runScript(t, true, fmt.Sprintf("trap 'echo bye >%s' INT; echo ready; while :; do sleep 0.01; done", note))
		check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
		h.stop(t, "w")
		if said, err := os.ReadFile(note); string(said) != "bye\n" || p.alive() {
			t.Errorf("it was not asked, or lives: %q, %v", said, err)
		}
		h.clean(t)
	})
	t.Run("kills", func(t *testing.T) {
		h, p := newHost(t), runScript(t, false, stubborn)
		h.limits.stopGrace = time.Millisecond
		h.volume(t, full, "a")
		h.start(t, spec("w", "a"))
		check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
		h.on("unpublish:before", 1, func(context.Context) error {
			if p.alive() {
				t.Error("it is unmounted while its process lives")
			}
			return nil
		})
		h.stop(t, "w")
		if p.alive() {
			t.Error("it lives")
		}
		h.clean(t)
	})
}

// Every process in the private mount namespace keeps the volume's mounts; no process outside of it is touched.
func TestAStopEmptiesTheMountNamespace(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	p := runScript(t, true, daemonising)
	outside, elsewhere := runScript(t, false, idle), runScript(t, true, idle)
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	if n := len(process.InMountNamespace(p.inode)); n < 2 {
		t.Fatalf("%d processes in the namespace, want the process and its grandchild", n)
	}
	h.on("unpublish:before", 1, func(context.Context) error {
		if left := process.InMountNamespace(p.inode); len(left) > 0 {
			t.Errorf("it is unmounted while %v live in its namespace", left)
		}
		if i, err := h.known.find(ref("w")); err != nil || i.pin != nil || i.rec.MountNS != nil {
			t.Errorf("the namespace, and with it the mount, is held: %v", err)
		}
		return nil
	})
	h.stop(t, "w")
	if !outside.alive() || !elsewhere.alive() {
		t.Error("a process outside of the namespace was killed")
	}
	h.clean(t)
}

// An owner may end what its workload's process has left, such as a sidecar, in its own way and time. When the owner
// itself ends, the host does it at once.
func TestAnOwnerEndsTheRestFirst(t *testing.T) {
	for _, ends := range []bool{false, true} {
		t.Run(fmt.Sprintf("the owner ends %t", ends), func(t *testing.T) {
			h, dir := newHost(t), t.TempDir()
			note, pidFile := filepath.Join(dir, "note"), filepath.Join(dir, "pid")
			owner := runScript(t, false, fmt.Sprintf(`unshare -m --propagation unchanged sh -c 'echo $$ >%s
				setsid sh -c "trap \"sleep 0.3; echo bye >%s; exit\" TERM; echo ready; while :; do sleep 0.01; done" &
				exec sleep 1000' & wait; exec sleep 1000`, pidFile, note))
			h.volume(t, full, "a")
			_, err := h.Start(t.Context(), spec("w", "a"), Options{Owner: owner.ref()})
			check.NoError(t, err)
			text, err := os.ReadFile(pidFile)
			check.NoError(t, err)
			pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
			check.NoError(t, err)
			namespace, err := procfs.MountNamespace(procfs.Dir(pid))
			check.NoError(t, err)
			check.NoError(t, h.Running(ref("w"), pid, owner.ref()))
			check.NoError(t, unix.Kill(pid, unix.SIGKILL))
			h.eventually(t, "w", "the end of its process to be seen", func(w Workload) bool { return w.State == Stopping })
			rest := process.InMountNamespace(namespace)
			if len(rest) == 0 {
				t.Fatal("the rest was ended before its owner could")
			}
			if ends {
				owner.kill(t)
			} else {
				for _, pid := range rest {
					if err := unix.Kill(pid, unix.SIGTERM); !errors.Is(err, unix.ESRCH) { // its sleeps come and go
						check.NoError(t, err)
					}
				}
			}
			h.ended(t, "w")
			said, _ := os.ReadFile(note) // not there where it was not asked
			if asked := string(said) == "bye\n"; asked == ends {
				t.Errorf("the rest was asked to end: %t", asked)
			}
			h.clean(t)
		})
	}
}

func TestTheHostsOwnNamespaceIsNeverEmptied(t *testing.T) {
	h, p, bystander := newHost(t), runScript(t, false, idle), runScript(t, false, idle)
	h.start(t, spec("w"))
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	i, err := h.known.find(ref("w"))
	check.NoError(t, err)
	if i.rec.MountNS != nil || i.pin != nil {
		t.Fatalf("the host's own namespace was noted: %+v", i.rec.MountNS) // and this test would be killed next
	}
	h.stop(t, "w")
	if p.alive() || !bystander.alive() {
		t.Errorf("its process lives: %t, the bystander: %t", p.alive(), bystander.alive())
	}
}

// The workload's process ended while no host was running, and its namespace's number may belong to another one now:
// only the kernel's ID proves which it is.
func TestAMountNamespaceAfterARestart(t *testing.T) {
	for name, c := range map[string]struct {
		change func(rec *record)
		killed bool
	}{
		"the same":                 {func(*record) {}, true},
		"a later one":              {func(rec *record) { rec.MountNS.ID++ }, false},
		"a kernel that cannot say": {func(rec *record) { rec.MountNS.ID = 0 }, false},
		"another boot":             {func(rec *record) { rec.BootID = "another" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			h, p := newHost(t), runScript(t, true, daemonising)
			h.start(t, spec("w"))
			check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
			h.shut(t)
			p.kill(t)
			h = prepareHost(t, h.dir)
			rec := h.record(t, "w")
			if rec.MountNS.ID == 0 && c.killed {
				t.Skip("this kernel gives mount namespaces no ID")
			}
			c.change(rec)
			check.NoError(t, h.journal.Update(func(tx *journal.Tx) error { return records.Put(tx, key(ref("w")), rec) }))
			if rec.MountNS.ID == 0 {
				i, err := h.restore(t.Context(), rec)
				check.NoError(t, err)
				i.releaseProcesses()
				if i.rec.MountNS != nil {
					t.Error("a number alone counts")
				}
			}
			h.open(t)
			h.ended(t, "w")
			if left := process.InMountNamespace(p.inode); (len(left) == 0) != c.killed {
				t.Errorf("in the namespace live %v", left)
			}
			h.clean(t)
		})
	}
}

func (h *host) record(t *testing.T, id string) (rec *record) {
	t.Helper()
	check.NoError(t, h.journal.View(func(tx *journal.Tx) (err error) {
		rec, err = records.Get(tx, key(ref(id)))
		return err
	}))
	return rec
}

func TestRunningAfterTheEnd(t *testing.T) {
	h, p, other := newHost(t), runScript(t, true, idle), runScript(t, true, idle)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	if err := h.Running(ref("w"), other.pid(), process.Ref{}); !errors.Is(err, ErrConflict) {
		t.Errorf("a second process: %v", err)
	}
	held := newGate()
	h.on("end:before", 1, held.hold)
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
	held.await(t)
	if err := h.Running(ref("w"), other.pid(), process.Ref{}); err == nil || !strings.Contains(err.Error(), "may not begin") {
		t.Errorf("while it stops: %v", err)
	}
	close(held.open)
	h.ended(t, "w")
	if err := h.Running(ref("w"), other.pid(), process.Ref{}); err == nil {
		t.Error("when it has stopped")
	}
	h.clean(t) // no record came back
	if !other.alive() {
		t.Error("a process that was refused was killed")
	}
}

// No descriptor of a workload stays open after its end.
func TestDescriptorsAreClosed(t *testing.T) {
	h, owner := prepareHost(t, newDir(t)), refOf(os.Getpid()) // not beside others
	h.open(t)
	before := descriptors(t)
	for range 3 {
		p := runScript(t, true, idle)
		_, err := h.Start(t.Context(), spec("w"), Options{Owner: owner})
		check.NoError(t, err)
		check.NoError(t, h.Running(ref("w"), p.pid(), owner))
		h.stop(t, "w")
		i, err := h.known.find(ref("w"))
		check.NoError(t, err)
		awaitClosed(t, i.ended, "the end of the workload")
		if i.pin != nil {
			t.Error("the mount namespace is held open")
		}
		p.reap()
	}
	check.NoError(t, h.journal.Close())
	if _, err := h.Start(t.Context(), spec("w"), Options{Owner: owner}); err == nil {
		t.Error("a start without a journal")
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors of processes, %d before", after, before)
	}
}

// descriptors counts the open descriptors of processes.
func descriptors(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	check.NoError(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, "pidfd") {
			n++
		}
	}
	return n
}
