package supervisor_test

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"golang.org/x/sys/unix"
)

// hostProcess is a real host process that tests kill.
type hostProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

// host starts a host process; args follow the plugin's name.
func (w *world) host(args ...string) *hostProcess {
	w.t.Helper()
	arg, err := json.Marshal(struct {
		supervisor.Config
		Logger        any `json:",omitempty"` // these six hide the ones that are not data
		OnEvent       any `json:",omitempty"`
		OnPluginEvent any `json:",omitempty"`
		Probe         any `json:",omitempty"`
		Dial          any `json:",omitempty"`
		Confirmed     any `json:",omitempty"`
	}{Config: w.cfg})
	if err != nil {
		w.t.Fatal(err)
	}
	h := &hostProcess{t: w.t, cmd: exec.Command(cmp.Or(w.hostProgram, fixture(w.t, "host")),
		append([]string{string(arg), "fixture"}, args...)...)}
	h.cmd.Stderr = w.log
	h.cmd.Env = append(os.Environ(), w.hostEnv...)
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	h.out = bufio.NewReader(out)
	if err := h.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(h.kill)
	return h
}

// up waits for the plugin and returns its pid.
func (h *hostProcess) up() int {
	h.t.Helper()
	line, err := h.out.ReadString('\n')
	if err != nil {
		h.t.Fatalf("the host does not come up: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		h.t.Fatal(err)
	}
	return pid
}

// kill ends the process like kill -9.
func (h *hostProcess) kill() {
	h.cmd.Process.Kill()
	h.cmd.Wait()
}

func TestPluginOutlivesAKilledHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	h := w.host()
	pid := h.up()
	h.kill()
	if !alive(pid) {
		t.Fatal("the plugin died with its host")
	}
	h = w.host() // a second kill, of a host that reattached
	if again := h.up(); again != pid {
		t.Fatalf("the second host has pid %d, the first had %d", again, pid)
	}
	h.kill()

	w.cfg.StopPlugins = true
	s := w.open()
	answer := mustCall(t, s, "fixture", "log after the kill")
	st := status(t, s, "fixture")
	if answer["pid"] != strconv.Itoa(pid) || st.PID != pid || st.Generation != 1 || st.State != supervisor.Running {
		t.Errorf("the third host has pid %s and %+v, want pid %d", answer["pid"], st, pid)
	}
	if n := len(w.pids()); n != 1 {
		t.Errorf("%d processes", n)
	}
	waitFor(t, "the event", func() bool { return w.count(supervisor.EventReattached) == 1 })
	waitFor(t, "its log line", func() bool { return strings.Contains(w.log.String(), "after the kill") })
}

// Close leaves the plugins running, and the same process can open them again.
func TestCloseLeavesPluginsRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	first := w.open()
	before := mustCall(t, first, "fixture", "")
	first.Close()
	w.cfg.StopPlugins = true
	second := w.open()
	if after := mustCall(t, second, "fixture", ""); after["pid"] != before["pid"] {
		t.Errorf("pid %s, then %s", before["pid"], after["pid"])
	}
	// The plugin is no longer a child of this process, but its death is still noticed and it is replaced.
	if _, err := call(t, second, "fixture", "exit"); err == nil {
		t.Fatal("it did not exit")
	}
	await(t, second, "fixture", func(st supervisor.Status) bool {
		return st.Restarts == 1 &&
			st.State == supervisor.Running
	})
	if after := mustCall(t, second, "fixture", ""); after["pid"] == before["pid"] {
		t.Error("not replaced")
	}
}

// A host whose start has not succeeded leaves the plugin as it was, whenever it is closed, also one that it would
// replace.
func TestUnconfirmedHostEndsNothing(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world){
		"a socket that is gone": func(w *world) { removeAll(w.t, w.cfg.DataDir+"/plugins/run/*/plugin*") },
		"other arguments": func(w *world) {
			w.configure(supervisor.Plugin{Name: "fixture", Args: []string{"good", "new"}})
		},
		"nothing": func(*world) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.StopPlugins = false
			h := w.host()
			pid := h.up()
			h.kill()
			change(w)
			w.cfg.StopPlugins, w.cfg.Confirmed = true, make(chan struct{})
			const rounds = 30
			for i := range rounds {
				s := w.open()
				switch {
				case i > 0:
					time.Sleep(time.Duration(i) * 200 * time.Microsecond) // to be anywhere in a reattachment
				case name == "a socket that is gone":
					waitFor(t, "the failed reattachment", func() bool { return strings.Contains(w.log.String(), "is replaced") })
				default:
					mustCall(t, s, "fixture", "")
				}
				s.Close()
				if pids := w.pids(); len(pids) != 1 || pids[0] != pid {
					t.Fatalf("round %d: the next host finds processes %v, want %d", i, pids, pid)
				}
			}
			w.cfg.Confirmed = nil
			w.settled(w.open())
		})
	}
}

