package supervisor_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

// candidate puts a fixture into a directory beside the plugin directory.
func (w *world) candidate(file, mode, version string) string {
	w.t.Helper()
	dir := filepath.Join(filepath.Dir(w.cfg.PluginDir), "new")
	w.must(os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, file)
	w.must(os.WriteFile(path, append(w.binary(mode, version), named(file)...), 0o755))
	return path
}

// traces returns the supervisor's files, except those that change by themselves.
func (w *world) traces() []string {
	w.t.Helper()
	var all []string
	w.must(filepath.WalkDir(filepath.Join(w.cfg.DataDir, "plugins"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && !strings.HasSuffix(path, ".offset") {
			all = append(all, path)
		}
		return err
	}))
	return all
}

func TestVerify(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.open()
	mustCall(t, s, "fixture", "")
	before, files := status(t, s, "fixture"), w.traces()
	untouched := func(what string) {
		t.Helper()
		if now := status(t, s, "fixture"); now.PID != before.PID || now.Generation != before.Generation ||
			len(now.Swaps) != 0 || len(now.Refused) != 0 {
			t.Errorf("%s: the plugin that serves is another: %+v", what, now)
		}
		if left := w.traces(); !slices.Equal(left, files) {
			t.Errorf("%s: left\n%s\nwant\n%s", what, strings.Join(left, "\n"), strings.Join(files, "\n"))
		}
		if pids := w.pids(); !slices.Equal(pids, []int{before.PID}) {
			t.Errorf("%s: processes %v run, want %d only", what, pids, before.PID)
		}
	}
	path := w.candidate("fixture_v2.0.0", "good", "2.0.0")
	v, err := s.Verify(within(t), path)
	want := supervisor.Verified{
		Name: "fixture", Known: true, Kind: before.Kind, Version: "2.0.0", SHA256: sumOf(t, path),
		Healthy: true,
	}
	if err != nil || v != want {
		t.Errorf("verified %+v, %v; want %+v", v, err, want)
	}
	untouched("good")
	// The file that serves has a copy, which must stay.
	if v, err = s.Verify(within(t), filepath.Join(w.cfg.PluginDir, "fixture")); err != nil || v.SHA256 != before.SHA256 {
		t.Errorf("verified what serves: %+v, %v", v, err)
	}
	untouched("what serves")
	if v, err = s.Verify(within(t), w.candidate("stranger", "unwell", "3.0.0")); err != nil || v.Known || v.Healthy ||
		v.Message != "no driver answers" {
		t.Errorf("verified one that is unwell: %+v, %v", v, err)
	}
	untouched("unwell")
	for mode, says := range map[string]string{
		"exit": "the disk is on fire", "panic": "boom", "plain": "connection error", "refuses": "not to its taste",
		"exit-in-configure": "exit status 5",
		"wrong-kind":        "of kind device.v1", "bad-version": `"one"`,
	} {
		if v, err := s.Verify(within(t), w.candidate("fixture", mode, "2.0.0")); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: verified %+v, %v; want an error with %q", mode, v, err, says)
		}
		untouched(mode)
	}
}

// A file that the plugin directory would not accept is refused before it runs.
func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.configure(supervisor.Plugin{Name: "checked", Checksum: "sha256:" + strings.Repeat("0", 64)})
	w.configure(supervisor.Plugin{Name: "old", Version: "< 2"})
	w.configure(supervisor.Plugin{Name: "configured", Config: []byte(`{"wrong":1}`)})
	s := w.open()
	open := filepath.Join(filepath.Dir(w.cfg.PluginDir), "open")
	w.must(os.Mkdir(open, 0o755))
	w.must(os.WriteFile(open+"/plugin", w.binary("good", "2.0.0"), 0o755))
	w.must(os.Chmod(open, 0o777))
	for says, path := range map[string]string{
		"no such file":                   "/nowhere/at-all",
		"not a regular file":             w.cfg.PluginDir,
		"run chmod go-w " + open:         open + "/plugin",
		"the configuration wants sha256": w.candidate("checked", "good", "2.0.0"),
		"the configuration wants < 2":    w.candidate("old", "good", "2.0.0"),
		`key "wrong" is not known`:       w.candidate("configured", "good", "2.0.0"),
		"still being written":            w.candidate("fixture.tmp", "good", "2.0.0"),
		"not that of a plugin":           w.candidate("a b", "good", "2.0.0"),
		"run chmod go-w":                 w.mode(w.candidate("writable", "good", "2.0.0"), 0o775),
		"not executable":                 w.mode(w.candidate("data", "good", "2.0.0"), 0o644),
	} {
		if _, err := s.Verify(within(t), path); err == nil || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want an error with %q", path, err, says)
		}
	}
	if _, err := s.Verify(within(t), "/nowhere/at-all"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	w.must(s.Close())
	if _, err := s.Verify(within(t), w.candidate("fixture", "good", "2.0.0")); !errors.Is(err, supervisor.ErrClosed) {
		t.Errorf("verified by a closed supervisor: %v", err)
	}
}

func (w *world) mode(path string, mode os.FileMode) string {
	w.t.Helper()
	w.must(os.Chmod(path, mode))
	return path
}

// A verification ends with the supervisor, and nothing of it is left.
func TestCloseEndsAVerification(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must(os.Remove(filepath.Join(w.cfg.PluginDir, "fixture")))
	w.cfg.Plugins = nil // nothing else takes its time
	s := w.open()
	path := w.candidate("fixture", "hang-in-configure", "2.0.0")
	done := make(chan error, 1)
	go func() {
		_, err := s.Verify(within(t), path)
		done <- err
	}()
	waitFor(t, "the process", func() bool { return len(w.pids()) == 1 })
	w.must(s.Close())
	if pids := w.pids(); len(pids) != 0 {
		t.Errorf("processes %v are left", pids)
	}
	if err := <-done; err == nil {
		t.Error("the verification of a file that hangs succeeded")
	}
}

// If a host is killed during a verification, the next one ends it.
func TestHostKilledWhileItVerifies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.cfg.StopPlugins = false
	w.cfg.StartTimeout = time.Minute
	h := w.host(w.candidate("fixture", "hang-in-configure", "2.0.0"))
	pid := h.up()
	// A stopped process does not end when its host is gone.
	waitFor(t, "the process that is verified", func() bool {
		all := slices.DeleteFunc(w.pids(), func(p int) bool { return p == pid })
		return len(all) == 1 && unix.Kill(all[0], unix.SIGSTOP) == nil
	})
	h.kill()
	w.cfg.StopPlugins = true
	s := w.open()
	mustCall(t, s, "fixture", "")
	waitFor(t, "only the plugin is left", func() bool { return slices.Equal(w.pids(), []int{pid}) })
	waitFor(t, "nothing of the verification is left", func() bool {
		left := slices.DeleteFunc(w.traces(), func(path string) bool {
			return !strings.Contains(filepath.Base(path), "verify")
		})
		runs, err := os.ReadDir(w.cfg.DataDir + "/plugins/run")
		return len(left) == 0 && err == nil && len(runs) == 1
	})
}
