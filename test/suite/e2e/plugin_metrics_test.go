package e2e

import (
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The calls of plugins are counted by process, method and code.
func TestPluginMetrics(t *testing.T) {
	t.Parallel()
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
	calls := regexp.MustCompile(`(?m)^pannier_plugin_calls_total\{code="OK",generation="1",method="Create",` +
		`plugin="csi-bridge",version="[^"]+"\} 1$`)
	if !calls.Match(page) {
		t.Errorf("the call that made the volume is not counted:\n%s", page)
	}
}
