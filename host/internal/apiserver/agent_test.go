package apiserver

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

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

// Status has what disk use and releases are watched by.
func TestStatusOfTheDisk(t *testing.T) {
	h := openHost(t)
	s, err := h.client.Agent.Status(h.ctx, request(&hostv1.StatusRequest{}))
	check.NoError(t, err)
	var disk unix.Statfs_t
	check.NoError(t, unix.Statfs(h.cfg.DataDir, &disk))
	if size := disk.Blocks * uint64(disk.Bsize); s.Msg.GetDataDirSize() != size || s.Msg.GetDataDirFree() == 0 ||
		s.Msg.GetDataDirFree() > size || s.Msg.GetLedgerSize() <= 0 || s.Msg.GetStalledSince() != nil {
		t.Errorf("of a disk of %d bytes: %v", size, s.Msg)
	}
}
