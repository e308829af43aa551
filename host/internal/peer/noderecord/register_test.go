package noderecord

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/workload/devices"
	"github.com/pannier/pannier/sdk/storage"
)

// changing is a node whose driver has another version each time that it is looked at, and the ledger that it reports
// to.
type changing struct {
	cluster.Ledger
	version atomic.Int64
	mu      sync.Mutex
	last    claim.Node
}

func (c *changing) List() []drivers.Driver {
	version := fmt.Sprint(c.version.Add(1))
	runtime.Gosched()
	return []drivers.Driver{{Spec: drivers.Spec{ID: "d"}, Fingerprint: storage.Fingerprint{Version: version}}}
}

func (c *changing) Changed() <-chan struct{} { return nil }

func (c *changing) Apply(_ context.Context, put command.Command) (any, error) {
	runtime.Gosched()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = put.(*command.PutNode).Node
	return command.PutNodeResult{}, nil
}

type noDevices struct{}

func (noDevices) List() []devices.Group    { return nil }
func (noDevices) Changed() <-chan struct{} { return nil }

// TestTheNewestRecordStays: a node that reports from two goroutines does not leave an older report in the ledger.
func TestTheNewestRecordStays(t *testing.T) {
	c := &changing{}
	r := &Registrar{Name: "n", Cluster: c, Drivers: c, Devices: noDevices{}, Log: hclog.NewNullLogger()}
	for range 500 {
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				if err := r.Put(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		both.Wait()
		if got, want := c.last.Drivers["d"].Version, fmt.Sprint(c.version.Load()); got != want {
			t.Fatalf("the ledger has version %s, the driver is %s", got, want)
		}
	}
}
