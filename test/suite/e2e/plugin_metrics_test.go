package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Each metric of the dashboard is on the agent's page, with the labels that the dashboard sums by.
func TestDashboard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(testbin.Root(), "docs/operations/grafana-plugins.json"))
	check.NoError(t, err)
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	s, err := h.Status()
	check.NoError(t, err)
	resp, err := http.Get("http://" + s.GetHttpAddress() + "/v1/metrics") //nolint:noctx // the host ends with the test
	check.NoError(t, err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	check.NoError(t, err)
	names := regexp.MustCompile(`pannier_[a-z_]+`).FindAllString(string(text), -1)
	if len(names) < 8 {
		t.Errorf("the dashboard has %q", names)
	}
	for _, name := range names {
		if !strings.Contains(string(page), "\n"+name+"{") {
			t.Errorf("%s is not on the page", name)
		}
	}
	calls := regexp.MustCompile(`(?m)^pannier_plugin_calls_total\{code="OK",generation="1",method="Create",` +
		`plugin="csi-bridge",version="[^"]+"\} 1$`)
	if !calls.Match(page) {
		t.Errorf("the call that made the volume is not counted:\n%s", page)
	}
}
