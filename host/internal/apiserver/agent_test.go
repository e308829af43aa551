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
	h = openHost(t, func(c *parts) {
		c.Stop = func(plugins bool) (pluginsStop, workloadsStop bool) {
			asked <- plugins
			go func() { closed <- h.Close() }()
			return plugins, false
		}
	})
	resp := check.Must(h.client.Agent.Stop(h.ctx, &hostv1.StopRequest{Plugins: true}))(t)
	if m := resp; m.Pid != int64(os.Getpid()) || !m.PluginsStop || m.WorkloadsStop || m.Workloads != 0 || !<-asked {
		t.Errorf("stopped: %v", m)
	}
	check.NoError(t, <-closed)
}

// Status has what disk use and releases are watched by.
func TestStatusOfTheDisk(t *testing.T) {
	h := openHost(t)
	s := check.Must(h.client.Agent.Status(h.ctx, &hostv1.StatusRequest{}))(t)
	var disk unix.Statfs_t
	check.NoError(t, unix.Statfs(h.cfg.Agent.DataDir, &disk))
	if size := disk.Blocks * uint64(disk.Bsize); s.GetDataDirSize() != size || s.GetDataDirFree() == 0 ||
		s.GetDataDirFree() > size || s.GetLedgerSize() <= 0 || s.GetStalledSince() != nil {
		t.Errorf("of a disk of %d bytes: %v", size, s)
	}
}