// Whenever a host is killed, even during a swap, the next one ends up with exactly one process.
func TestHostKilledAtAnyInstant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	took := time.Now()
	h := w.host()
	h.up()
	full := time.Since(took)
	h.kill()
	const rounds = 24
	for i := range rounds {
		if i%3 == 0 { // from nothing again: the plugin is replaced under way
			w.configure(supervisor.Plugin{Name: "fixture", Args: []string{"good", strconv.Itoa(i)}})
		}
		h := w.host()
		time.Sleep(full * time.Duration(i) / rounds) // not to wait for something: to be anywhere in the start
		h.kill()
		if n := len(w.pids()); n > 2 {
			t.Fatalf("round %d: %d processes", i, n)
		}
	}
	w.cfg.StopPlugins = true
	s := w.open()
	w.settled(s)
	answer := mustCall(t, s, "fixture", "")
	pids := w.pids()
	if len(pids) != 1 || strconv.Itoa(pids[0]) != answer["pid"] {
		t.Errorf("processes %v, the plugin says %s", pids, answer["pid"])
	}
}

// The most important instants are around the fork: the intent is in the record, but the process does not exist or
// is not recorded yet.
func TestHostKilledAroundTheFork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	path, points := w.cfg.DataDir+"/plugins/fixture.json", filepath.Dir(w.cfg.DataDir)+"/points"
	w.hostProgram = testbin.BuildTags(t, "host/internal/pluginhost/supervisor/testdata/host", "failpoint")
	w.hostEnv = []string{"PANNIER_FAILPOINT=" + points}
	for i, point := range []string{"intended", "forked", "forked", "intended", "forked"} {
		// A process that would answer ends itself, because nobody reads its output.
		w.configure(supervisor.Plugin{Name: "fixture", Args: []string{"hang", strconv.Itoa(i)}})
		w.must(os.WriteFile(points, []byte("process:"+point), 0o600))
		h := w.host()
		waitFor(t, "the host's end at "+point, func() bool { return !alive(h.cmd.Process.Pid) })
		h.kill()
		data, err := os.ReadFile(path)
		w.must(err)
		recorded, there := strings.Count(string(data), `"pid"`), len(w.pids())
		if want := recorded + strings.Count(point, "forked"); there != want {
			t.Errorf("killed at %s: %d processes, %d of them recorded, want %d", point, there, recorded, want)
		}
	}
	w.configure(supervisor.Plugin{Name: "fixture"})
	w.cfg.StopPlugins = true
	s := w.open()
	w.settled(s)
	answer := mustCall(t, s, "fixture", "")
	if pids := w.pids(); len(pids) != 1 || strconv.Itoa(pids[0]) != answer["pid"] {
		t.Errorf("processes %v, the plugin says %s", pids, answer["pid"])
	}
}

// settled waits until one process of the fixture serves and no other exists.
func (w *world) settled(s *supervisor.Supervisor) {
	w.t.Helper()
	await(w.t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running && st.Draining == 0 })
	waitFor(w.t, "one process", func() bool { return len(w.pids()) == 1 })
}

