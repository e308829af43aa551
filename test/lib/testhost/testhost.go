// Package testhost runs a real agent with its real plugin and drivers for tests: built programs, a temporary
// directory, a free port. Nothing of them is left when the test ends. It needs root.
package testhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/atomicfile"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testnet"
)

// Wait bounds every wait. It is long because the machine may be busy; a wait ends as soon as its condition is met.
const Wait = 60 * time.Second

// Host is one agent and its directory.
type Host struct {
	t   testing.TB
	Dir string
	// Pannier is the program of the commands, and Agent the agent's.
	Pannier, Agent string
	// Config is the file or folder of the agent's configuration.
	Config string
	// PluginDir holds the host's own copies of the plugins.
	PluginDir string
	// Env is added to the agent's environment at its next start.
	Env []string
	// Token is the secret of the ACL token of commands and calls; empty: none.
	Token string
	// Name of the node.
	Name string
	// Net is the host's network; nil: the test's own. It is set before Start.
	Net *testnet.Host
	// Namespace is a process in whose mount namespace the agent and the commands run; 0: the test's own. It is set
	// before Start.
	Namespace int

	agent *exec.Cmd
	ended chan struct{}
	last  *os.ProcessState // of an agent that this test has ended
}

// New prepares a host with the csi-bridge plugin, and others by name, and writes its configuration: more is HCL
// that is added to it, such as csi_driver blocks. Ports that it does not set are free ones. Start starts the host.
func New(t testing.TB, more string, plugins ...string) *Host {
	t.Helper()
	return NewNamed(t, "a", more, plugins...)
}

// NewNamed is New for a node with a name other than "a".
func NewNamed(t testing.TB, name, more string, plugins ...string) *Host {
	t.Helper()
	testbin.RequireRoot(t, "volumes mounted by a real agent")
	// A short path, because Unix socket addresses have at most 107 bytes.
	dir, err := os.MkdirTemp("", "pt-")
	if err != nil {
		t.Fatal(err)
	}
	// Like /var/lib: a workload's user can reach its own files.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // it lists nothing
		t.Fatal(err)
	}
	h := &Host{
		t: t, Dir: dir, Name: name, Pannier: testbin.Pannier(t), Agent: testbin.Build(t, "host/cmd/pannier-agent"),
		Config: filepath.Join(dir, "agent.hcl"), PluginDir: filepath.Join(dir, "plugins"),
	}
	t.Cleanup(h.cleanUp)
	if err := os.Mkdir(h.PluginDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range append([]string{"csi-bridge"}, plugins...) {
		h.copy(testbin.Build(t, "plugins/"+name), filepath.Join(h.PluginDir, name))
	}
	if !strings.Contains(more, "ports {") {
		more += "\nports {\n  http = 0\n}\n"
	}
	h.Write("agent.hcl", fmt.Sprintf(`
name       = %q
data_dir   = %q
plugin_dir = %q
socket     = %q
log_level  = "debug"
%s`, name, h.Path("data"), h.PluginDir, h.Socket(), more))
	return h
}

// LocalDriver is a csi_driver block that runs csi-local with the id "local".
func LocalDriver(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf(`
csi_driver "local" {
  command = [%q, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-data-dir", "${data_dir}/volumes"]
  settle_time = "1s"
}
`, testbin.Build(t, "drivers/csi-local"))
}

// Path returns the path of a file in the host's directory.
func (h *Host) Path(name string) string { return filepath.Join(h.Dir, name) }

// Socket returns the path of the API's socket.
func (h *Host) Socket() string { return h.Path("api.sock") }

// SecretsDir returns the directory of the tokens and bootstraps of workloads.
func (h *Host) SecretsDir() string { return h.Path("data/secrets") }

// Write writes a file into the host's directory and returns its path. Concurrent readers find either the complete
// file or none.
func (h *Host) Write(name, content string) string {
	h.t.Helper()
	if err := atomicfile.WriteFile(h.Path(name), []byte(content)); err != nil {
		h.t.Fatal(err)
	}
	return h.Path(name)
}

