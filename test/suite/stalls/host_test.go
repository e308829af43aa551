package stalls

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/powerloss"
)

// processes are stopped and killed: what an agent starts, and what serves its volumes.
func processes() (all []stall) {
	for _, name := range []string{"csi-bridge", "docker-volume", "fuse"} {
		all = append(all,
			stall{name: name + " is stopped", begin: func(r *rig) func() { return r.signal(r.pid(name), unix.SIGSTOP) }},
			stall{name: name + " is killed", begin: func(r *rig) func() { return r.signal(r.pid(name), unix.SIGKILL) }})
	}
	return append(all,
		stall{name: "the outside driver is killed", begin: func(r *rig) func() {
			r.driver.Kill()
			return r.driver.Restart
		}, sees: "faulty is not healthy"},
		stall{name: "the outside driver drops its connections", begin: func(r *rig) func() {
			r.driver.DropConnections()
			return nil
		}},
		stall{
			name: "a FUSE server is stopped", begin: func(r *rig) func() { return r.signal(r.fuseServer(), unix.SIGSTOP) },
			sees: "does not answer",
		},
		stall{name: "every process of the agent is stopped", begin: func(r *rig) func() {
			var ends []func()
			for _, name := range []string{"csi-bridge", "docker-volume", "fuse"} {
				ends = append(ends, r.signal(r.pid(name), unix.SIGSTOP))
			}
			return func() {
				for _, end := range ends {
					end()
				}
			}
		}})
}

// disks stall, fill and slow down the data directory.
func disks() []stall {
	return []stall{
		{name: "the disk hangs", begin: func(r *rig) func() { return r.disk.Freeze() }},
		{name: "the disk hangs while it is written", begin: func(r *rig) func() {
			end := r.changes()
			for range 4 {
				thaw := r.disk.Freeze()
				r.answers()
				thaw()
			}
			thaw := r.disk.Freeze()
			return func() {
				thaw()
				end()
			}
		}},
		{name: "the disk is full", begin: func(r *rig) func() {
			r.disk.Leave(0)
			return func() { r.disk.Leave(256 << 20) }
		}, sees: "no claim can be taken"},
		{name: "the disk has room for a few writes", begin: func(r *rig) func() {
			r.disk.Leave(64 << 10)
			return func() { r.disk.Leave(256 << 20) }
		}, sees: "no claim can be taken"},
		{name: "the disk hangs again and again", begin: func(r *rig) func() {
			for range 5 {
				r.disk.Freeze()()
			}
			return nil
		}},
	}
}

// broken disks do not answer again before they are mounted anew.
func broken() []stall {
	return []stall{
		{name: "every call for the disk fails with EIO", begin: func(r *rig) func() {
			powerloss.ShutDown(r.t, r.h.Path("data"))
			return nil
		}, sees: "input/output error", lasting: true},
		{name: "the disk becomes read-only", begin: func(r *rig) func() {
			run(r, "mount", "-o", "remount,abort", r.h.Path("data"))
			return nil
		}, sees: "read-only file system", lasting: true},
	}
}

