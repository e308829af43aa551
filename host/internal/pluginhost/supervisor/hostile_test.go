package supervisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/pannier/pannier/host/internal/pluginhost/supervisor"
)

// A plugin that does not come up runs beside a good one: the host reports which one it is and why, ends it completely,
// and the good one is unaffected.
func TestHostilePlugins(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args     string // the fixture's
		spec     supervisor.Plugin
		says     string // in the status's last error
		failed   bool   // only an operator can correct it
		children int
	}{
		{args: "exit", says: "the process ended: exit status 7: handshake"},
		{args: "exit", says: "(it printed: the disk is on fire)"},
		{args: "wrong-cookie", says: "handshake"},
		{args: "wrong-wire", says: "incompatible API version"},
		{args: "wrong-socket", says: "not on a socket in"},
		{args: "bad-version", says: `version is "one"`, failed: true},
		{args: "plain", says: "info: connection error"},
		{args: "other-certificate", says: "certificate signed by unknown authority"},
		{args: "hang", says: "it is not up after 5s: handshake"},
		{args: "hang-in-info", says: "it is not up after 5s: info"},
		{args: "hang-in-validate", says: "it is not up after 5s: validate the configuration"},
		{args: "hang-in-configure", says: "it is not up after 5s: configure"},
		{args: "hang-in-attend", says: "it is not up after 5s: attend"},
		{args: "exit-after-handshake", says: "the process ended: exit status 4"},
		{args: "exit-in-configure", says: "the process ended: exit status 5"},
		{args: "panic", says: "panic: boom"},
		{args: "garbage", says: "hello, I am not a plugin"},
		{args: "endless-line", says: "Unrecognized remote plugin message"},
		{args: "bomb", says: "it is not up after 5s: handshake", children: 100},
		{args: "eat 800", says: "it uses"},
		{args: "good", spec: supervisor.Plugin{Version: ">= 2.0"}, says: "the configuration wants >= 2.0", failed: true},
		{
			args: "good", spec: supervisor.Plugin{Config: []byte(`{"wrong":1}`)},
			says: `validate the configuration: key "wrong" is not known`, failed: true,
		},
		{
			args: "good", spec: supervisor.Plugin{Checksum: "sha256:" + strings.Repeat("0", 64)},
			says: "checksum mismatch", failed: true,
		},
		{args: "good", spec: supervisor.Plugin{User: "no-such-user"}, says: `look up user "no-such-user"`},
	} {
		t.Run(tc.args+": "+tc.says, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.install("hostile")
			tc.spec.Name, tc.spec.Args, tc.spec.Limits.Memory = "hostile", strings.Fields(tc.args), 256*mib
			w.configure(tc.spec)
			if strings.Contains(tc.says, "after 5s") { // the others say so before, and the good one needs its time
				w.cfg.StartTimeout = 5 * time.Second
			}
			w.cfg.Restart = supervisor.Restart{Min: time.Minute, Max: time.Minute, Stable: time.Minute}
			s := w.open()
			good := mustCall(t, s, "fixture", "")["pid"]
			st := await(t, s, "hostile", func(st supervisor.Status) bool {
				return st.LastError != "" && st.State != supervisor.Starting
			})
			want := supervisor.BackingOff
			if tc.failed {
				want = supervisor.Failed
			}
			if st.State != want || !strings.Contains(st.LastError, tc.says) || st.NextTry.IsZero() || st.PID != 0 {
				t.Errorf("status %+v, want %s, and an error with %q", st, want, tc.says)
			}
			waitFor(t, "the log to say which it is", func() bool { // a moment after the status
				return strings.Contains(w.log.String(), "[ERROR] hostile: plugin: event=start-failed")
			})
			if n := len(w.pids()); n != 1 {
				t.Errorf("%d processes of plugins are left, want the good one's", n)
			}
			if tc.children > 0 {
				w.cgroups("fixture") // or nothing finds those that hide
				ended(t, w.children("hostile"), tc.children)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			_, err := s.Acquire(ctx, "hostile")
			if !errors.Is(err, supervisor.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) ||
				grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("acquire: %v", err)
			}
			if left, _ := os.ReadDir(w.cfg.DataDir + "/plugins/run"); len(left) != 1 {
				t.Errorf("%d socket folders, want one", len(left))
			}
			if now := mustCall(t, s, "fixture", "")["pid"]; now != good || status(t, s, "fixture").Restarts != 0 {
				t.Errorf("the good one is process %s, and was %s", now, good)
			}
		})
	}
}

// A plugin that serves but does not stop is killed, and nobody waits for its remaining calls.
func TestPluginThatHangsInStop(t *testing.T) {
	t.Parallel()
	t.Run("when it is replaced", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cfg.StopTimeout = time.Second
		w.put("fixture", "hang-in-stop", "1.0.0")
		s := w.open()
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })
		w.put("fixture", "good", "1.3.0")
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
		mustCall(t, s, "fixture", "")
		w.settled(s)
	})
	t.Run("when the host stops", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.cfg.StopTimeout = time.Second
		w.put("fixture", "hang-in-stop", "1.0.0")
		s := w.open()
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.State == supervisor.Running })
		s.Close()
		if pids := w.pids(); len(pids) != 0 {
			t.Errorf("processes %v are left", pids)
		}
	})
}

