package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

// client copies the client into a folder, without the whole program beside it.
func client(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	program := check.Must(os.ReadFile(testbin.ClientVersion(t, "1.2.3")))(t)
	check.NoError(t, os.WriteFile(filepath.Join(bin, "pannier"), program, 0o755)) //nolint:gosec // it is an executable
	return bin
}

// With the client in front, every script has the same result.
func TestScriptsWithTheClient(t *testing.T) {
	bin := client(t)
	whole := check.Must(exec.LookPath("pannier"))(t) // of TestMain
	check.NoError(t, os.Symlink(whole, filepath.Join(bin, "pannier-agent")))
	runScripts(t, bin)
}

func TestTheClientWithoutTheWholeProgram(t *testing.T) {
	pannier := filepath.Join(client(t), "pannier")
	if out, err := exec.Command(pannier, "version").Output(); err != nil || !strings.HasPrefix(string(out), "pannier 1.2.3 (") {
		t.Errorf("version: %v: %s", err, out)
	}
	out, err := exec.Command(pannier, "agent", "-dev").CombinedOutput()
	exit := (*exec.ExitError)(nil)
	if !errors.As(err, &exit) || exit.ExitCode() != ExitError || !strings.Contains(string(out), pannier+"-agent nor ") {
		t.Errorf("agent: %v: %s", err, out)
	}
}

// A signal to stop ends a command at whatever moment it comes: the client catches none that the whole program would not
// get.
func TestStopBeforeTheWholeProgram(t *testing.T) {
	bin := client(t)
	sleeps := []byte("#!/bin/sh\nexec sleep 300\n")
	check.NoError(t, os.WriteFile(filepath.Join(bin, "pannier-agent"), sleeps, 0o755)) //nolint:gosec // it is an executable
	for after := range 50 {
		cmd := exec.Command(filepath.Join(bin, "pannier"), "agent")
		check.NoError(t, cmd.Start())
		kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() }) // which the test can tell
		time.Sleep(time.Duration(after) * 100 * time.Microsecond)
		check.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // it is told by a signal
		kill.Stop()
		if by := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); by != syscall.SIGTERM {
			t.Fatalf("told to stop after %d00 µs, it ended by %s", after, by)
		}
	}
}

// What takes long to initialize, or keeps the linker from leaving out methods that nothing calls, is not in the client.
func TestTheClientIsSmall(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-tags", "client", "./host/cmd/pannier")
	cmd.Dir = testbin.Root()
	for pkg := range strings.FieldsSeq(string(check.Must(cmd.Output())(t))) {
		for _, heavy := range []string{
			"encoding/gob", "github.com/dgraph-io/", "github.com/hashicorp/raft", "github.com/prometheus/", "go.opentelemetry.io/",
			"google.golang.org/grpc", "oras.land/", "github.com/pannier/pannier/host/internal/agent",
		} {
			if strings.HasPrefix(pkg, heavy) {
				t.Errorf("the client imports %s", pkg)
			}
		}
	}
}

func TestNounsHaveTheirNames(t *testing.T) {
	a := &app{}
	for name, command := range a.nouns() {
		if got := command().Name(); got != name {
			t.Errorf("the command %s is listed as %s", got, name)
		}
	}
}

func TestMemberStatus(t *testing.T) {
	for status, want := range map[discovery.Status]color{
		discovery.Alive: green, discovery.Failed: red, discovery.Leaving: yellow,
	} {
		if got := memberStatus(string(status)); got != (cell{string(status), want}) {
			t.Errorf("%s is shown as %v", status, got)
		}
	}
}
