package cli

import (
	"fmt"
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

// A signal to stop ends a command at whatever moment it comes: pannier catches none that the agent would not get.
func TestStopBeforeTheWholeProgram(t *testing.T) {
	bin := t.TempDir()
	program := check.Must(os.ReadFile(testbin.Build(t, "host/cmd/pannier")))(t)
	check.NoError(t, os.WriteFile(filepath.Join(bin, "pannier"), program, 0o755)) //nolint:gosec // it is an executable
	sleeps := []byte("#!/bin/sh\nexec sleep 300\n")
	check.NoError(t,
		os.WriteFile(filepath.Join(bin, "pannier-agent"), sleeps, 0o755)) //nolint:gosec // it is an executable
	start := func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, "pannier"), "agent")
		check.NoError(t, cmd.Start())
		return cmd
	}
	// The signals come at all moments until the other program runs, however busy the machine is: at those of the fastest
	// of some starts.
	took := time.Hour
	for range 5 {
		cmd, began := start(), time.Now()
		check.Eventually(t, "the other program", func() bool {
			name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cmd.Process.Pid))
			return err == nil && string(name) == "sleep\n"
		})
		took = min(took, time.Since(began))
		check.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed
	}
	for n := range 60 {
		after := took * time.Duration(n) / 40
		cmd := start()
		kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() }) // which the test can tell
		time.Sleep(after)
		check.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait() // it is told by a signal
		kill.Stop()
		if by := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); by != syscall.SIGTERM {
			t.Fatalf("told to stop after %s, it ended by %s", after, by)
		}
	}
}

// What takes long to initialize or to link is in the agent's program only.
func TestTheClientIsSmall(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./host/cmd/pannier")
	cmd.Dir = testbin.Root()
	for pkg := range strings.FieldsSeq(string(check.Must(cmd.Output())(t))) {
		for _, heavy := range []string{
			"github.com/dgraph-io/", "github.com/hashicorp/go-plugin", "github.com/hashicorp/raft",
			"github.com/prometheus/", "oras.land/", "github.com/pannier/pannier/cluster/state",
			"github.com/pannier/pannier/host/internal/agent", "github.com/pannier/pannier/host/internal/apiserver",
		} {
			if strings.HasPrefix(pkg, heavy) {
				t.Errorf("pannier imports %s", pkg)
			}
		}
	}
}

func TestMemberStatus(t *testing.T) {
	for status, want := range map[discovery.Status]Color{
		discovery.Alive: Green, discovery.Failed: Red, discovery.Leaving: Yellow,
	} {
		if got := stateCell(string(status)); got != (Cell{string(status), want}) {
			t.Errorf("%s is shown as %v", status, got)
		}
	}
}