// A GiB of output fills neither the host's disk nor its log, and the plugin that prints it can be called
// meanwhile.
func TestFloodIsBounded(t *testing.T) {
	w := newWorld(t)
	w.cfg.Logger = hclog.New(&hclog.LoggerOptions{Output: unflooded{w.log}, Level: hclog.Debug})
	w.install("spiller")
	w.configure(supervisor.Plugin{Name: "spiller", Args: []string{"spill", "1024"}})
	s := w.open()
	mustCall(t, s, "fixture", "")
	pid := mustCall(t, s, "spiller", "")["pid"]
	waitFor(t, "the end of the flood", func() bool {
		data, err := os.ReadFile("/proc/" + pid + "/io")
		w.must(err)
		var written int64
		_, err = fmt.Sscanf(string(data), "rchar: %d\nwchar: %d", new(int64), &written)
		w.must(err)
		return written >= 1024*mib
	})
	waitFor(t, "the plugin's log is small", func() bool {
		info, err := os.Stat(filepath.Join(w.cfg.DataDir, "plugins", "logs", "spiller.log"))
		w.must(err)
		return info.Size() <= 11*mib
	})
	waitFor(t, "what it says afterwards", func() bool {
		mustCall(t, s, "spiller", "log afterwards")
		return strings.Contains(w.log.String(), "said in a call: volume=afterwards")
	})
	if !strings.Contains(w.log.String(), "[WARN]  spiller: the process prints faster than it can be logged") {
		t.Error("nothing says that output was dropped")
	}
	if st := status(t, s, "spiller"); st.Restarts != 0 || st.State != supervisor.Running {
		t.Errorf("status %+v", st)
	}
}

// A binary that cannot be copied is not refused: it takes over when it can be copied.
func TestBinaryThatCannotBeCopied(t *testing.T) {
	t.Parallel()
	t.Run("others may write it", func(t *testing.T) {
		w := newWorld(t)
		s := w.open()
		mustCall(t, s, "fixture", "")
		path := filepath.Join(w.cfg.PluginDir, "fixture")
		w.must(os.WriteFile(path+".tmp", w.binary("good", "1.3.0"), 0o755))
		w.must(os.Chmod(path+".tmp", 0o777))
		w.must(os.Rename(path+".tmp", path))
		st := await(t, s, "fixture", func(st supervisor.Status) bool { return len(st.Swaps) > 0 })
		if !strings.Contains(st.LastError, "run chmod go-w") || len(st.Refused) > 0 || st.Version != "1.2.3" {
			t.Errorf("status %+v", st)
		}
		w.must(os.Chmod(path, 0o755))
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
		w.settled(s)
	})
	t.Run("the disk is full", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root; not covered: a data directory that is full")
		}
		w := newWorld(t)
		size := len(w.binary("good", "1.3.0"))
		w.must(os.Mkdir(w.cfg.DataDir, 0o755))
		w.must(unix.Mount("tmpfs", w.cfg.DataDir, "tmpfs", 0, fmt.Sprintf("size=%d", size+size/2)))
		t.Cleanup(func() {
			// Detached: what a test beside this one forks has its files open for a moment.
			if err := unix.Unmount(w.cfg.DataDir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		s := w.open()
		before := mustCall(t, s, "fixture", "")["pid"]
		w.put("fixture", "good", "1.3.0")
		st := await(t, s, "fixture", func(st supervisor.Status) bool { return len(st.Swaps) > 0 })
		if !strings.Contains(st.LastError, " MiB left, and this needs ") || len(st.Refused) > 0 {
			t.Errorf("status %+v", st)
		}
		if now := mustCall(t, s, "fixture", "")["pid"]; now != before {
			t.Errorf("process %s serves, and %s did", now, before)
		}
		w.must(unix.Mount("", w.cfg.DataDir, "", unix.MS_REMOUNT, fmt.Sprintf("size=%d", 4*size)))
		await(t, s, "fixture", func(st supervisor.Status) bool { return st.Version == "1.3.0" })
		w.settled(s)
		s.Close()
	})
}

// unflooded is a log without the lines of the flood.
type unflooded struct{ *output }

func (u unflooded) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("xxxx")) {
		return len(p), nil
	}
	return u.output.Write(p)
}

// children returns the pids that a plugin's process has printed.
func (w *world) children(name string) []string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.cfg.DataDir, "plugins", "logs", name+".log"))
	w.must(err)
	_, list, _ := strings.Cut(string(data), "children: ")
	list, _, _ = strings.Cut(list, "\n")
	return strings.Fields(list)
}
