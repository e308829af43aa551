package process

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestProcessOutlivesItsHost(t *testing.T) {
	spec := shell(t, "while :; do sleep 0.05; done")
	cmd, ref := host(t, spec)
	cmd.Process.Kill()
	cmd.Wait()

	p, err := Find(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if !alive(ref.PID) || p.PID() != ref.PID {
		t.Fatalf("found %d, want %d", p.PID(), ref.PID)
	}
	again, err := Find(t.Context(), spec.Intent())
	if err != nil || again.Ref() != p.Ref() {
		t.Fatalf("by its token: %+v, %v; want %+v", again, err, p.Ref())
	}
	defer again.Release()
	if err := p.Stop(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	waitDone(t, again)
}

// A host that is killed between fork and the second Ref leaves an intent. Whenever that was, the process is found, or
// was never started.
func TestFindAfterAKillInTheMiddleOfStart(t *testing.T) {
	found := 0
	for i := range 12 {
		spec := shell(t, "echo started; while :; do sleep 0.05; done")
		arg, _ := json.Marshal(spec)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envHost+"="+string(arg))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Kill it at the fork: the log is locked, and usually there was no exec yet.
		if i%2 == 0 {
			for end := time.Now().Add(10 * time.Second); !logLocked(spec.LogPath); {
				if time.Now().After(end) {
					t.Fatal("the host does not start the process")
				}
			}
		} else {
			time.Sleep(time.Duration(i) * time.Millisecond) // anywhere in its life
		}
		cmd.Process.Kill()
		cmd.Wait()
		p, err := Find(t.Context(), spec.Intent())
		if err != nil {
			if !errors.Is(err, ErrGone) {
				t.Fatal(err)
			}
			if pid, ok := leaderWithToken(spec.Token); ok || logLocked(spec.LogPath) {
				t.Fatalf("said to be gone, but %d runs", pid)
			}
			continue
		}
		found++
		if err := p.Stop(within(t, 5*time.Second)); err != nil {
			t.Fatal(err)
		}
		if logLocked(spec.LogPath) {
			t.Fatal("stopped, but something still has the log")
		}
	}
	if found == 0 {
		t.Error("every host was killed before it forked: nothing was tested")
	}
}

func TestFindKnowsAStranger(t *testing.T) {
	p := mustStart(t, shell(t, "while :; do sleep 0.05; done"))
	for name, change := range map[string]func(*Ref){
		"another start time": func(r *Ref) { r.StartTime++ },
		"another boot":       func(r *Ref) { r.BootID = "another" },
		"no such pid":        func(r *Ref) { r.PID = 1 << 22 },
		"no such token":      func(r *Ref) { r.PID, r.Token, r.LogPath = 0, NewToken(), "/does/not/exist" },
	} {
		ref := p.Ref()
		change(&ref)
		if q, err := Find(t.Context(), ref); !errors.Is(err, ErrGone) {
			q.Release()
			t.Errorf("%s: %v", name, err)
		}
		if name == "no such token" || name == "another boot" {
			continue
		}
		// A reused pid: its group is not ours, and neither is its token.
		ref.Token = NewToken()
		if err := Clean(within(t, time.Second), ref); err != nil || !alive(p.PID()) {
			t.Fatalf("%s: a stranger was stopped: %v", name, err)
		}
	}
	if err := p.Stop(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
}

func TestDieWithHost(t *testing.T) {
	spec := shell(t, "while :; do sleep 0.05; done")
	spec.DieWithHost = true
	cmd, ref := host(t, spec)
	if !alive(ref.PID) {
		t.Fatal("it does not run")
	}
	cmd.Process.Kill()
	cmd.Wait()
	waitFor(t, "the process's end", func() bool { return !alive(ref.PID) })
}

// host runs this test binary as a host that starts spec. It returns once the
// process runs.
func host(t *testing.T, spec Spec) (cmd *exec.Cmd, ref Ref) {
	t.Helper()
	arg, _ := json.Marshal(spec)
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envHost+"="+string(arg))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(line, &ref); err != nil {
		t.Fatal(err)
	}
	return cmd, ref
}