func run(r *rig, args ...string) {
	r.t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		r.t.Errorf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// moved puts a file or a folder of the agent aside while it runs.
func moved(name, path string) stall {
	return stall{name: name, begin: func(r *rig) func() {
		at := r.h.Path(path)
		if err := os.Rename(at, at+".aside"); err != nil {
			r.t.Fatal(err)
		}
		return func() {
			if _, err := os.Lstat(at); err == nil {
				_ = os.RemoveAll(at + ".aside") // it was made again
			} else if err := os.Rename(at+".aside", at); err != nil {
				r.t.Error(err)
			}
		}
	}}
}

// replaced puts other bytes into a file while the agent runs.
func replaced(name, path string, bytes int) stall {
	return stall{name: name, begin: func(r *rig) func() {
		at := r.h.Path(path)
		old, err := os.ReadFile(at)
		info, statErr := os.Stat(at)
		if err := errors.Join(err, statErr); err != nil {
			r.t.Fatal(err)
		}
		write := func(data []byte) {
			err := os.WriteFile(at+".new", data, info.Mode())
			if err := errors.Join(err, os.Rename(at+".new", at)); err != nil {
				r.t.Error(err)
			}
		}
		write(noise(bytes))
		return func() { write(old) }
	}}
}

func noise(bytes int) []byte {
	out := make([]byte, bytes)
	for n := range out {
		out[n] = byte(rand.N(256)) //nolint:gosec // not for secrets
	}
	return out
}

// files are taken away from the agent, or replaced.
func files() []stall {
	return []stall{
		moved("the plugin directory is gone", "plugins"),
		moved("a plugin's program is gone", "plugins/csi-bridge"),
		moved("the configuration is gone", "agent.hcl"),
		moved("the copies of the programs are gone", "data/plugins"),
		moved("the folder of the drivers is gone", "data/drivers"),
		replaced("a plugin's program is noise", "plugins/csi-bridge", 100<<10),
		replaced("a plugin's program is empty", "plugins/docker-volume", 0),
		replaced("the configuration is noise", "agent.hcl", 1<<10),
		{name: "a plugin directory of a thousand files that are none", begin: func(r *rig) func() {
			for n := range 1000 {
				path := filepath.Join(r.h.PluginDir, fmt.Sprintf("none%d", n))
				check.NoError(r.t, os.WriteFile(path, noise(64), 0o600))
			}
			return func() {
				left, _ := filepath.Glob(filepath.Join(r.h.PluginDir, "none*"))
				for _, path := range left {
					_ = os.Remove(path)
				}
			}
		}},
	}
}

// dial opens connections to the agent's socket.
func (r *rig) dial(n int, send string) (end func()) {
	r.t.Helper()
	var open []net.Conn
	for range n {
		conn, err := net.Dial("unix", r.h.Socket())
		if err != nil {
			r.t.Errorf("%d connections are open, and then: %v", len(open), err)
			break
		}
		open = append(open, conn)
		_, _ = io.WriteString(conn, send)
	}
	return func() {
		for _, conn := range open {
			_ = conn.Close()
		}
	}
}

// callers stall: they connect and say nothing, or ask and do not read.
func callers() []stall {
	return []stall{
		{name: "five hundred callers say nothing", begin: func(r *rig) func() { return r.dial(500, "") }},
		{name: "two hundred callers send half a request", begin: func(r *rig) func() {
			return r.dial(200, "POST /pannier.host.v1.AgentService/Status HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
		}},
		{name: "callers send noise", begin: func(r *rig) func() { return r.dial(200, string(noise(4<<10))) }},
		{name: "fifty callers of events read nothing", begin: func(r *rig) func() {
			var ends []func()
			for range 50 {
				cmd := r.h.Command("events", "-follow", "-recent", "1000")
				read, write, err := os.Pipe()
				check.NoError(r.t, err)
				cmd.Stdout = write
				check.NoError(r.t, cmd.Start())
				ends = append(ends, func() {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
					_, _ = read.Close(), write.Close()
				})
			}
			return func() {
				for _, end := range ends {
					end()
				}
			}
		}},
		{name: "a caller of Docker's socket says nothing", begin: func(r *rig) func() { return r.dial(1, "GET /") }},
	}
}

// target is where the volume of a workload is published.
func (r *rig) target(driver, id string) string {
	return r.h.Path("data/csi/" + driver + "/per-workload/" + id + "/default/" + id + "/rw-file-system-single-node-writer/data")
}

// mounts are taken away, covered and made read-only behind the agent's back.
func volumeMounts() []stall {
	again := func(r *rig, id string) func() {
		return func() {
			r.h.Run("workload", "stop", id)
			r.h.AwaitFree(id)
			r.h.Run("workload", "start", r.workload(id))
		}
	}
	return []stall{
		{name: "somebody unmounts a volume lazily", begin: func(r *rig) func() {
			check.NoError(r.t, unix.Unmount(r.target("faulty", "w"), unix.MNT_DETACH))
			return again(r, "w")
		}},
		{name: "somebody covers a volume", begin: func(r *rig) func() {
			run(r, "mount", "-t", "tmpfs", "none", r.target("faulty", "w"))
			return func() { run(r, "umount", r.target("faulty", "w")) }
		}},
		{name: "somebody makes a volume read-only", begin: func(r *rig) func() {
			run(r, "mount", "-o", "remount,bind,ro", r.target("faulty", "w"))
			return func() { run(r, "mount", "-o", "remount,bind,rw", r.target("faulty", "w")) }
		}},
		{name: "a FUSE server is killed", begin: func(r *rig) func() {
			r.signal(r.fuseServer(), unix.SIGKILL)
			return again(r, "f")
		}},
		{name: "a FUSE connection is aborted", begin: func(r *rig) func() {
			var st unix.Stat_t
			check.NoError(r.t, unix.Stat(r.target("fuse", "f"), &st))
			control := r.t.TempDir()
			check.NoError(r.t, unix.Mount("none", control, "fusectl", 0, ""))
			r.t.Cleanup(func() { _ = unix.Unmount(control, unix.MNT_DETACH) })
			at := filepath.Join(control, fmt.Sprint(unix.Minor(st.Dev)), "abort")
			check.NoError(r.t, os.WriteFile(at, []byte("1"), 0))
			return again(r, "f")
		}},
		{name: "a file system that is full of mounts", begin: func(r *rig) func() {
			base := r.t.TempDir()
			for n := range 200 {
				dir := filepath.Join(base, fmt.Sprint(n))
				check.NoError(r.t, os.Mkdir(dir, 0o700))
				check.NoError(r.t, unix.Mount("none", dir, "tmpfs", 0, ""))
			}
			return func() {
				for n := range 200 {
					_ = unix.Unmount(filepath.Join(base, fmt.Sprint(n)), unix.MNT_DETACH)
				}
			}
		}},
	}
}

// damaged puts noise into the files of a folder while the agent is down.
func (r *rig) damaged(folder string, change func(path string, size int64) error) {
	r.t.Helper()
	found := 0
	err := filepath.WalkDir(r.h.Path(folder), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Size() == 0 {
			return err
		}
		found++
		return change(path, info.Size())
	})
	if err != nil || found == 0 {
		r.t.Fatalf("%d files of %s: %v", found, folder, err)
	}
}

// anew starts the workloads again: without a journal the agent has released what nobody uses.
func anew(r *rig) func() {
	return func() {
		for _, id := range []string{"w", "f"} {
			_ = r.h.Try("workload", "stop", id) // it may be unknown
			r.h.AwaitFree(id)
			r.h.Run("workload", "start", r.workload(id))
		}
	}
}

// each restarts the agent with noise in one file of the data directory after the other. The ledger's damage has tests
// of its own, and the volumes are the user's.
func each(r *rig) func() {
	var paths []string
	for _, folder := range []string{"data/*", "data/*/*", "data/*/*/*"} {
		found, err := filepath.Glob(r.h.Path(folder))
		check.NoError(r.t, err)
		for _, path := range found {
			info, err := os.Lstat(path)
			name, _ := filepath.Rel(r.h.Path("data"), path)
			top, _, _ := strings.Cut(name, "/")
			if err == nil && info.Mode().IsRegular() && info.Size() > 0 && !slices.Contains([]string{"ledger", "volumes", "filler"}, top) {
				paths = append(paths, path)
			}
		}
	}
	for _, path := range paths {
		r.t.Logf("%s is noise", path)
		r.restart(func() {
			info, err := os.Stat(path)
			if err != nil {
				return // it was for what ran
			}
			err = os.WriteFile(path+".new", noise(int(info.Size())), info.Mode())
			check.NoError(r.t, errors.Join(err, os.Rename(path+".new", path)))
		})
	}
	return anew(r)
}

// starts restart the agent after something was damaged or taken away while it was down.
func starts() []stall {
	start := func(name string, change func(r *rig)) stall {
		return stall{name: name, restarts: true, begin: func(r *rig) func() {
			r.restart(func() { change(r) })
			return nil
		}}
	}
	lost := func(name string, change func(r *rig)) stall {
		s := start(name, change)
		s.begin = func(r *rig) func() {
			r.restart(func() { change(r) })
			return anew(r)
		}
		return s
	}
	noisy := func(path string, size int64) error { // another file: the old one may run
		return errors.Join(os.WriteFile(path+".new", noise(int(size)), 0o700), os.Rename(path+".new", path)) //nolint:gosec // programs
	}
	half := func(path string, size int64) error { return os.Truncate(path, size/2) }
	gone := func(path string) func(r *rig) {
		return func(r *rig) { check.NoError(r.t, os.RemoveAll(r.h.Path(path))) }
	}
	return []stall{
		start("nothing is damaged", func(*rig) {}),
		{name: "any file of the data directory is noise", restarts: true, begin: each},
		lost("the journal is noise", func(r *rig) { r.damaged("data/journal", noisy) }),
		lost("the journal is cut in half", func(r *rig) { r.damaged("data/journal", half) }),
		lost("the journal is gone", gone("data/journal")),
		start("the copies of the programs are gone", gone("data/plugins")),
		start("the folder of the drivers is gone", gone("data/drivers")),
		start("the secrets are gone", gone("data/secrets")),
		start("the copies of the programs are noise", func(r *rig) { r.damaged("data/plugins", noisy) }),
		start("the socket is left", func(r *rig) {
			l, err := net.Listen("unix", r.h.Socket()+".other")
			check.NoError(r.t, err)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			check.NoError(r.t, l.Close())
			check.NoError(r.t, os.Rename(r.h.Socket()+".other", r.h.Socket()))
		}),
		start("the outside driver is away", func(r *rig) {
			r.driver.Stop()
			time.AfterFunc(time.Second, r.driver.Restart)
		}),
	}
}

// TestHost stalls what one host relies on.
func TestHost(t *testing.T) {
	t.Parallel()
	var n tally
	t.Cleanup(func() { fmt.Println(&n) })
	groups := map[string][]stall{
		"processes": processes(), "disks": disks(), "files": files(), "callers": callers(), "mounts": volumeMounts(), "starts": starts(),
	}
	if *duration > 0 {
		soak(t, &n, groups)
		return
	}
	t.Run("group", func(t *testing.T) {
		for _, s := range broken() {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				newRig(t).try(t, &n, s, false)
			})
		}
		for name, cases := range groups {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				for _, s := range cases {
					t.Run(s.name, func(t *testing.T) { r.try(t, &n, s, false) })
				}
			})
		}
	})
}

