package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Tests with many calls use the API, because each command would start a process.

// spec is a volume that the faulty driver knows under the same id.
func spec(id, access string) *hostv1.VolumeSpec {
	return &hostv1.VolumeSpec{
		Id: id, Type: "csi", PluginId: "faulty", ExternalId: id,
		Capabilities: []*hostv1.VolumeCapability{{AccessMode: access, AttachmentMode: "file-system"}},
	}
}

// register makes the volume known to the driver and the host.
func register(ctx context.Context, c *api.Client, d *faultydriver.Driver, id, access string) error {
	d.AddVolume(id)
	_, err := c.Volumes.RegisterVolume(ctx, &hostv1.RegisterVolumeRequest{Spec: spec(id, access)})
	return err
}

// start starts a workload with volumes.
func start(ctx context.Context, c *api.Client, id string, volumes ...string) error {
	w := &hostv1.WorkloadSpec{Id: id}
	for _, v := range volumes {
		w.Volumes = append(w.Volumes, &hostv1.VolumeRequest{Name: v, Source: v, Destination: "/mnt/" + v})
	}
	stream, err := c.Workloads.StartWorkload(ctx, &hostv1.StartWorkloadRequest{Spec: w})
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
	}
	return stream.Err()
}

func stop(ctx context.Context, c *api.Client, id string) error {
	stream, err := c.Workloads.StopWorkload(ctx, &hostv1.StopWorkloadRequest{Id: id})
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
	}
	return stream.Err()
}

// startAndStop starts and stops a workload, which must work after every fault.
func startAndStop(ctx context.Context, c *api.Client, id string, volumes ...string) error {
	if err := start(ctx, c, id, volumes...); err != nil {
		return fmt.Errorf("a start afterwards: %w", err)
	}
	if err := stop(ctx, c, id); err != nil {
		return fmt.Errorf("a stop afterwards: %w", err)
	}
	return nil
}

// cases runs functions in parallel, because they mostly wait, and fails the test for each that returns an
// error.
type cases struct {
	t  *testing.T
	wg sync.WaitGroup
}

func (c *cases) run(name string, f func() error) {
	c.wg.Go(func() {
		if err := f(); err != nil {
			c.t.Errorf("%s: %v", name, err)
		}
	})
}

// callsOn counts the calls of an RPC for a volume.
func callsOn(d *faultydriver.Driver, rpc, volume string) (n int) {
	for _, c := range d.Calls(rpc) {
		if r, ok := c.Request.(interface{ GetVolumeId() string }); ok && r.GetVolumeId() == volume {
			n++
		}
	}
	return n
}

// arrived waits until n calls of an RPC for a volume have been made.
func arrived(d *faultydriver.Driver, rpc, volume string, n int) error {
	for deadline := time.Now().Add(testhost.Wait); callsOn(d, rpc, volume) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("no %d calls of %s for %s in %s", n, rpc, volume, testhost.Wait)
		}
	}
	return nil
}

// lawful fails the test if the driver got calls that a host must never make.
func lawful(t *testing.T, d *faultydriver.Driver) {
	t.Helper()
	if v := d.Violations(); len(v) > 0 {
		t.Errorf("the driver saw what it must never see:\n%s", strings.Join(v, "\n"))
	}
}