func (h *Host) copy(from, to string) {
	h.t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = WriteProgram(to, data)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// WriteProgram writes an executable. No process that is started meanwhile has it open for writing: it could not be
// executed as long as that runs ("text file busy").
func WriteProgram(path string, program []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, program, 0o755) //nolint:gosec // it is an executable
}

// Install makes a copy of a program the agent's, as a package does. A running agent that was started from such a copy
// can be upgraded to it.
func (h *Host) Install(program []byte) {
	h.t.Helper()
	h.Agent = h.Path("pannier-agent")
	err := WriteProgram(h.Agent+".new", program)
	if err == nil {
		err = os.Rename(h.Agent+".new", h.Agent)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// Start starts the agent and waits until it is ready and its drivers are healthy.
func (h *Host) Start() {
	h.t.Helper()
	h.Launch()
	h.AwaitDrivers()
}

// AwaitDrivers waits until all drivers of the running agent are healthy.
func (h *Host) AwaitDrivers() {
	h.t.Helper()
	h.Eventually("the drivers are healthy", func() error {
		s, err := h.Status()
		if err != nil {
			return err
		}
		for _, d := range s.GetDrivers() {
			if !d.GetHealthy() {
				return fmt.Errorf("driver %s: %s", d.GetId(), d.GetMessage())
			}
			if c := d.GetController(); c != nil && !c.GetHealthy() {
				return fmt.Errorf("controller of driver %s: %s", d.GetId(), c.GetMessage())
			}
		}
		return nil
	})
}

// Launch starts the agent and waits until it is ready, whatever the state of its drivers.
func (h *Host) Launch() {
	h.t.Helper()
	h.Begin()
	h.AwaitReady()
}

// Begin starts the agent without waiting for it.
func (h *Host) Begin() {
	h.t.Helper()
	log, err := os.OpenFile(h.Path("agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	defer log.Close()
	cmd := h.InNamespace(h.Agent, "-config", h.Config)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), h.Env...)
	start := cmd.Start
	if h.Net != nil {
		start = func() error { return h.Net.Do(cmd.Start) }
	}
	if err := start(); err != nil {
		h.t.Fatal(err)
	}
	ended := make(chan struct{})
	h.agent, h.ended = cmd, ended
	go func() { _ = cmd.Wait(); close(ended) }()
}

// AwaitReady waits until the running agent is ready, whatever the state of its drivers.
func (h *Host) AwaitReady() {
	h.t.Helper()
	h.Eventually("the agent is ready", func() error {
		select {
		case <-h.ended:
			h.t.Fatalf("the agent ended: %v\n%s", h.agent.ProcessState, h.LogTail())
		default:
		}
		s, err := h.Status()
		if err != nil {
			return err
		}
		if !s.GetReady() {
			return errors.New(s.GetMessage())
		}
		return nil
	})
}

// Kill ends the agent with SIGKILL.
func (h *Host) Kill() { h.end(unix.SIGKILL) }

// Stop ends the agent as systemd does.
func (h *Host) Stop() { h.end(unix.SIGTERM) }

// Dump ends the agent, which writes the stacks of its goroutines into its log.
func (h *Host) Dump() { h.end(unix.SIGQUIT) }

// AwaitEnd waits until the agent has ended by itself.
func (h *Host) AwaitEnd() {
	h.t.Helper()
	h.awaitEnd("")
}

// Ended is closed when the running agent has ended.
func (h *Host) Ended() <-chan struct{} { return h.ended }

// Use makes failures count for a subtest of the test that made the host, until the subtest ends.
func (h *Host) Use(t testing.TB) {
	before := h.t
	h.t = t
	t.Cleanup(func() { h.t = before })
}

// PID of the agent.
func (h *Host) PID() int { return h.agent.Process.Pid }

func (h *Host) end(sig unix.Signal) {
	h.t.Helper()
	if err := h.agent.Process.Signal(sig); err != nil {
		h.t.Fatalf("signal the agent: %v", err)
	}
	h.awaitEnd(" on " + unix.SignalName(sig))
}

func (h *Host) awaitEnd(why string) {
	h.t.Helper()
	select {
	case <-h.ended:
	case <-time.After(Wait):
		h.t.Fatalf("the agent did not end%s\n%s", why, h.LogTail())
	}
	h.agent, h.last = nil, h.agent.ProcessState
}

// LeftCore reports whether the last agent that the test ended has left a core file.
func (h *Host) LeftCore() bool {
	h.t.Helper()
	return h.last.Sys().(syscall.WaitStatus).CoreDump()
}

// Client calls the agent's API.
func (h *Host) Client() *api.Client {
	h.t.Helper()
	c, err := api.New("unix://"+h.Socket(), api.WithToken(h.Token))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Eventually waits until check returns nil.
func (h *Host) Eventually(what string, check func() error) {
	h.t.Helper()
	deadline := time.Now().Add(Wait)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s: not within %s: %v\n%s", what, Wait, err, h.LogTail())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Status returns the status of the whole host.
func (h *Host) Status() (*hostv1.StatusResponse, error) {
	c, err := api.New("unix://"+h.Socket(), api.WithToken(h.Token))
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return c.Agent.Status(ctx, &hostv1.StatusRequest{})
}

// Alive reports whether the agent runs.
func (h *Host) Alive() bool {
	if h.agent == nil {
		return false
	}
	select {
	case <-h.ended:
		return false
	default:
		return true
	}
}

// Result is the result of a CLI command.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// InNamespace prepares a program that runs in the host's mount namespace, with the process id in exec.Cmd.
func (h *Host) InNamespace(program string, args ...string) *exec.Cmd {
	if h.Namespace == 0 {
		return exec.Command(program, args...)
	}
	enter := []string{"--target", strconv.Itoa(h.Namespace), "--mount", "--", program}
	return exec.Command("nsenter", append(enter, args...)...)
}

// Command prepares a CLI command.
func (h *Host) Command(args ...string) *exec.Cmd {
	cmd := h.InNamespace(h.Pannier, args...)
	cmd.Env = append(os.Environ(), "PANNIER_ADDR=unix://"+h.Socket(), "NO_COLOR=1")
	if h.Token != "" {
		cmd.Env = append(cmd.Env, "PANNIER_TOKEN="+h.Token)
	}
	return cmd
}

// tryAtMost bounds a CLI command, so that one that hangs fails its test and not the whole run.
const tryAtMost = 5 * time.Minute

// Try runs a CLI command, which may fail.
func (h *Host) Try(args ...string) Result {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := h.Command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Start()
	if err == nil {
		late := time.AfterFunc(tryAtMost, func() { _ = cmd.Process.Kill() })
		err = cmd.Wait()
		if !late.Stop() {
			h.t.Fatalf("pannier %s: it did not end within %s\n%s%s\n%s", strings.Join(args, " "), tryAtMost, stdout.String(),
				stderr.String(), h.LogTail())
		}
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("pannier %s: %v", strings.Join(args, " "), err)
	}
	return Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Run runs a CLI command that must succeed, and returns its output.
func (h *Host) Run(args ...string) string {
	h.t.Helper()
	r := h.Try(args...)
	if r.Code != 0 {
		h.t.Fatalf("pannier %s: exit code %d\n%s%s\n%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr, h.LogTail())
	}
	return r.Stdout
}

// Refused runs a CLI command that must fail with a code and print each of the words.
func (h *Host) Refused(code int, words []string, args ...string) {
	h.t.Helper()
	r := h.Try(args...)
	if r.Code != code {
		h.t.Fatalf("pannier %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), r.Code, code, r.Stdout, r.Stderr)
	}
	for _, w := range words {
		if !strings.Contains(r.Stdout+r.Stderr, w) {
			h.t.Errorf("pannier %s does not say %q:\n%s%s", strings.Join(args, " "), w, r.Stdout, r.Stderr)
		}
	}
}

// LogTail returns the end of the agent's log.
func (h *Host) LogTail() string {
	f, err := os.Open(h.Path("agent.log"))
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 12<<10 {
		_, _ = f.Seek(-12<<10, io.SeekEnd)
	}
	raw, _ := io.ReadAll(f)
	return "the agent's log ends with:\n" + string(raw)
}

// FreeAddress returns an address of this machine with a TCP port that nobody listens on.
func FreeAddress(t testing.TB, ip string) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
