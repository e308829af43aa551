package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clitest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// runScript runs a shell script as a workload of the fake. Its streams are the terminal, if there is one.
func runScript(t *testing.T, f *fake, script string, terminal *os.File, blocks ...string) (*exec.Cmd, *check.Buffer) {
	t.Helper()
	spec := filepath.Join(t.TempDir(), "w.hcl")
	text := fmt.Sprintf("workload \"w\" {\n  volume \"data\" {\n    source = \"a\"\n    destination = %q\n  }\n%s}\n",
		filepath.Join(t.TempDir(), "dst"), strings.Join(blocks, "\n"))
	check.NoError(t, os.WriteFile(spec, []byte(text), 0o644))
	return runSpec(t, f, spec, terminal, nil, "--", "sh", "-c", script)
}

// runSpec starts pannier workload run, with an environment besides the test's.
func runSpec(t *testing.T, f *fake, spec string, terminal *os.File, env []string, args ...string) (*exec.Cmd,
	*check.Buffer,
) {
	t.Helper()
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{"pannier", "workload", "run", spec}, args...),
		Env: append(append(os.Environ(), "PANNIER_ADDR=unix://"+f.socket), env...),
	}
	out := &check.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if terminal != nil {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	}
	check.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
		if t.Failed() {
			t.Logf("output:\n%s", out)
		}
	})
	return cmd, out
}

func awaitText(t *testing.T, out *check.Buffer, text string) {
	t.Helper()
	check.Eventually(t, fmt.Sprintf("%q", text), func() bool { return strings.Contains(out.String(), text) })
}

func (f *fake) stopped() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stops
}

func wait(t *testing.T, cmd *exec.Cmd, out *check.Buffer, want int) {
	t.Helper()
	late := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	err := cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Fatalf("exit code %d, want %d: %v; output:\n%s", got, want, err, out)
	}
}

func TestSignalsReachTheProgram(t *testing.T) {
	testbin.RequireRoot(t, "signals of pannier workload run")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1} {
		t.Run(sig.String(), func(t *testing.T) {
			// A shell cannot trap a signal that was ignored when it started, as nohup does with SIGHUP.
			caught := make(chan os.Signal, 1)
			signal.Notify(caught, sig)
			defer signal.Stop(caught)
			f := startFake(t)
			script := fmt.Sprintf("trap 'echo got it; exit 9' %d; echo ready; while :; do sleep 0.01; done", int(sig))
			cmd, out := runScript(t, f, script, nil)
			awaitText(t, out, "ready")
			check.NoError(t, cmd.Process.Signal(sig))
			wait(t, cmd, out, 9)
			if strings.Count(out.String(), "got it") != 1 || f.stopped() != 1 {
				t.Fatalf("%d stops; output:\n%s", f.stopped(), out)
			}
		})
	}
}

// A stop takes the services out of Consul's catalog, and then asks the program by its kill_signal; a second TERM is the
// program's own. One that does not end is killed.
func TestAStopLeavesTheCatalogFirst(t *testing.T) {
	testbin.RequireRoot(t, "a stop of pannier workload run")
	const script = "trap 'echo asked; exit 9' INT; trap 'echo hurried; exit 8' TERM; echo ready; while :; do sleep 0.01; done"
	for name, c := range map[string]struct {
		script, exec string
		hurry        bool
		code         int
		says         string
	}{
		"asks":    {script, `kill_signal = "SIGINT"`, false, 9, "asked"},
		"hurries": {script, `kill_signal = "SIGINT"`, true, 8, "hurried"},
		"kills":   {"trap '' TERM; echo ready; while :; do sleep 0.01; done", `kill_timeout = "50ms"`, false, 137, "it is killed"},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t)
			f.leaving = make(chan struct{})
			cmd, out := runScript(t, f, c.script, nil, `service "web" {}`, "exec {\n command = \"sh\"\n "+c.exec+"\n}\n")
			awaitText(t, out, "ready")
			check.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			check.Eventually(t, "its services leave", func() bool {
				select {
				case <-f.leaving:
					return true
				default:
					return false
				}
			})
			if strings.Contains(out.String(), "asked") {
				t.Errorf("it is asked to end before its services have left; output:\n%s", out)
			}
			if c.hurry {
				check.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
				awaitText(t, out, c.says)
			}
			f.leaving <- struct{}{}
			wait(t, cmd, out, c.code)
			if !strings.Contains(out.String(), c.says) || f.stopped() != 1 {
				t.Errorf("%d stops; output:\n%s", f.stopped(), out)
			}
		})
	}
}

