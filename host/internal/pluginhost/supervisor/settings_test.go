package supervisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/test/lib/testbin"
)

// The fixture refuses a config block with the key "wrong".
const (
	oldConfig = `{"key": "old"}`
	newConfig = `{"key": "new"}`
	badConfig = `{"wrong": 1}`
)

func (w *world) configBlock(config string) {
	w.configure(supervisor.Plugin{Name: "fixture", Config: []byte(config), Where: "/etc/pannier/a.hcl:7"})
}

// A config block that was changed between two hosts is tried in a new process, and callers notice nothing.
func TestChangedConfigUnderLoad(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]string{"good": newConfig, "bad": badConfig} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.StopPlugins = false
			w.configBlock(oldConfig)
			h := w.host()
			pid := h.up()
			h.kill()

			w.configBlock(changed)
			w.cfg.StopPlugins = true
			s := w.open()
			l := startLoad(t, s, 400)
			want := newConfig
			if changed == newConfig {
				waitFor(t, "the new configuration is used", func() bool {
					return mustCall(t, s, "fixture", "")["config"] == newConfig
				})
				if st := status(t, s, "fixture"); st.PID == pid {
					t.Errorf("the old process, %d, has the new configuration", pid)
				}
			} else {
				want = oldConfig
				st := await(t, s, "fixture", func(st supervisor.Status) bool {
					return st.ConfigProblem != "" || st.PID != pid && st.LastError != ""
				})
				if st.PID != pid {
					t.Fatalf("the old process, %d, does not serve: %+v", pid, st)
				}
				waitFor(t, "an event says it", func() bool { return w.count(supervisor.EventConfigRefused) > 0 })
				for _, part := range []string{"/etc/pannier/a.hcl:7: ", `key "wrong" is not known`, "changed config", "is used"} {
					if !strings.Contains(st.ConfigProblem, part) {
						t.Errorf("it does not say %q: %s", part, st.ConfigProblem)
					}
				}
				if st.PID != pid || st.State != supervisor.Running || w.count(supervisor.EventConfigRefused) != 1 {
					t.Errorf("the old process, %d, does not serve: %+v", pid, st)
				}
			}
			w.settled(s)
			l.end()
			if l.failed.Load() != 0 || l.calls.Load() == 0 {
				t.Errorf("%d of %d calls failed, with %v", l.failed.Load(), l.calls.Load(), l.err)
			}
			if got := mustCall(t, s, "fixture", "")["config"]; got != want {
				t.Errorf("the configuration is %s, want %s", got, want)
			}
		})
	}
}

// While a changed config block is refused, a restart and another binary use the one before it.
func TestRefusedConfigIsNotNeeded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	w.configBlock(oldConfig)
	h := w.host()
	pid := h.up()
	h.kill()
	killProcess(t, pid) // with the host
	w.configBlock(badConfig)
	w.cfg.StopPlugins = true
	s := w.open()
	for range 2 {
		st := await(t, s, "fixture", func(st supervisor.Status) bool {
			return st.PID != 0 && st.PID != pid || st.State == supervisor.Failed
		})
		if st.State == supervisor.Failed || st.ConfigProblem == "" {
			t.Fatalf("nothing serves: %+v", st)
		}
		pid = st.PID
		killProcess(t, pid)
	}
	w.put("fixture", "good", "1.3.0")
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
	if got := mustCall(t, s, "fixture", "")["config"]; got != oldConfig {
		t.Errorf("the configuration is %s", got)
	}
	w.settled(s)
	if st := status(t, s, "fixture"); len(st.Refused) != 0 {
		t.Errorf("a binary is refused for the configuration: %v", st.Refused)
	}
}

// Whenever a host is killed while a changed config block takes over, the next one ends up with one process that has it.
func TestHostKilledWhileConfigChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	points := filepath.Join(filepath.Dir(w.cfg.DataDir), "points")
	w.hostProgram = testbin.BuildTags(t, "host/internal/pluginhost/supervisor/testdata/host", "failpoint")
	w.hostEnv = []string{"PANNIER_FAILPOINT=" + points}
	w.configBlock(oldConfig)
	h := w.host()
	h.up()
	h.kill()
	for n, point := range []string{"up", "recorded", "moved", "drained"} {
		config := []string{newConfig, oldConfig}[n%2]
		w.configBlock(config)
		w.must(os.WriteFile(points, []byte("swap:"+point), 0o600))
		h := w.host()
		waitFor(t, "the host's end at "+point, func() bool { return !alive(h.cmd.Process.Pid) })
		h.kill()
		w.must(os.WriteFile(points, nil, 0o600))
		s := w.open()
		w.settled(s)
		waitFor(t, "the configuration after a kill at "+point, func() bool {
			return mustCall(t, s, "fixture", "")["config"] == config
		})
		w.settled(s)
		s.Close()
	}
	w.cfg.StopPlugins = true
	w.settled(w.open())
}
