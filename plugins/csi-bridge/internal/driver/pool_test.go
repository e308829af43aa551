package driver

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/pannier/pannier/test/lib/check"
)

func TestPoolSharesAndForgets(t *testing.T) {
	p := NewPool(hclog.NewNullLogger(), DefaultTiming)
	a, releaseA, err := p.Acquire("unix:///run/a/../a.sock")
	check.NoError(t, err)
	b, releaseB, err := p.Acquire("/run/a.sock")
	check.NoError(t, err)
	if a != b {
		t.Error("two connections for one endpoint")
	}
	other, releaseOther, err := p.Acquire("/run/other.sock")
	check.NoError(t, err)
	releaseOther()
	releaseA()
	later := time.Now().Add(2 * idleAfter)
	p.dropIdle(later)
	if len(p.conns) != 1 || other.State() != connectivity.Shutdown {
		t.Errorf("%d connections, the unused one is %s", len(p.conns), other.State())
	}
	releaseB()
	p.dropIdle(time.Now()) // not idle for long yet
	if a.State() == connectivity.Shutdown {
		t.Error("closed at once after its last use")
	}
	p.dropIdle(later)
	if len(p.conns) != 0 || a.State() != connectivity.Shutdown {
		t.Error("an idle connection is kept")
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	if _, _, err := p.Acquire("/run/a.sock"); status.Code(err) != codes.Unavailable {
		t.Errorf("after Close: %v", err)
	}
}

// TestNoCallOutsideDo checks the rule that gives every call a deadline.
func TestNoCallOutsideDo(t *testing.T) {
	p := NewPool(hclog.NewNullLogger(), DefaultTiming)
	t.Cleanup(func() { _ = p.Close() })
	c, release, err := p.Acquire("/run/a.sock")
	check.NoError(t, err)
	defer release()
	if _, err := c.Identity.Probe(t.Context(), &csi.ProbeRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("got %v", err)
	}
}

// A driver is asked for its capabilities once on each connection, also on the one that the question makes.
func TestCapabilitiesAreKeptForTheirConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	p := NewPool(hclog.NewNullLogger(), DefaultTiming)
	t.Cleanup(func() { _ = p.Close() })
	c, release, err := p.Acquire(path)
	check.NoError(t, err)
	defer release()
	for process := range 2 {
		d := &countingDriver{}
		s := grpc.NewServer()
		csi.RegisterNodeServer(s, d)
		l, err := net.Listen("unix", path)
		check.NoError(t, err)
		go func() { _ = s.Serve(l) }()
		for range 3 {
			caps, err := Do(t.Context(), c, Op{RPC: Probe, Driver: "d"}, c.NodeCaps)
			if err != nil || caps == nil || !caps.StageUnstage {
				t.Fatalf("process %d: %v, %v", process, caps, err)
			}
		}
		if n := d.asked.Load(); n != 1 {
			t.Errorf("process %d was asked %d times", process, n)
		}
		epoch := c.epoch.Load()
		s.Stop()
		check.Eventually(t, "the connection's end is noticed", func() bool { return c.epoch.Load() != epoch })
	}
}

type countingDriver struct {
	csi.UnimplementedNodeServer
	asked atomic.Int32
}

func (d *countingDriver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	d.asked.Add(1)
	stage := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{
		{Type: &csi.NodeServiceCapability_Rpc{Rpc: stage}},
	}}, nil
}
