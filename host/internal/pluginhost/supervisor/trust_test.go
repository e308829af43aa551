package supervisor_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
	"github.com/pannier/pannier/test/lib/badprograms"
)

// refused waits until a plugin is refused as a duplicate, and checks what says so.
func (w *world) refused(s *supervisor.Supervisor, name, of string) {
	w.t.Helper()
	st := await(w.t, s, name, func(st supervisor.Status) bool { return st.DuplicateOf == of })
	path := filepath.Join(w.cfg.PluginDir, name)
	if st.State != supervisor.Failed || st.PID != 0 || !strings.Contains(st.LastError, "remove "+path) {
		w.t.Errorf("the duplicate: %+v", st)
	}
	w.reported(name, st.LastError)
}

// reported waits for the event of a problem with a plugin's files.
func (w *world) reported(name, problem string) {
	w.t.Helper()
	waitFor(w.t, "the event: "+problem, func() bool {
		e := w.last(name)
		return e.Type == supervisor.EventFile && e.Message == problem
	})
}

// last returns the last event of a plugin.
func (w *world) last(name string) (last supervisor.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Status.Name == name {
			last = e
		}
	}
	return last
}

func (w *world) path(file string) string { return filepath.Join(w.cfg.PluginDir, file) }

// One plugin's file is in the directory twice, and in another version under another name. Only the one that serves
// already runs, also after a restart, until its file and the plugin are removed.
func TestTwoFilesOfOnePlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.Plugins = nil
	w.must(os.Remove(w.path("fixture")))
	w.place("m-first", "")
	s := w.open()
	mustCall(t, s, "m-first", "")
	w.place("a-copy", "")
	w.place("fixture", "\n#fixture good 9.9.9\n")
	w.refused(s, "a-copy", "m-first")
	w.refused(s, "fixture", "m-first")
	s.Close()
	s = w.open()
	mustCall(t, s, "m-first", "")
	w.refused(s, "a-copy", "m-first")
	w.refused(s, "fixture", "m-first")
	if n := len(w.pids()); n != 1 {
		t.Errorf("%d processes", n)
	}
	if err := s.Remove(t.Context(), "m-first"); !errors.Is(err, supervisor.ErrHasFile) ||
		!strings.Contains(err.Error(), w.path("m-first")) {
		t.Errorf("removed with its file: %v", err)
	}
	w.must(os.Remove(w.path("m-first")))
	w.must(os.Remove(w.path("a-copy")))
	waitFor(t, "the end of a plugin that never ran and has no file", func() bool { return len(s.Status()) == 2 })
	w.must(s.Remove(within(t), "m-first"))
	if got := mustCall(t, s, "fixture", ""); got["pid"] == "" {
		t.Errorf("the other one answers %v", got)
	}
}

// Two files of one plugin are there when the host starts for the first time: the one with the plugin's own name runs,
// or the first by name.
func TestTwoNewFilesOfOnePlugin(t *testing.T) {
	t.Parallel()
	for winner, loser := range map[string]string{"fixture": "a-copy", "b": "c"} {
		t.Run(winner, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Plugins = nil
			w.must(os.Remove(w.path("fixture")))
			w.place(winner, "")
			w.place(loser, "")
			s := w.open()
			w.refused(s, loser, winner)
			mustCall(t, s, winner, "")
		})
	}
}

// Two files of one plugin and one version: the one that served stays, whatever comes before it by name.
func TestTwoFilesOfOneName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(os.Rename(w.path("fixture"), w.path("fixture.sh")))
	s := w.open()
	before := mustCall(t, s, "fixture", "")
	w.place("fixture", "\n#fixture good 9.9.9\n")
	st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.FileProblem != "" })
	if st.Version != "1.2.3" || !strings.Contains(st.FileProblem, "remove "+w.path("fixture")) {
		t.Errorf("%+v", st)
	}
	w.reported("fixture", st.FileProblem)
	if after := mustCall(t, s, "fixture", ""); after["pid"] != before["pid"] {
		t.Error("it was replaced")
	}
	w.must(os.Remove(w.path("fixture")))
	await(t, s, "fixture", func(st supervisor.Status) bool { return st.FileProblem == "" })
}

