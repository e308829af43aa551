package drivers

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/test/lib/check"
)

func TestSupervisedDriverIsStartedAgain(t *testing.T) {
	h := open(t, shortDir(t), supervised("a"))
	first := h.healthy("a")
	if first.PID == 0 || first.Started == 0 || first.Restarts != 0 || first.Fingerprint.Node.NodeID != "node-1" ||
		first.Fingerprint.Provider != "test.example.com" {
		t.Fatalf("got %+v", first)
	}
	if info, err := os.Stat(first.Dir()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the driver's folder: %v, %v", info.Mode(), err)
	}
	syscall.Kill(first.PID, syscall.SIGKILL)
	second := h.wait("a", "another process", func(d Driver) bool { return d.Healthy && d.PID != first.PID })
	if second.Restarts != 1 || !alive(second.PID) {
		t.Errorf("got %+v", second)
	}
	h.mustHaveHappened("started", "healthy", "exited", "started", "healthy")
	h.mustHaveHappened("healthy", "unhealthy", "healthy")
	if got := h.happened("exited"); len(got) != 1 || !strings.Contains(got[0], "signal: killed") {
		t.Errorf("got %v", got)
	}
	if err := h.Close(true); err != nil || alive(second.PID) {
		t.Errorf("close: %v; the process is alive: %v", err, alive(second.PID))
	}
	if err := h.Close(true); err != nil {
		t.Error(err)
	}
	if !strings.Contains(h.logs.String(), "driver.a: serving on unix://") {
		t.Error("the driver's output is not in the host's log")
	}
}

func TestNextHostFindsTheDriver(t *testing.T) {
	dataDir := shortDir(t)
	h := open(t, dataDir, supervised("a"))
	pid := h.healthy("a").PID
	if err := h.Close(false); err != nil || !alive(pid) {
		t.Fatalf("close: %v; the process is alive: %v", err, alive(pid))
	}
	again := open(t, dataDir, supervised("a"))
	if d := again.healthy("a"); d.PID != pid || d.Restarts != 0 {
		t.Errorf("got %+v, want process %d", d, pid)
	}
	again.mustHaveHappened("found", "healthy")
	again.mustNotHaveHappened("started")

	// The driver is supervised as before, although it is not a child of this host.
	syscall.Kill(pid, syscall.SIGKILL)
	again.wait("a", "another process", func(d Driver) bool { return d.Healthy && d.PID != pid })
}