func TestRunningIsToldBeforeTheProgramRuns(t *testing.T) {
	testbin.RequireRoot(t, "pannier workload run")
	f := startFake(t)
	cmd, out := runScript(t, f, "echo pid=$$", nil)
	wait(t, cmd, out, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	if want := fmt.Sprintf("pid=%d\n", f.running["w"]); !strings.Contains(out.String(), want) {
		t.Fatalf("the agent got %d requests; output:\n%s", f.running["w"], out)
	}
}

// Arguments after -- are passed on without substitution: ${x} in them belongs to the shell, not to the spec.
func TestArgumentsOfTheCommandLineAreLeftAlone(t *testing.T) {
	testbin.RequireRoot(t, "pannier workload run")
	f := startFake(t)
	cmd, out := runScript(t, f, "x=1; echo got ${x}", nil)
	wait(t, cmd, out, 0)
	if !strings.Contains(out.String(), "got 1\n") {
		t.Fatalf("output:\n%s", out)
	}
}

// If the agent is unavailable when the program ends, the command still returns the program's exit code.
func TestReleaseIsLeftToAnAgentThatIsAway(t *testing.T) {
	testbin.RequireRoot(t, "pannier workload run without an agent at its end")
	f := startFake(t)
	cmd, out := runScript(t, f, "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done", nil)
	awaitText(t, out, "ready")
	f.close()
	check.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	awaitText(t, out, "retrying for 30s")
	// Another signal ends the wait. For 0.5 s after the program's end the command ignores signals, because they
	// may have been sent to the whole process group to end the program.
	for left := false; !left; {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		left = strings.Contains(out.String(), "the agent continues the release")
		time.Sleep(20 * time.Millisecond)
	}
	wait(t, cmd, out, 4)
}

func TestPatienceEnds(t *testing.T) {
	f := startFake(t)
	client, err := api.New("unix://" + f.socket)
	check.NoError(t, err)
	defer client.Close()
	var errs bytes.Buffer
	a := calling(client, &errs, 300*time.Millisecond)
	p := a.progress()
	defer p.close()
	_, err = a.start(t.Context(), p, &hostv1.StartWorkloadRequest{Spec: &hostv1.WorkloadSpec{
		Id: "w", Volumes: []*hostv1.VolumeRequest{{Name: "v", Source: "away-v"}},
	}})
	if connect.CodeOf(err) != connect.CodeUnavailable || strings.Count(errs.String(), "claim ... failed") < 1 {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	// The command does not wait for a socket that never existed.
	none, err := api.New("unix://" + f.socket + ".none")
	check.NoError(t, err)
	_, err = calling(none, &errs, time.Hour).start(t.Context(), p, &hostv1.StartWorkloadRequest{})
	if unreachable := (*api.UnreachableError)(nil); !errors.As(err, &unreachable) {
		t.Fatal(err)
	}
	// The wait ends with the context.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err = calling(none, &errs, time.Hour).stop(ctx, p, &hostv1.StopWorkloadRequest{Namespace: "default", Id: "w"}); err == nil {
		t.Fatal("no error")
	}
}

// calling is a call of an agent that is retried for as long as patience.
func calling(client *api.Client, errs io.Writer, patience time.Duration) *call {
	return &call{App: &App{Printer: &Printer{Err: errs}, patience: patience}, Client: client}
}

// If a call took longer than the command's patience, it is not retried: the agent has retried by itself, for
// example while it waited for Consul.
func TestPatienceWithAPatientAgent(t *testing.T) {
	f := startFake(t)
	client, err := api.New("unix://" + f.socket)
	check.NoError(t, err)
	defer client.Close()
	a := calling(client, io.Discard, 50*time.Millisecond)
	p := a.progress()
	defer p.close()
	calls := 0
	err = a.patiently(t.Context(), p, true, func() error {
		if calls++; calls > 3 {
			return errors.New("it has no end")
		}
		time.Sleep(2 * a.patience) // stands for the agent's own retries
		stream, err := client.Workloads.StartWorkload(t.Context(),
			&hostv1.StartWorkloadRequest{Spec: &hostv1.WorkloadSpec{
				Id: "w", Volumes: []*hostv1.VolumeRequest{{Name: "v", Source: "away-v"}},
			}})
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
		}
		return stream.Err()
	})
	if connect.CodeOf(err) != connect.CodeUnavailable || calls != 1 {
		t.Errorf("%d calls: %v", calls, err)
	}
}

// An agent that dies may reset the connection, and the call is retried then.
func TestPatienceWithAResetConnection(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	check.NoError(t, err)
	var resets atomic.Int32
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1))
			resets.Add(1)
			_ = conn.Close() // closing with unread data resets the connection
		}
	})
	t.Cleanup(accepting.Wait)
	t.Cleanup(func() { l.Close() })
	client, err := api.New("unix://" + socket)
	check.NoError(t, err)
	defer client.Close()
	a := calling(client, io.Discard, 250*time.Millisecond)
	p := a.progress()
	defer p.close()
	if _, err = a.stop(t.Context(), p,
		&hostv1.StopWorkloadRequest{Namespace: "default", Id: "w"}); err == nil || resets.Load() < 2 {
		t.Errorf("%v after %d resets, want several", err, resets.Load())
	}
	if code, _ := classify(err); code != ExitUnreachable {
		t.Errorf("%v gives exit code %d", err, code)
	}
}

// The terminal sends Ctrl-C to the whole process group. The command must not forward it to the program a
// second time.
func TestInterruptOfATerminalComesOnce(t *testing.T) {
	testbin.RequireRoot(t, "Ctrl-C at pannier workload run")
	for name, blocks := range map[string][]string{
		"as the caller": nil, "as another user": {"exec {\n  command = \"sh\"\n  user = \"65534\"\n}\n"},
	} {
		t.Run(name, func(t *testing.T) { interruptOnce(t, blocks) })
	}
}

func interruptOnce(t *testing.T, blocks []string) {
	f := startFake(t)
	keyboard, terminal := clitest.Terminal(t)
	out := &check.Buffer{}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(keyboard); lines.Scan(); {
			fmt.Fprintln(out, lines.Text())
		}
	}()
	// The loop ends with the first signal. The script then waits 0.3 s to see whether a second one follows.
	cmd, _ := runScript(t, f, `n=0; trap 'n=$((n+1))' INT
echo ready; while [ $n = 0 ]; do sleep 0.01; done; sleep 0.3; exit $n`, terminal, blocks...)
	awaitText(t, out, "ready")
	if _, err := keyboard.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	wait(t, cmd, out, 1)
	terminal.Close()
	keyboard.Close()
	<-read
	text := out.String()
	if f.stopped() != 1 || !strings.Contains(text, "\x1b[") || strings.Contains(text, "interrupted:") {
		t.Fatalf("%d stops; output:\n%q", f.stopped(), text)
	}
}
