package supervisor_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/pluginhost/hostservices"
	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/test/lib/check"
)

// A swap moves the process and its listening sockets together, or neither.
func TestSocketsMoveWithTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j, err := journal.Open(t.TempDir(), hclog.NewNullLogger())
	check.NoError(t, err)
	services := hostservices.New(hostservices.Config{Journal: j, Log: hclog.NewNullLogger()})
	w.cfg.Services = services
	dir := filepath.Dir(w.cfg.DataDir)
	set := func(mode string, names ...string) {
		p := supervisor.Plugin{Name: "fixture", Args: []string{mode}}
		for _, name := range names {
			p.Listen = append(p.Listen, supervisor.Socket{Name: name, Address: "unix://" + filepath.Join(dir, name), Mode: 0o600})
		}
		w.cfg.Plugins = slices.Clone(w.cfg.Plugins) // the supervisor has the ones before
		w.configure(p)
	}
	set("good", "a")
	s := w.open()
	t.Cleanup(func() {
		check.NoError(t, errors.Join(s.Close(), services.Close(), j.Close()))
		if left, _ := filepath.Glob(dir + "/[a-d]"); len(left) > 0 {
			t.Errorf("sockets are left: %q", left)
		}
	})
	serves := func(when string, names ...string) (pid int) {
		t.Helper()
		st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running && st.PID != 0 })
		if has := listens(t, st.PID, dir); !slices.Equal(has, names) {
			t.Errorf("%s: process %d has the sockets %q, want %q", when, st.PID, has, names)
		}
		for _, name := range names {
			if conn, err := net.Dial("unix", filepath.Join(dir, name)); err != nil {
				t.Errorf("%s: %v", when, err)
			} else {
				conn.Close()
			}
		}
		return st.PID
	}
	reload := func(refused string) {
		t.Helper()
		tried, err := s.Reload(within(t), w.cfg.Plugins)
		check.NoError(t, err)
		why, listed := tried["fixture"]
		if !listed || (why == nil) != (refused == "") || why != nil && !strings.Contains(why.Error(), refused) {
			t.Errorf("a reload tried %v, want %q", tried, refused)
		}
		if p := status(t, s, "fixture").ConfigProblem; (p == "") != (refused == "") {
			t.Errorf("after a reload that should be refused with %q the problem is %q", refused, p)
		}
	}
	restarted := func(pid int) {
		t.Helper()
		killProcess(t, pid)
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running && st.PID != pid })
	}
	first := serves("at first", "a")

	// An address that is taken is refused, each time, and also the next process has the one before.
	taken, err := net.Listen("unix", filepath.Join(dir, "b"))
	check.NoError(t, err)
	set("good", "b")
	reload("listen")
	reload("listen")
	if pid := serves("after a refused address", "a"); pid != first {
		t.Errorf("process %d was replaced by %d", first, pid)
	}
	restarted(first)
	serves("after a refused address and a restart", "a")
	check.NoError(t, taken.Close())
	reload("")
	serves("when the address is free", "b")
	waitFor(t, "the socket that nobody has any more to go", func() bool { return gone(filepath.Join(dir, "a")) })

	// Taken out and put back, while the process that has it finishes its calls.
	ended := make(chan error, 1)
	go func() {
		_, err := call(t, s, "fixture", "wait "+filepath.Join(dir, "go"))
		ended <- err
	}()
	waitFor(t, "the call", func() bool { return status(t, s, "fixture").Users > 0 })
	set("good")
	reload("")
	serves("taken out")
	set("good", "b", "c")
	reload("")
	serves("put back", "b", "c")
	check.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
	check.NoError(t, <-ended)
	w.settled(s)

	// A process that does not come up takes its socket with it.
	set("refuses", "d")
	reload("taste")
	if _, err := net.Dial("unix", filepath.Join(dir, "d")); err == nil {
		t.Error("the socket of a process that did not come up is open")
	}
	restarted(serves("after a refused process", "b", "c"))
	serves("after a refused process and a restart", "b", "c")
}

// listens returns the names of the unix sockets below dir that a process has.
func listens(t *testing.T, pid int, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadFile("/proc/net/unix")
	check.NoError(t, err)
	fds, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, fd := range fds {
		inode, _ := os.Readlink(fd)
		inode = strings.TrimSuffix(strings.TrimPrefix(inode, "socket:["), "]")
		for line := range strings.Lines(string(all)) {
			f := strings.Fields(line)
			if len(f) == 8 && f[6] == inode && filepath.Dir(f[7]) == dir {
				names = append(names, filepath.Base(f[7]))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