// soak tries cases in random order on one host, and prints what the agent uses before and after.
func soak(t *testing.T, n *tally, groups map[string][]stall) {
	t.Helper()
	if *seed == 0 {
		*seed = rand.Uint64() //nolint:gosec // not for secrets
	}
	t.Logf("seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 0)) //nolint:gosec // not for secrets
	var all []stall
	for name, cases := range groups {
		if name != "starts" { // the agent is to be the same from the beginning to the end
			all = append(all, cases...)
		}
	}
	r := newRig(t)
	r.works()
	before := r.uses()
	for end := time.Now().Add(*duration); time.Now().Before(end) && !t.Failed(); {
		s := all[random.IntN(len(all))]
		t.Run(s.name, func(t *testing.T) { r.try(t, n, s, true) })
	}
	fmt.Printf("the agent before: %s\nthe agent after:  %s\n", before, r.uses())
}

// uses says what the agent has of threads, descriptors and memory.
func (r *rig) uses() string {
	r.t.Helper()
	dir := fmt.Sprintf("/proc/%d", r.h.PID())
	open, err := os.ReadDir(dir + "/fd")
	check.NoError(r.t, err)
	status, err := os.ReadFile(dir + "/status")
	check.NoError(r.t, err)
	out := fmt.Sprintf("%d descriptors", len(open))
	for _, line := range strings.Split(string(status), "\n") {
		if key, value, _ := strings.Cut(line, ":"); key == "Threads" || key == "VmRSS" {
			out += fmt.Sprintf(", %s %s", strings.TrimSpace(value), key)
		}
	}
	return out
}
