package agentcli

import (
	"bufio"
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/cli"
	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clitest"
	"github.com/pannier/pannier/test/lib/testbin"
)

// The agent starts its own binary as the fence process.
func TestTheProgramIsAFence(t *testing.T) {
	dir, agent := t.TempDir(), testbin.Build(t, "host/cmd/pannier-agent")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := fence.Open(ctx, fence.Config{
		Dir: dir, Command: []string{agent, "fence", "-dir", dir},
		Log: hclog.NewNullLogger(),
	})
	check.NoError(t, err)
	past := boottime.Now()
	change := func(c fence.Change) { c.SetTimes(fence.Times{Stop: past, Deadline: past}) }
	if err := c.Update(ctx, change); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil { // it guards nothing, so it ends
		t.Error(err)
	}
	if out, err := exec.CommandContext(ctx, agent, "fence", "-dir",
		filepath.Join(dir, "none")).CombinedOutput(); err == nil {
		t.Errorf("a fence without a directory: %s", out)
	}
}

// A person who waits for a download is told so.
func TestDownloadIsAnnounced(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check.NoError(t, err)
	keyboard, terminal := clitest.Terminal(t)
	source := "https://" + l.Addr().String() + "/demo_v1.0.0"
	cmd := exec.Command(testbin.Build(t, "host/cmd/pannier-agent"),
		"plugin", "install", "-plugin-dir", t.TempDir(), source)
	cmd.Stderr = terminal
	check.NoError(t, cmd.Start())
	lines := bufio.NewScanner(keyboard)
	if want := "waiting for the download of " + source + " ..."; !lines.Scan() || strings.TrimSpace(lines.Text()) != want {
		t.Errorf("it says %q, %v; want %q", lines.Text(), lines.Err(), want)
	}
	check.NoError(t, l.Close()) // who waited is refused
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != cli.ExitError {
		t.Error(err)
	}
}

// A second agent for trying out gets another port.
func TestFreePort(t *testing.T) {
	l, err := net.Listen("tcp", net.JoinHostPort("localhost", strconv.Itoa(config.DefaultHTTPPort)))
	if err == nil { // else somebody else has it
		defer l.Close()
	}
	if port := freePort(); port != 0 {
		t.Errorf("port %d, which is taken", port)
	}
}