// What is wrong with a program does not end the one that serves (package badprograms).
func TestBadPrograms(t *testing.T) {
	t.Parallel()
	badprograms.Run(t, func(t *testing.T) badprograms.Host {
		t.Parallel()
		w := newWorld(t)
		w.cfg.StartTimeout = 5 * time.Second
		s := w.open()
		mustCall(t, s, "fixture", "")
		return badprograms.Host{
			File: w.path("fixture"), Good: func(version string) []byte { return w.binary("good", version) },
			Dies: w.binary("exit", "2.0.0"), Words: "the disk is on fire", Hangs: w.binary("hang", "2.0.0"),
			Serves: func() (int, string) {
				st := status(t, s, "fixture")
				return st.PID, st.Version
			},
			Says: func() string {
				st := status(t, s, "fixture")
				if n := len(st.Swaps); n > 0 {
					return st.FileProblem + st.Swaps[n-1].Error
				}
				return st.FileProblem
			},
		}
	})
}

// Half a file is there when the host starts, or is verified.
func TestHalfAFileIsNotStarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("half")
	info, err := os.Stat(w.path("half"))
	w.must(err)
	w.must(os.Truncate(w.path("half"), info.Size()/2))
	s := w.open()
	mustCall(t, s, "fixture", "")
	st := await(t, s, "half", func(st supervisor.Status) bool { return st.State == supervisor.BackingOff })
	if !strings.Contains(st.LastError, "it is incomplete") || st.Generation != 0 {
		t.Errorf("status: %+v", st)
	}
	if _, err := s.Verify(within(t), w.path("half")); err == nil || !strings.Contains(err.Error(), "it is incomplete") {
		t.Errorf("verified: %v", err)
	}
}

// A script has no headers that report whether it is complete. It is run when nobody writes it any more.
func TestAScriptIsAPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("scripted")
	program := filepath.Join(filepath.Dir(w.cfg.PluginDir), "program")
	w.must(os.Rename(w.path("scripted"), program))
	out, err := os.OpenFile(w.path("scripted"), os.O_CREATE|os.O_WRONLY, 0o755)
	w.must(err)
	defer out.Close()
	_, err = out.WriteString("#!/bin/sh\necho half of it >&2\nexit 1\n")
	w.must(err)
	s := w.open()
	st := await(t, s, "scripted", func(st supervisor.Status) bool { return st.State == supervisor.BackingOff })
	if !strings.Contains(st.LastError, "still being written") {
		t.Errorf("status: %+v", st)
	}
	_, err = out.WriteAt([]byte("#!/bin/sh\nexec "+program+"\n#"), 0)
	w.must(err)
	w.must(out.Close())
	mustCall(t, s, "scripted", "")
	if strings.Contains(w.log.String(), "half of it") {
		t.Error("half of it was run")
	}
}

// A plugin's file is deleted, or made non-executable: the copy that served goes on, over restarts and a crash too, and
// the status and one event say so.
func TestAFileIsGone(t *testing.T) {
	t.Parallel()
	for says, tc := range map[string]struct{ spoil, mend func(path string) error }{
		"has no file of it": {
			os.Remove, func(path string) error { return os.Rename(path+".bak", path) },
		},
		"run chmod a+x": {
			func(path string) error { return unix.Chmod(path, 0o644) },
			func(path string) error { return unix.Chmod(path, 0o755) },
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.cfg.Plugins = nil
			w.must(os.Link(w.path("fixture"), w.path("fixture.bak")))
			s := w.open()
			before := mustCall(t, s, "fixture", "")
			w.must(tc.spoil(w.path("fixture")))
			gone := func(st supervisor.Status) bool { return strings.Contains(st.FileProblem, says) }
			st := await(t, s, "fixture", gone)
			if st.State != supervisor.Running {
				t.Errorf("status %+v", st)
			}
			w.reported("fixture", st.FileProblem)
			if after := mustCall(t, s, "fixture", ""); after["pid"] != before["pid"] {
				t.Error("it was replaced")
			}
			s.Close()
			s = w.open()
			mustCall(t, s, "fixture", "")
			await(t, s, "fixture", gone)
			if _, err := call(t, s, "fixture", "exit"); err == nil {
				t.Error("the call that killed it succeeded")
			}
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.Restarts == 1 && st.State == supervisor.Running })
			if n := w.count(supervisor.EventFile); n != 2 {
				t.Errorf("%d events, want one from each host", n)
			}
			w.must(tc.mend(w.path("fixture")))
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.FileProblem == "" })
		})
	}
}

