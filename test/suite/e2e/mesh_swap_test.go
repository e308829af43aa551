package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testbin"
)

// A binary that comes up well but fails the calls of its kind does not take over.
func TestMeshPluginThatFailsItsCallsDoesNotTakeOver(t *testing.T) {
	t.Parallel()
	m := newMesh(t, minted, "")
	m.open()
	fixture, err := os.ReadFile(testbin.BuildDir(t,
		filepath.Join(testbin.Root(), "host/internal/pluginhost/supervisor/testdata/plugin")))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct{ name, kind string }{
		{"sids", "identity"}, {"consul-services", "registration"}, {"envoy-bootstrap", "bootstrap"},
	} {
		before := m.plugin(p.name)
		bad := slices.Concat(fixture, []byte("\n#fixture fails 9.9.9 "+p.kind+"\n#named "+p.name+"\n"))
		path := filepath.Join(m.PluginDir, p.name)
		if err := errors.Join(os.WriteFile(path+".tmp", bad, 0o755), os.Rename(path+".tmp", path)); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(bad)
		m.Eventually("it is refused", func() error {
			why := m.plugin(p.name).GetRefused()[hex.EncodeToString(sum[:])]
			if !strings.HasPrefix(why, `probe: consul "default": it fails a call that the serving process does not fail: `) {
				return fmt.Errorf("%s: %q", p.name, why)
			}
			return nil
		})
		if now := m.plugin(p.name); now.GetPid() != before.GetPid() || now.GetFailedCalls() != 0 {
			t.Errorf("%s took over: %v", p.name, now)
		}
	}
}

// plugin returns a plugin that is up.
func (m *mesh) plugin(name string) (found *hostv1.Plugin) {
	m.t.Helper()
	m.Eventually(name+" is up", func() error {
		s, err := m.Status()
		if err != nil {
			return err
		}
		n := slices.IndexFunc(s.GetPlugins(), func(p *hostv1.Plugin) bool { return p.GetName() == name && p.GetPid() != 0 })
		if n < 0 {
			return fmt.Errorf("plugins: %v", s.GetPlugins())
		}
		found = s.GetPlugins()[n]
		return nil
	})
	return found
}
