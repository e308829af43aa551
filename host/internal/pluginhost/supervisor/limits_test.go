package supervisor_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/host/internal/system/process"
)

const mib = 1 << 20

// tooMuch matches the error of a plugin with limits{memory = 256MiB}.
var tooMuch = regexp.MustCompile(`it uses \d+ MiB of memory, its plugin block allows 256 MiB`)

// A process that uses too much memory is ended, its binary is rolled back if there was one before, and other
// plugins are unaffected.
func TestMemoryEater(t *testing.T) {
	t.Parallel()
	limits := supervisor.Limits{Memory: 256 * mib}
	t.Run("is replaced", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.install("other")
		w.configure(supervisor.Plugin{Name: "fixture", Limits: limits})
		s := w.open()
		other := mustCall(t, s, "other", "")["pid"]
		before := mustCall(t, s, "fixture", "eat 800")["pid"]
		st := await(t, s, "fixture", func(st supervisor.Status) bool {
			return st.Restarts == 1 &&
				st.State == supervisor.Running
		})
		if !tooMuch.MatchString(st.LastError) {
			t.Errorf("the reason is %q", st.LastError)
		}
		if pid := mustCall(t, s, "fixture", "")["pid"]; pid == before {
			t.Error("it was not replaced")
		}
		if pid := mustCall(t, s, "other", "")["pid"]; pid != other {
			t.Error("another plugin was replaced too")
		}
		if w.count(supervisor.EventEnded) != 1 {
			t.Errorf("%d events of an end", w.count(supervisor.EventEnded))
		}
	})
	t.Run("does not come up", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.install("eater")
		w.configure(supervisor.Plugin{Name: "eater", Args: []string{"eat", "800"}, Limits: limits})
		w.cfg.Restart.Min, w.cfg.Restart.Max = time.Minute, time.Minute
		s := w.open()
		st := await(t, s, "eater", func(st supervisor.Status) bool { return st.State == supervisor.BackingOff })
		if !tooMuch.MatchString(st.LastError) {
			t.Errorf("the reason is %q", st.LastError)
		}
		mustCall(t, s, "fixture", "")
		if n := len(w.pids()); n != 1 {
			t.Errorf("%d processes are left, want the good one only", n)
		}
	})
	t.Run("is rolled back", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.configure(supervisor.Plugin{Name: "fixture", Limits: limits})
		s := w.open()
		mustCall(t, s, "fixture", "")
		w.put("fixture", "good", "1.3.0")
		bad := await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
		mustCall(t, s, "fixture", "eat 800")
		st := await(t, s, "fixture", func(st supervisor.Status) bool {
			return st.Version == "1.2.3" &&
				st.State == supervisor.Running
		})
		if !tooMuch.MatchString(st.Refused[bad.SHA256]) {
			t.Errorf("refused: %v", st.Refused)
		}
		// Callers used the old process until the other one was up.
		if last := st.Swaps[len(st.Swaps)-1]; !last.Rollback || last.To.Generation == 0 ||
			w.count(supervisor.EventEnded) != 0 {
			t.Errorf("swap %+v, %d ends", last, w.count(supervisor.EventEnded))
		}
		waitFor(t, "the end of the old process", func() bool { return len(w.pids()) == 1 })
	})
	t.Run("was left by an earlier host", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.configure(supervisor.Plugin{Name: "fixture", Limits: limits})
		w.cfg.StopPlugins = false
		first := w.open()
		before := mustCall(t, first, "fixture", "")["pid"]
		first.Close()
		w.cfg.StopPlugins = true
		second := w.open()
		if pid := mustCall(t, second, "fixture", "eat 800")["pid"]; pid != before {
			t.Fatal("it was not reattached")
		}
		st := await(t, second, "fixture",
			func(st supervisor.Status) bool { return st.Restarts == 1 && st.State == supervisor.Running })
		if !tooMuch.MatchString(st.LastError) {
			t.Errorf("the reason is %q", st.LastError)
		}
	})
}

func TestSpinnerIsReported(t *testing.T) {
	w := newWorld(t)
	w.install("other")
	s := supervisor.New(w.cfg)
	s.SetBusy(0.1, 500*time.Millisecond) // on a machine that others use too
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	mustCall(t, s, "other", "")
	before := mustCall(t, s, "fixture", "spin")["pid"]
	waitFor(t, "the event", func() bool { return w.count(supervisor.EventBusy) == 1 })
	if pid := mustCall(t, s, "fixture", "")["pid"]; pid != before {
		t.Error("it was replaced")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Type == supervisor.EventBusy &&
			(e.Status.Name != "fixture" || !strings.HasPrefix(e.Message, "process "+before+" has used ")) {
			t.Errorf("the event says %q of %q", e.Message, e.Status.Name)
		}
	}
}