// The plugin directory becomes one that cannot be used while the host runs: what serves goes on, and the status and an
// event say what is wrong, with the command that mends it.
func TestDirectoryThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mount       bool
		says, mend  string
		spoil, undo func(dir string) error
	}{
		"others may write it": {
			says: "can be written by its group or by everyone", mend: "chmod go-w ",
			spoil: func(dir string) error { return unix.Chmod(dir, 0o777) },
			undo:  func(dir string) error { return unix.Chmod(dir, 0o755) },
		},
		"it is gone": {
			says: "does not exist", mend: "mkdir -p ",
			spoil: func(dir string) error { return os.Rename(dir, dir+".away") },
			undo:  func(dir string) error { return os.Rename(dir+".away", dir) },
		},
		"nothing on it may be executed": {
			mount: true, says: "is on a mount with the option noexec", mend: "mount -o remount,exec ",
			spoil: func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_NOEXEC, "") },
			undo:  func(dir string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tc.mount {
				if os.Geteuid() != 0 {
					t.Skip("needs root; not covered: a plugin directory with noexec")
				}
				w.must(unix.Mount("tmpfs", w.cfg.PluginDir, "tmpfs", 0, "mode=755"))
				t.Cleanup(func() { w.must(unix.Unmount(w.cfg.PluginDir, unix.MNT_DETACH)) })
				w.install("fixture")
			}
			s := supervisor.New(w.cfg)
			s.SetLook(20 * time.Millisecond)
			w.must(s.Open(t.Context()))
			t.Cleanup(func() { s.Close() })
			before := mustCall(t, s, "fixture", "")
			w.must(tc.spoil(w.cfg.PluginDir))
			st := await(t, s, "fixture", func(st supervisor.Status) bool { return st.FileProblem != "" })
			if !strings.Contains(st.FileProblem, w.cfg.PluginDir+" "+tc.says) || !strings.HasPrefix(st.Mend, tc.mend) {
				t.Errorf("status %+v", st)
			}
			w.reported("fixture", st.FileProblem)
			w.must(tc.undo(w.cfg.PluginDir))
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.FileProblem == "" && st.Mend == "" })
			if after := mustCall(t, s, "fixture", ""); after["pid"] != before["pid"] {
				t.Error("it was replaced")
			}
			w.put("fixture", "good", "1.3.0")
			await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
			w.settled(s)
		})
	}
}

// An operator removes a plugin whose file is gone: nothing of it is left, and the next host does not start it.
func TestRemove(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.install("other") // without a configuration
	s := w.open()
	mustCall(t, s, "fixture", "")
	mustCall(t, s, "other", "")
	sum := status(t, s, "other").SHA256
	w.must(os.Remove(w.path("other")))
	w.must(os.Remove(w.path("fixture")))
	w.must(s.Remove(within(t), "other"))
	if err := s.Remove(within(t), "other"); !errors.Is(err, supervisor.ErrUnknown) {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := s.Acquire(within(t), "other"); !errors.Is(err, supervisor.ErrUnknown) {
		t.Errorf("acquired: %v", err)
	}
	for _, path := range []string{"other.json", sum} {
		if !gone(filepath.Join(w.cfg.DataDir, "plugins", path)) {
			t.Errorf("%s is left", path)
		}
	}
	if n := len(w.pids()); n != 1 || w.last("other").Type != supervisor.EventRemoved {
		t.Errorf("%d processes; the last event is %+v", n, w.last("other"))
	}
	w.must(s.Remove(within(t), "fixture")) // it is configured, so it is waited for
	await(t, s, "fixture", func(st supervisor.Status) bool {
		return st.State == supervisor.BackingOff && strings.Contains(st.LastError, "has no file of it")
	})
	s.Close()
	w.install("other")
	s = w.open()
	if mustCall(t, s, "other", ""); status(t, s, "other").Generation != 1 {
		t.Errorf("a removed plugin that is back: %+v", status(t, s, "other"))
	}
}
