package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testhost"
)

// newHost prepares a host with csi-bridge and csi-local, which end with the agent. Its log level is the
// default.
func newHost(b *testing.B) *testhost.Host {
	b.Helper()
	return newHostWith(b, testhost.LocalDriver(b))
}

// newHostWith is newHost with additional configuration and plugins.
func newHostWith(b *testing.B, more string, plugins ...string) *testhost.Host {
	b.Helper()
	h := testhost.New(b, "leave_plugins_on_stop = false\n"+more, plugins...)
	config, err := os.ReadFile(h.Path("agent.hcl"))
	if err != nil {
		b.Fatal(err)
	}
	h.Write("agent.hcl", regexp.MustCompile(`log_level.*\n`).ReplaceAllString(string(config), ""))
	return h
}

// caller is a client of a host's API.
type caller struct {
	b *testing.B
	*api.Client
}

// volumeSpec returns the spec of a small volume for csi-local.
func volumeSpec(id string) *hostv1.VolumeSpec {
	return &hostv1.VolumeSpec{
		Id: id, Type: "csi", PluginId: "local", CapacityMin: 64 << 20, CapacityMax: 64 << 20,
		Capabilities: []*hostv1.VolumeCapability{{AccessMode: "single-node-writer", AttachmentMode: "file-system"}},
	}
}

// create makes a volume and returns its id at the driver.
func (c caller) create(ctx context.Context, id string) string {
	c.b.Helper()
	res, err := c.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: volumeSpec(id)})
	if err != nil {
		c.b.Fatalf("create volume %s: %v", id, err)
	}
	return res.GetVolume().GetSpec().GetExternalId()
}

// start starts a workload with the volume's name, and returns the time from the call to the answer that it
// runs.
func (c caller) start(ctx context.Context, volume string) (time.Duration, error) {
	at := time.Now()
	stream, err := c.Workloads.StartWorkload(ctx,
		&hostv1.StartWorkloadRequest{Spec: &hostv1.WorkloadSpec{
			Id: volume, Volumes: []*hostv1.VolumeRequest{{Name: "data", Source: volume, Destination: "/data"}},
		}})
	if err != nil {
		return 0, err
	}
	state := ""
	for stream.Receive() {
		if w := stream.Msg().GetWorkload(); w != nil {
			state = w.GetState()
		}
	}
	took := time.Since(at)
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		return 0, fmt.Errorf("start %s: %w", volume, err)
	}
	if state != "running" {
		return 0, fmt.Errorf("start %s: it is %q", volume, state)
	}
	return took, nil
}

// stop stops that workload, and returns the time until nothing was left.
func (c caller) stop(ctx context.Context, volume string) (time.Duration, error) {
	at := time.Now()
	stream, err := c.Workloads.StopWorkload(ctx, &hostv1.StopWorkloadRequest{Id: volume})
	if err != nil {
		return 0, err
	}
	for stream.Receive() {
	}
	took := time.Since(at)
	if err := errors.Join(stream.Err(), stream.Close()); err != nil {
		return 0, fmt.Errorf("stop %s: %w", volume, err)
	}
	return took, nil
}
