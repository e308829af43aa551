package agentcli

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/fencing/fence"
	"github.com/pannier/pannier/test/lib/check"
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