func TestForkBomb(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skipf("needs control groups (%v); not covered: children that hide", process.Unlimited())
	}
	t.Run("ends with the plugin", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.open()
		children := strings.Fields(mustCall(t, s, "fixture", "bomb 100")["children"])
		groups := w.cgroups("fixture")
		s.Close()
		ended(t, children, 100)
		noGroups(t, groups)
	})
	t.Run("ends when the plugin crashes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		s := w.open()
		children := strings.Fields(mustCall(t, s, "fixture", "bomb 100")["children"])
		groups := w.cgroups("fixture")
		if _, err := call(t, s, "fixture", "exit"); err == nil {
			t.Fatal("it did not exit")
		}
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.Restarts == 1 && st.State == supervisor.Running })
		ended(t, children, 100)
		noGroups(t, groups)
	})
	t.Run("is more than it may have", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.configure(supervisor.Plugin{Name: "fixture", Limits: supervisor.Limits{Processes: 70}})
		s := w.open()
		before := mustCall(t, s, "fixture", "")["pid"]
		// Go programs fail when they cannot make a thread: the process may end during the call.
		answer, _ := call(t, s, "fixture", "bomb 100")
		st := await(t, s, "fixture", func(st supervisor.Status) bool {
			return st.Restarts == 1 &&
				st.State == supervisor.Running
		})
		if !regexp.MustCompile(
			`it wants more processes and threads than its plugin block allows: 70|the process ended`).MatchString(st.LastError) {
			t.Errorf("the reason is %q", st.LastError)
		}
		if pid := mustCall(t, s, "fixture", "")["pid"]; pid == before {
			t.Error("it was not replaced")
		}
		var children []string
		for _, field := range strings.Fields(answer["children"]) {
			if _, err := strconv.Atoi(field); err == nil {
				children = append(children, field)
			}
		}
		ended(t, children, 0)
	})
}

// A plugin does not have more privileges, files and groups than it should.
func TestIsolation(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root; not covered: another user and group")
	}
	w := newWorld(t)
	if err := os.Chmod(filepath.Dir(w.cfg.DataDir), 0o711); err != nil { // or the user cannot get at its copy
		t.Fatal(err)
	}
	w.configure(supervisor.Plugin{
		Name: "fixture", User: "nobody", Group: "daemon",
		Limits: supervisor.Limits{OpenFiles: 321},
	})
	w.install("own")
	w.configure(supervisor.Plugin{Name: "own", Limits: supervisor.Limits{OpenFiles: 321}})
	s := w.open()
	pid := mustCall(t, s, "fixture", "")["pid"]
	for path, wants := range map[string][]string{
		pid + "/status":        {"Uid: 65534 65534", "Gid: 1 1", "NoNewPrivs: 1"},
		pid + "/oom_score_adj": {"500"},
		// Changing another user's limit would need CAP_SYS_RESOURCE.
		mustCall(t, s, "own", "")["pid"] + "/limits": {"Max open files 321 321"},
	} {
		data, err := os.ReadFile("/proc/" + path)
		text := strings.Join(strings.Fields(string(data)), " ")
		for _, want := range wants {
			if err != nil || !strings.Contains(text, want) {
				t.Errorf("%s: no %q (%v) in\n%s", path, want, err, data)
			}
		}
	}
	files, err := os.ReadDir("/proc/" + pid + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		target, err := os.Readlink("/proc/" + pid + "/fd/" + f.Name())
		if err != nil {
			continue
		}
		want := regexp.MustCompile(`^(/dev/null|pipe:|socket:|anon_inode:|/sys/fs/cgroup/|` +
			regexp.QuoteMeta(w.cfg.DataDir) + `/plugins/logs/fixture\.log$)`)
		if !want.MatchString(target) {
			t.Errorf("it has descriptor %s, %s", f.Name(), target)
		}
	}
}

// cgroups returns the control groups in a plugin's record.
func (w *world) cgroups(name string) (dirs []string) {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.cfg.DataDir, "plugins", name+".json"))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"(?:pids_)?cgroup": "([^"]+)"`).FindAllStringSubmatch(string(data), -1) {
		if _, err := os.Stat(m[1]); err == nil {
			dirs = append(dirs, m[1])
		}
	}
	if len(dirs) == 0 {
		w.t.Skipf("no control groups here (%v); not covered: children that hide", process.Unlimited())
	}
	return dirs
}

func noGroups(t *testing.T, dirs []string) {
	t.Helper()
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("the control group %s is left", dir)
		}
	}
}

func ended(t *testing.T, pids []string, want int) {
	t.Helper()
	if len(pids) < want {
		t.Fatalf("%d children, want %d: %v", len(pids), want, pids)
	}
	for _, text := range pids {
		if pid, err := strconv.Atoi(text); err != nil || alive(pid) {
			t.Errorf("child %s is still there (%v)", text, err)
		}
	}
}
