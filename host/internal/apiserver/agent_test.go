package apiserver

import (
	"os"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// Stop is answered before the server is closed.
func TestStopIsAnswered(t *testing.T) {
	asked := make(chan bool, 1)
	closed := make(chan error, 1)
	var h *host
	h = openHost(t, func(c *Config) {
		c.Stop = func(plugins bool) Ending {
			asked <- plugins
			go func() { closed <- h.Close() }()
			return Ending{Plugins: plugins}
		}
	})
	resp, err := h.client.Agent.Stop(h.ctx, request(&hostv1.StopRequest{Plugins: true}))
	check.NoError(t, err)
	if m := resp.Msg; m.Pid != int64(os.Getpid()) || !m.PluginsStop || m.WorkloadsStop || m.Workloads != 0 || !<-asked {
		t.Errorf("stopped: %v", m)
	}
	check.NoError(t, <-closed)
}