// hostMain is a host that runs a driver and prints its pid once it is healthy.
func hostMain(dataDir, spec string) {
	var declared Spec
	if err := json.Unmarshal([]byte(spec), &declared); err != nil {
		panic(err)
	}
	r := New(Config{
		DataDir: dataDir, Logger: hclog.NewNullLogger(), Events: events.New(0), Storage: newBridge().lease,
		DieWithHost: strings.HasSuffix(dataDir, "-dies"),
	})
	r.timing = testTiming
	if err := r.Open(context.Background(), []Spec{declared}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for {
		changed := r.Changed()
		if d, _ := r.Get("a"); d.Healthy {
			fmt.Println(d.PID)
			select {}
		}
		<-changed
	}
}

// hostProcess runs hostMain in a separate process.
func hostProcess(t *testing.T, dataDir string, spec Spec) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	check.NoError(t, err)
	text, err := json.Marshal(spec)
	check.NoError(t, err)
	cmd := exec.Command(self, "a-host", dataDir, string(text))
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	check.NoError(t, err)
	t.Cleanup(func() { out.Close() })
	cmd.Stdout, cmd.Stderr = out, out
	check.NoError(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd
}

// crashHost runs a host until its driver is healthy, and kills it.
func crashHost(t *testing.T, dataDir string) (pid int) {
	t.Helper()
	cmd := hostProcess(t, dataDir, supervised("a"))
	for deadline := time.Now().Add(time.Minute); pid == 0; time.Sleep(time.Millisecond) {
		said, _ := os.ReadFile(cmd.Stdout.(*os.File).Name())
		if strings.HasSuffix(string(said), "\n") {
			fmt.Sscan(string(said), &pid)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the host said %q", said)
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	t.Cleanup(func() {
		if t.Failed() && alive(pid) {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return pid
}

func TestDriverSurvivesKillOfTheHost(t *testing.T) {
	dataDir := shortDir(t)
	pid := crashHost(t, dataDir)
	if !alive(pid) {
		t.Fatal("the driver died with the host")
	}
	h := open(t, dataDir, supervised("a"))
	if d := h.healthy("a"); d.PID != pid {
		t.Errorf("got process %d, want %d", d.PID, pid)
	}
	h.mustNotHaveHappened("started")
	if err := h.Close(true); err != nil || alive(pid) {
		t.Errorf("close: %v; the process is alive: %v", err, alive(pid))
	}
}

func TestDriverDiesWithTheHostWhereAsked(t *testing.T) {
	dataDir := shortDir(t) + "-dies"
	t.Cleanup(func() { os.RemoveAll(dataDir) })
	pid := crashHost(t, dataDir)
	check.Eventually(t, "the driver ends with the host", func() bool { return !alive(pid) })
}

// The host was killed between the start of the process and its record.
func TestProcessIsFoundByItsIntent(t *testing.T) {
	dataDir := shortDir(t)
	spec := supervised("a")
	spec.Source = SourceConfig
	spec = spec.withDefaults(dataDir)
	env, err := environment(spec, nil)
	check.NoError(t, err)
	run := process.Spec{
		Token: process.NewToken(), Path: spec.Command[0], Args: spec.Command[1:], Env: env, LogPath: logPath(dataDir, "a"),
	}
	intent := run.Intent()
	rec := record{Spec: spec, Record: managed.Record{Serving: 1, Runs: []*managed.Run{
		{Number: 1, Settings: runs(spec), Address: spec.socket(), Process: &intent},
	}}}
	check.NoError(t, rec.save(dataDir))
	proc, err := process.Start(run)
	check.NoError(t, err)
	t.Cleanup(func() { proc.Stop(context.Background()) })
	h := open(t, dataDir, supervised("a"))
	if d := h.healthy("a"); d.PID != proc.PID() {
		t.Errorf("got process %d, want %d", d.PID, proc.PID())
	}
	h.mustNotHaveHappened("started")
	rec, err = loadRecord(recordPath(dataDir, "a"), "a")
	if err != nil || rec.Current() == nil || *rec.Current().Process != proc.Ref() {
		t.Errorf("recorded %+v, %v", rec.Current(), err)
	}
}

// The driver kills its host at once, before the host can record that it runs.
func TestProcessOfAHostKilledDuringTheStartIsFound(t *testing.T) {
	dataDir := shortDir(t)
	spec := supervised("a")
	driver := spec.Command
	spec.Command = append([]string{
		"/bin/sh", "-c", `[ "$PPID" = "$0" ] || kill -9 "$PPID"; exec "$@"`,
		fmt.Sprint(os.Getpid()),
	}, driver...)
	hostProcess(t, dataDir, spec).Wait()

	h := open(t, dataDir, spec)
	h.healthy("a")
	h.mustHaveHappened("found", "healthy")
	h.mustNotHaveHappened("started")
}

func TestChangedCommandRestartsTheDriver(t *testing.T) {
	dataDir := shortDir(t)
	h := open(t, dataDir, supervised("a"))
	old := h.healthy("a").PID
	h.Close(false)

	changed := open(t, dataDir, supervised("a", "-version", "2.0"))
	d := changed.healthy("a")
	if d.PID == old || alive(old) || d.Fingerprint.Version != "2.0" {
		t.Errorf("got %+v; the old process is alive: %v", d, alive(old))
	}
	changed.mustHaveHappened("stopped", "started", "healthy")
	changed.Close(false)

	spec := supervised("a")
	spec.Command = nil
	without := open(t, dataDir, spec)
	without.wait("a", "without a process", func(Driver) bool { return !alive(d.PID) })
	without.mustNotHaveHappened("started")
}

func TestDriverGoneFromTheConfigurationIsStopped(t *testing.T) {
	dataDir := shortDir(t)
	h := open(t, dataDir, supervised("a"))
	pid := h.healthy("a").PID
	h.Close(false)

	h = open(t, dataDir)
	h.waitGone("a")
	if alive(pid) {
		t.Error("its process runs on")
	}
	if left, err := filepath.Glob(dir(dataDir, "a") + "/driver*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	h.mustHaveHappened("stopped", "deregistered")
	h.mustNotHaveHappened("started")
	h.mustNotHaveHappened("found")
}

func TestDriverGoneFromTheConfigurationIsKeptWhileInUse(t *testing.T) {
	dataDir := shortDir(t)
	h := open(t, dataDir, supervised("a"))
	pid := h.healthy("a").PID
	h.Close(false)

	h = newHost(t, dataDir)
	h.setUsers(`workload "db"`)
	h.open()
	d := h.wait("a", "kept", func(d Driver) bool { return d.Healthy && d.Message != "" })
	if d.PID != pid || !d.Retired || !strings.Contains(d.Message, `in use by workload "db"`) {
		t.Errorf("got %+v", d)
	}
	h.setUsers()
	h.waitGone("a")
	if alive(pid) {
		t.Error("its process runs on")
	}
	h.mustHaveHappened("kept", "stopped", "deregistered")
}

func TestCrashLoopIsReportedAndBacksOff(t *testing.T) {
	h := newHost(t, shortDir(t))
	h.timing.restartMax = time.Minute
	spec := supervised("a")
	spec.Command = []string{"/bin/sh", "-c", "echo no token is set >&2; exit 1"}
	begin := time.Now()
	h.open(spec)
	d := h.wait("a", "in a crash loop", func(d Driver) bool { return d.CrashLoop })
	if d.Healthy || !strings.Contains(d.Message, "crash loop, 3 times in a row") ||
		!strings.Contains(d.Message, "exit status 1") || !strings.Contains(d.Message, `it printed "no token is set"`) {
		t.Errorf("got %+v", d)
	}
	h.wait("a", "started 5 times", func(d Driver) bool { return d.Restarts == 4 })
	// 20, 40, 80 and 160 ms, less 30 % of jitter.
	if took := time.Since(begin); took < 200*time.Millisecond {
		t.Errorf("5 starts in %s: the backoff does not grow", took)
	}
	h.mustHaveHappened("started", "exited", "unhealthy", "started", "exited", "started", "exited", "crash-loop", "started")
	if n := len(h.happened("crash-loop")) + len(h.happened("unhealthy")); n != 2 {
		t.Errorf("the same is said again: %v", h.kinds())
	}
}

func TestStableProcessEndsACrashLoop(t *testing.T) {
	h := newHost(t, shortDir(t))
	h.timing.stable = 50 * time.Millisecond
	flag := filepath.Join(h.dataDir, "ok")
	spec := supervised("a")
	spec.Command = append([]string{"/bin/sh", "-c", `test -e "$0" && exec "$@"`, flag}, spec.Command...)
	h.open(spec)
	h.wait("a", "in a crash loop", func(d Driver) bool { return d.CrashLoop })
	check.NoError(t, os.WriteFile(flag, nil, 0o600))
	h.wait("a", "out of the crash loop", func(d Driver) bool { return d.Healthy && !d.CrashLoop })
}

func TestMissingProgramIsReportedAndRetried(t *testing.T) {
	h := newHost(t, shortDir(t))
	spec := supervised("a")
	program := filepath.Join(h.dataDir, "program")
	self := spec.Command[0]
	spec.Command[0] = program
	h.open(spec)
	d := h.wait("a", "failed", func(d Driver) bool { return strings.Contains(d.Message, "no such file") })
	if !strings.Contains(d.Message, program) || d.PID != 0 {
		t.Errorf("got %+v", d)
	}
	check.NoError(t, os.Symlink(self, program))
	h.healthy("a")
}

func TestDriverThatNeverGetsReadyIsRestarted(t *testing.T) {
	h := newHost(t, shortDir(t))
	spec := supervised("a", "-not-ready")
	spec.HealthTimeout = 2 * time.Second // to be asked, it has to be up
	h.open(spec)
	d := h.wait("a", "started again", func(d Driver) bool { return d.Restarts == 1 && d.PID != 0 })
	if d.Healthy {
		t.Errorf("got %+v", d)
	}
	h.mustHaveHappened("started", "stopped", "failed", "unhealthy", "started")
	if got := h.happened("failed"); !strings.Contains(got[0], "it was not healthy within 2s: the driver is not ready") {
		t.Errorf("got %v", got)
	}
}

// Without a storage plugin to check it, the driver is not to blame.
func TestDriverIsNotRestartedWithoutAPlugin(t *testing.T) {
	h := newHost(t, shortDir(t))
	h.away.Store(true)
	spec := supervised("a")
	spec.HealthTimeout = time.Second
	h.open(spec)
	h.wait("a", "unknown", func(d Driver) bool { return strings.Contains(d.Message, errAway.Error()) })
	d := h.wait("a", "running", func(d Driver) bool { return d.PID != 0 })
	check.Eventually(t, "the health timeout has passed", func() bool {
		h.Registry.mu.Lock()
		defer h.Registry.mu.Unlock()
		return !h.instances["a"].starting
	})
	check.Eventually(t, "the driver listens", func() bool {
		conn, err := net.Dial("unix", strings.TrimPrefix(d.Endpoint, "unix://"))
		if err != nil {
			return false
		}
		return conn.Close() == nil
	})
	h.away.Store(false)
	if now := h.healthy("a"); now.PID != d.PID {
		t.Errorf("got process %d, want %d", now.PID, d.PID)
	}
}

func TestSecondDriverIsNotStartedOnASocketInUse(t *testing.T) {
	h := newHost(t, shortDir(t))
	spec := supervised("a")
	socket := filepath.Join(h.dataDir, "other.sock")
	spec.Endpoint = socket
	stop := serve(t, socket, &csiDriver{version: "other"})
	h.open(spec)
	h.wait("a", "refused", func(d Driver) bool {
		return strings.Contains(d.Message,
			"another process already answers on "+socket)
	})
	h.mustNotHaveHappened("started")
	stop()
	if d := h.healthy("a"); d.Fingerprint.Version != "1.0" {
		t.Errorf("got %+v", d)
	}
}

func TestFileInPlaceOfTheSocketIsLeftAlone(t *testing.T) {
	h := newHost(t, shortDir(t))
	spec := supervised("a")
	spec.Endpoint = filepath.Join(h.dataDir, "precious")
	check.NoError(t, os.WriteFile(spec.Endpoint, []byte("data"), 0o600))
	h.open(spec)
	h.wait("a", "refused", func(d Driver) bool { return strings.Contains(d.Message, "is not a socket") })
	if got, err := os.ReadFile(spec.Endpoint); err != nil || string(got) != "data" {
		t.Errorf("the file is %q, %v", got, err)
	}
}

// A driver gets the variables that it needs, and nothing else of the host's environment.
func TestEnvironment(t *testing.T) {
	h := open(t, shortDir(t), supervised("a"))
	d := h.healthy("a")
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", d.PID))
	check.NoError(t, err)
	for _, kv := range strings.Split(strings.Trim(string(env), "\x00"), "\x00") {
		switch name, value, _ := strings.Cut(kv, "="); name {
		case "PATH", "PANNIER_PROCESS_ID":
		case "CSI_ENDPOINT":
			if value != d.Endpoint {
				t.Errorf("CSI_ENDPOINT=%s", value)
			}
		default:
			t.Errorf("unexpected %s", name)
		}
	}
}

// TestEnvironmentOfTheConfiguration: values of env reach the driver; the content of a file does too, and is in no
// record.
func TestEnvironmentOfTheConfiguration(t *testing.T) {
	dataDir := shortDir(t)
	secret := filepath.Join(dataDir, "token")
	check.NoError(t, os.WriteFile(secret, []byte("s3same-token\n"), 0o600))
	spec := supervised("a")
	spec.Env = map[string]string{"REGION": "east", "TOKEN": "file://" + secret, "PATH": "/opt/bin"}
	h := open(t, dataDir, spec)
	d := h.healthy("a")
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", d.PID))
	check.NoError(t, err)
	for _, want := range []string{"REGION=east", "TOKEN=s3same-token", "PATH=/opt/bin"} {
		if !strings.Contains("\x00"+string(env), "\x00"+want+"\x00") {
			t.Errorf("%s is not in %q", want, env)
		}
	}
	if record, err := os.ReadFile(recordPath(dataDir, "a")); err != nil || strings.Contains(string(record), "s3same") {
		t.Errorf("the record: %s, %v", record, err)
	}
	check.NoError(t, h.Close(false))
	spec.Env["REGION"] = "west"
	h = open(t, dataDir, spec)
	if again := h.healthy("a"); again.PID == d.PID {
		t.Error("the driver was not restarted with the changed variable")
	}
	check.NoError(t, os.Remove(secret))
	syscall.Kill(h.healthy("a").PID, syscall.SIGKILL)
	h.wait("a", "without its file", func(d Driver) bool {
		return !d.Healthy && strings.Contains(d.Message, "env: TOKEN: read the secret")
	})
}

func TestUnusableRecordStopsTheStart(t *testing.T) {
	dataDir := shortDir(t)
	text, err := json.Marshal(record{Version: recordVersion + 1, Spec: Spec{ID: "a"}})
	check.NoError(t, err)
	check.NoError(t, os.MkdirAll(dir(dataDir, "a"), 0o700))
	check.NoError(t, os.WriteFile(recordPath(dataDir, "a"), text, 0o600))
	h := newHost(t, dataDir)
	if err := h.Open(t.Context(), nil); err == nil || !strings.Contains(err.Error(), recordPath(dataDir, "a")) {
		t.Errorf("got %v", err)
	}
}

// The process that a damaged record knew is ended, and another one serves.
func TestDamagedRecordIsSetAside(t *testing.T) {
	dataDir := shortDir(t)
	for _, content := range []string{"{", "", "[1]"} {
		h := open(t, dataDir, supervised("a"))
		before := h.healthy("a").PID
		check.NoError(t, h.Close(false))
		check.NoError(t, os.WriteFile(recordPath(dataDir, "a"), []byte(content), 0o600))
		h = open(t, dataDir, supervised("a"))
		if after := h.healthy("a").PID; after == before {
			t.Errorf("%q: process %d serves on", content, after)
		}
		if kept, err := os.ReadFile(recordPath(dataDir, "a") + ".damaged"); err != nil || string(kept) != content {
			t.Errorf("%q: kept is %q, %v", content, kept, err)
		}
		check.NoError(t, h.Close(true))
	}
}

// A driver that hangs in accept still exists; a socket on which nobody listens means that it is gone.
func TestGone(t *testing.T) {
	socket := filepath.Join(shortDir(t), "s")
	if !gone(socket) {
		t.Error("a socket that is not there is not gone")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	check.NoError(t, err)
	if gone(socket) {
		t.Error("a listener that accepts nothing is gone")
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if !gone(socket) {
		t.Error("a socket that nobody listens on is not gone")
	}
}
