package bench

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/usage"
)

// rest is how long a host is left alone before its memory is measured.
const rest = 35 * time.Second

// measureMemory creates volumes, which makes calls to the driver through csi-bridge for each of them, lists
// them, and starts and stops workloads with some of them.
func measureMemory(b *testing.B, r *table.Section) {
	const volumes, used = 10_000, 200
	ctx := b.Context()
	h := newHost(b)
	h.Start()
	c := caller{b, h.Client()}
	id := func(i int) string { return fmt.Sprintf("volume-%05d", i) }
	parallel(b, volumes, 16, func(i int) error {
		_, err := c.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: volumeSpec(id(i))})
		return err
	})
	for i := range measure.Turns(used, 20*time.Second) {
		took(b)(c.start(ctx, id(i)))
		took(b)(c.stop(ctx, id(i)))
	}
	list, err := c.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{})
	if err != nil || len(list.GetVolumes()) != volumes {
		b.Fatalf("%d volumes are listed: %v", len(list.GetVolumes()), err)
	}
	bridge := processOf(b, h, "csi-bridge")
	r.Add(table.Row{
		What: "the host at its peak, while it lists all of them", Value: usage.Memory(b, h.PID(), "VmHWM"),
		Unit: "MiB",
	})
	time.Sleep(rest)
	for _, p := range []struct {
		name   string
		pid    int
		target float64
	}{{"the host", h.PID(), 112}, {"csi-bridge", bridge, 24}} {
		r.Add(
			table.Row{
				What: "resident memory of " + p.name + ", half a minute later", Value: usage.Memory(b, p.pid, "VmRSS"),
				Unit: "MiB", AtMost: p.target,
			},
			table.Row{What: "of that not mapped from files", Value: usage.Memory(b, p.pid, "RssAnon"), Unit: "MiB"},
		)
	}
}

// processOf returns the host's process that runs a program with that name.
func processOf(b *testing.B, h *testhost.Host, program string) int {
	b.Helper()
	for _, pid := range h.Processes() {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && strings.HasSuffix(exe, "/"+program) {
			return pid
		}
	}
	b.Fatalf("no process runs %s", program)
	return 0
}
