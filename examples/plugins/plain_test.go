package plugins_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/conformance"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

func TestPlainIsProved(t *testing.T) {
	t.Parallel()
	conformance.Test(t, conformance.Config{Binary: testbin.BuildDir(t, "plain")})
}

// An agent runs a plugin that has go-plugin and no SDK, as any other: it logs what the plugin prints, the next agent
// finds the process again, and another file takes over from it.
func TestPlainUnderAnAgent(t *testing.T) {
	t.Parallel()
	testbin.RequireRoot(t, "an agent with the example plugin plain")
	data := must(os.ReadFile(testbin.BuildDir(t, "plain")))(t)
	h := testhost.New(t, "")
	install(t, h, "plain", data)
	h.Start()
	running := func() (p *hostv1.Plugin) {
		h.Eventually("the plugin serves", func() error {
			if p = plugin(t, h, "plain"); p.GetState() != "running" {
				return fmt.Errorf("it is %v", p)
			}
			return nil
		})
		return p
	}
	before := running()
	if before.GetKind() != "bootstrap.v1" || before.GetVersion() != "0.1.0" {
		t.Errorf("the plugin is %v", before)
	}
	h.Eventually("what it prints is in the agent's log", func() error {
		if !strings.Contains(h.LogTail(), "configured with") {
			return fmt.Errorf("the log ends with\n%s", h.LogTail())
		}
		return nil
	})
	h.Kill()
	h.Start()
	if now := running(); now.GetPid() != before.GetPid() || now.GetGeneration() != before.GetGeneration() {
		t.Errorf("the next agent has %v instead of %v", now, before)
	}
	install(t, h, "plain", append(data, "\n// another binary\n"...))
	h.Eventually("the plugin is swapped", func() error {
		now := plugin(t, h, "plain")
		if now.GetSha256() == before.GetSha256() || now.GetState() != "running" || len(now.GetSwaps()) != 1 {
			return fmt.Errorf("it is %v", now)
		}
		return nil
	})
	h.Eventually("the process that was replaced has ended", func() error { return gone(before) })
	last := plugin(t, h, "plain")
	h.Run("agent", "stop", "-plugins")
	h.AwaitEnd()
	if err := gone(last); err != nil {
		t.Errorf("the plugin after its agent: %v", err)
	}
}