// A process that the next host would start differently, or that cannot prove its identity, is replaced and not
// reattached.
func TestReplacedInsteadOfReattached(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *world){
		"other arguments": func(w *world) {
			w.configure(supervisor.Plugin{
				Name: "fixture",
				Args: []string{"good", "new"},
			})
		},
		"another executable":     func(w *world) { appendByte(w.t, filepath.Join(w.cfg.PluginDir, "fixture")) },
		"another authority":      func(w *world) { os.Remove(w.cfg.DataDir + "/plugins/host.pem") },
		"a socket that is gone":  func(w *world) { removeAll(w.t, w.cfg.DataDir+"/plugins/run/*/plugin*") },
		"a process that hangs":   func(w *world) { check.Stop(w.t, w.pids()[0]) },
		"a process that is gone": func(w *world) { killProcess(w.t, w.pids()[0]) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.StopPlugins = false
			if name == "a process that hangs" {
				w.cfg.StartTimeout, w.cfg.StopTimeout = 5*time.Second, time.Second
			}
			h := w.host()
			pid := h.up()
			h.kill()
			change(w)
			w.cfg.StopPlugins = true
			s := w.open()
			await(t, s, "fixture", func(st supervisor.Status) bool {
				return st.State == supervisor.Running && st.PID != pid && st.Draining == 0
			})
			answer := mustCall(t, s, "fixture", "")
			if answer["pid"] == strconv.Itoa(pid) || alive(pid) {
				t.Errorf("pid %d is still there; the plugin is %s now", pid, answer["pid"])
			}
			if pids := w.pids(); len(pids) != 1 {
				t.Errorf("processes: %v", pids)
			}
		})
	}
}

// A process that now has the pid of a recorded process is left alone.
func TestStrangerIsNotTouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	h := w.host()
	pid := h.up()
	h.kill()
	killProcess(t, pid)
	stranger := exec.Command("sleep", "1000")
	check.NoError(t, stranger.Start())
	defer func() { stranger.Process.Kill(); stranger.Wait() }()
	path := w.cfg.DataDir + "/plugins/fixture.json"
	data, err := os.ReadFile(path)
	check.NoError(t, err)
	old, now := `"pid": `+strconv.Itoa(pid), `"pid": `+strconv.Itoa(stranger.Process.Pid)
	if !strings.Contains(string(data), old) {
		t.Fatalf("no %s in %s", old, data)
	}
	check.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(data), old, now)), 0o600))
	w.cfg.StopPlugins = true
	s := w.open()
	mustCall(t, s, "fixture", "")
	if !alive(stranger.Process.Pid) {
		t.Error("a stranger was killed")
	}
}

func TestRecordThatCannotBeReadStartsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	s.Close()
	path := w.cfg.DataDir + "/plugins/fixture.json"
	check.NoError(t, os.WriteFile(path, []byte(`{"format": 99, "name": "fixture"}`), 0o600))
	s = w.open()
	st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Failed })
	if !strings.Contains(st.LastError, "newer host") || len(w.pids()) != 0 {
		t.Errorf("status %+v, processes %v", st, w.pids())
	}
	os.Remove(path)
	mustCall(t, s, "fixture", "")
}

// A plugin whose file was deleted while no host ran is found, and ended when an operator removes it.
func TestPluginWithoutAFileIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	w.install("other")
	h := w.host()
	h.up()
	waitFor(t, "the other one to serve", func() bool {
		data, err := os.ReadFile(w.cfg.DataDir + "/plugins/other.json")
		return err == nil && strings.Contains(string(data), `"served"`)
	})
	h.kill()
	w.must(os.Remove(w.path("other")))
	w.cfg.StopPlugins = true
	s := w.open()
	mustCall(t, s, "fixture", "")
	mustCall(t, s, "other", "")
	w.must(s.Remove(within(t), "other"))
	if n := len(w.pids()); n != 1 || !gone(filepath.Join(w.cfg.DataDir, "plugins/other.json")) {
		t.Errorf("%d processes, want 1; or its record is left", n)
	}
}

func TestOrphanEndsItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	w.cfg.OrphanTimeout = 200 * time.Millisecond
	s := w.open()
	mustCall(t, s, "fixture", "sleep 400ms") // attended: it stays
	s.Close()
	waitFor(t, "the orphan's end", func() bool { return len(w.pids()) == 0 })
}

func TestDieWithHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.DieWithHost = true
	h := w.host()
	pid := h.up()
	h.kill()
	waitFor(t, "the plugin's end", func() bool { return !alive(pid) })
}

func killProcess(t *testing.T, pid int) {
	t.Helper()
	check.NoError(t, unix.Kill(pid, unix.SIGKILL))
	waitFor(t, "the end of a killed process", func() bool { return !alive(pid) })
}

func removeAll(t *testing.T, pattern string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("nothing matches %s", pattern)
	}
	for _, f := range files {
		os.Remove(f)
	}
}
