package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// envHost makes the test binary a host: it starts a process and is then killed.
const envHost = "PROCESS_TEST_HOST"

func TestMain(m *testing.M) {
	if arg := os.Getenv(envHost); arg != "" {
		beHost(arg)
	}
	if path := os.Getenv(envPeer); path != "" {
		bePeer(path)
	}
	goleak.VerifyTestMain(m)
}

// beHost starts a spec, prints the Ref and waits until the test kills it.
func beHost(arg string) {
	var spec Spec
	if err := json.Unmarshal([]byte(arg), &spec); err != nil {
		panic(err)
	}
	p, err := Start(spec)
	if err != nil {
		panic(err)
	}
	json.NewEncoder(os.Stdout).Encode(p.Ref())
	select {}
}

// shell returns the spec of a script, and cleans up what is left of it.
func shell(t *testing.T, script string) Spec {
	t.Helper()
	spec := Spec{
		Token:   NewToken(),
		Path:    "/bin/sh",
		Args:    []string{"-c", script},
		Env:     []string{"PATH=/usr/bin:/bin"},
		LogPath: filepath.Join(t.TempDir(), "log"),
	}
	t.Cleanup(func() { clean(t, spec.Intent()) })
	return spec
}

// clean kills what is left of a process.
func clean(t *testing.T, ref Ref) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Clean(ctx, ref); err != nil {
		t.Error(err)
	}
}

func mustStart(t *testing.T, spec Spec) *Process {
	t.Helper()
	p, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Release()
		clean(t, p.Ref())
	})
	return p
}

// waitFor polls until ok.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func waitDone(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(time.Minute):
		t.Fatal("the process does not end")
	}
}

func alive(pid int) bool {
	s, err := procfs.ReadStat(procfs.Dir(pid))
	return err == nil && !s.Ended()
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// readPid waits for a script to write its child's pid into a file.
func readPid(t *testing.T, path string) (pid int) {
	t.Helper()
	waitFor(t, "a pid in "+path, func() bool {
		data, _ := os.ReadFile(path)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		return pid != 0
	})
	return pid
}

func TestDoneAndExit(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0":       "exit status 0",
		"exit 3":       "exit status 3",
		"kill -9 $$":   "signal: killed",
		"echo out; :":  "exit status 0",
		"exec sleep 0": "exit status 0",
	} {
		p := mustStart(t, shell(t, script))
		waitDone(t, p)
		if got := p.Exit(); got != want {
			t.Errorf("%s: ended with %q, want %q", script, got, want)
		}
		if _, err := Find(t.Context(), p.Ref()); !errors.Is(err, ErrGone) {
			t.Errorf("%s: found after its end: %v", script, err)
		}
	}
}

func TestStartInheritsNothing(t *testing.T) {
	t.Setenv("CONSUL_HTTP_TOKEN", "secret")
	spec := shell(t, "env; exec ls -l /proc/self/fd")
	spec.Env = append(spec.Env, "KEY=value")
	p := mustStart(t, spec)
	waitDone(t, p)
	data, _ := os.ReadFile(spec.LogPath)
	if out := string(data); strings.Contains(out, "secret") || !strings.Contains(out, "KEY=value") {
		t.Errorf("environment: %s", out)
	}
	info, err := os.Stat(spec.LogPath)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the log: %v, %v", info.Mode(), err)
	}
}

func TestStartRefuses(t *testing.T) {
	good := shell(t, "true")
	for name, change := range map[string]func(*Spec){
		"a missing program": func(s *Spec) { s.Path = "/does/not/exist" },
		"a relative path":   func(s *Spec) { s.Path = "sh" },
		"no token":          func(s *Spec) { s.Token = "" },
		"an unknown user":   func(s *Spec) { s.User = "nobody-has-this-name" },
		"a missing folder":  func(s *Spec) { s.LogPath = "/does/not/exist/log" },
		"a missing program that would die with us": func(s *Spec) { s.Path = "/does/not/exist"; s.DieWithHost = true },
	} {
		spec := good
		change(&spec)
		if p, err := Start(spec); err == nil {
			p.Release()
			t.Errorf("started with %s", name)
		}
	}
}

func TestStopEndsTheGroup(t *testing.T) {
	dir := t.TempDir()
	// The child ignores SIGTERM and would outlive its parent, as would another one that has left the group. Each has a
	// file when it is ready for the signal, and the leader is before them.
	p := mustStart(t, shell(t, fmt.Sprintf(`
		trap 'exit 0' TERM
		sh -c 'trap "" TERM; echo $$ > %[1]s/child; while :; do sleep 0.05; done' &
		setsid sh -c 'trap "" TERM; echo $$ > %[1]s/away; while :; do sleep 0.05; done' &
		while :; do sleep 0.05; done`, dir)))
	child, away := readPid(t, dir+"/child"), readPid(t, dir+"/away")
	// Processes that end on SIGTERM have as much time as they need.
	asked, kill := context.WithCancel(t.Context())
	defer kill()
	go func() {
		<-p.Done()
		kill()
	}()
	if err := p.Stop(asked); err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{"leader": p.PID(), "child": child, "child outside the group": away} {
		if alive(pid) {
			t.Errorf("%s %d is still there", name, pid)
		}
	}
	if p.Exit() != "exit status 0" {
		t.Errorf("the leader had no chance to end by itself: %s", p.Exit())
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Errorf("stop again: %v", err)
	}
}

// A process that has got the PID of the one that was meant is left alone.
func TestSignalOfALaterProcess(t *testing.T) {
	p := mustStart(t, shell(t, "while :; do sleep 0.05; done"))
	ref := p.Ref()
	if err := Signal(ref.PID, ref.StartTime-1, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	// A signal that was sent would be there by now: this one comes after it.
	if err := Signal(ref.PID, ref.StartTime, unix.SIGTERM); err != nil {
		t.Error(err)
	}
	waitDone(t, p)
	if got := p.Exit(); got != "signal: terminated" {
		t.Errorf("it ended by another signal than SIGTERM: %s", got)
	}
}

func TestStopEndsWhatACrashLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	p := mustStart(t, shell(t, `(while :; do sleep 0.05; done) & echo $! > `+file+`; kill -9 $$`))
	waitDone(t, p)
	child := readPid(t, file)
	if !alive(child) {
		t.Fatal("the child should have outlived its parent")
	}
	if err := p.Stop(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	if alive(child) {
		t.Error("the child is still there")
	}
}

// The program was just written, and a fork elsewhere still has it open.
func TestStartWaitsForABusyFile(t *testing.T) {
	spec := shell(t, "exit 4")
	path := filepath.Join(t.TempDir(), "sh")
	data, err := os.ReadFile(spec.Path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(30*time.Millisecond, func() { f.Close() })
	spec.Path = path
	p := mustStart(t, spec)
	waitDone(t, p)
	if p.Exit() != "exit status 4" {
		t.Error(p.Exit())
	}
}

func TestReleaseLeavesItRunning(t *testing.T) {
	p := mustStart(t, shell(t, "while :; do sleep 0.05; done"))
	p.Release()
	p.Release()
	if !alive(p.PID()) {
		t.Error("it ended")
	}
}

func TestUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root; not covered: another user")
	}
	spec := shell(t, "id -u; id -G")
	spec.User = "nobody"
	p := mustStart(t, spec)
	waitDone(t, p)
	data, _ := os.ReadFile(spec.LogPath)
	if !strings.HasPrefix(string(data), "65534\n") {
		t.Errorf("ran as %s", data)
	}
}
