package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// A driver answers with success and does something else. Each lie is named, in the error of the start or in an event,
// and harmless: the workload does not run on something else than its volume, nothing stays mounted, and the claim is
// freed only then.
func TestDriverLies(t *testing.T) {
	t.Parallel()
	published := func(change func(r *csi.NodePublishVolumeRequest)) faultydriver.Fault {
		return faultydriver.Changed(func(req proto.Message) { change(req.(*csi.NodePublishVolumeRequest)) })
	}
	for name, lie := range map[string]struct {
		rpc      string
		fault    faultydriver.Fault
		readOnly bool
		start    string // what the error of the start says; empty: it works
		event    string // what an event says after the stop
	}{
		"stage without a mount": {
			rpc: "NodeStageVolume", fault: faultydriver.Lie(&csi.NodeStageVolumeResponse{}), start: "shows a directory of this host's own disk",
		},
		"stage at a wrong path": {
			rpc: "NodeStageVolume", fault: faultydriver.Changed(func(req proto.Message) {
				r := req.(*csi.NodeStageVolumeRequest)
				r.StagingTargetPath += "-too"
				must(t, os.Mkdir(r.GetStagingTargetPath(), 0o700))
			}), start: "it has mounted at",
		},
		"publish without a mount": {
			rpc: "NodePublishVolume", fault: faultydriver.Lie(&csi.NodePublishVolumeResponse{}), start: "nothing is mounted at",
		},
		"publish at a wrong path": {
			rpc: "NodePublishVolume", fault: published(func(r *csi.NodePublishVolumeRequest) { r.TargetPath += "-too" }),
			start: "it has mounted at",
		},
		"writable in place of read-only": {
			rpc: "NodePublishVolume", fault: published(func(r *csi.NodePublishVolumeRequest) { r.Readonly = false }),
			readOnly: true, // the host makes it so
		},
		"unpublish of what stays": {
			rpc: "NodeUnpublishVolume", fault: faultydriver.Lie(&csi.NodeUnpublishVolumeResponse{}), event: "it was mounted still",
		},
		"unstage of what stays": {
			rpc: "NodeUnstageVolume", fault: faultydriver.Lie(&csi.NodeUnstageVolumeResponse{}), event: "it was mounted still",
		},
		"attach without a publish context": {
			rpc: "ControllerPublishVolume", fault: faultydriver.Reply(&csi.ControllerPublishVolumeResponse{}),
			start: "the publish context names no device",
		},
		"attach to another node": {
			rpc: "ControllerPublishVolume", fault: faultydriver.Changed(func(req proto.Message) {
				req.(*csi.ControllerPublishVolumeRequest).NodeId = "another"
			}), start: `the volume is attached to ["another"], not here`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, d, _ := faulty(t)
			d.Reconfigure(func(c *faultydriver.Config) { c.Strict = true })
			d.Restart()
			c := h.Client()
			must(t, register(t.Context(), c, d, "v", "single-node-writer"))
			d.Script(lie.rpc, lie.fault)
			w := &hostv1.WorkloadSpec{Id: "w", Volumes: []*hostv1.VolumeRequest{
				{Name: "v", Source: "v", Destination: "/mnt/v", ReadOnly: lie.readOnly},
			}}
			stream, err := c.Workloads.StartWorkload(t.Context(), &hostv1.StartWorkloadRequest{Spec: w})
			must(t, err)
			for stream.Receive() {
			}
			switch err := stream.Err(); {
			case lie.start == "":
				must(t, err)
				for _, m := range h.VolumeMounts() {
					var at unix.Statfs_t
					must(t, unix.Statfs(m, &at))
					if lie.readOnly && strings.Contains(m, "/per-workload/") && at.Flags&unix.ST_RDONLY == 0 {
						t.Errorf("%s is not read-only", m)
					}
				}
				must(t, stop(t.Context(), c, "w"))
			case err == nil || !strings.Contains(err.Error(), lie.start):
				t.Errorf("the start does not say %q: %v", lie.start, err)
			}
			h.NothingInUse()
			if events := h.Run("events", "-recent", "1000"); !strings.Contains(events, lie.event) {
				t.Errorf("no event says %q:\n%s", lie.event, events)
			}
			must(t, startAndStop(t.Context(), c, "w", "v"))
			h.NothingInUse()
		})
	}
}

// A driver goes on with a stage that nobody waits for any more, answers the unstage meanwhile, and then mounts. The
// claim is kept, and explains why, until that was unmounted.
func TestStageThatFinishesLate(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t, `settle_time = "15s"`, `timeout {`, `  stage = "3s"`, `}`)
	c := h.Client()
	must(t, register(t.Context(), c, d, "v", "single-node-writer"))
	finish, mounted := make(chan struct{}), make(chan struct{})
	d.Script("NodeStageVolume", faultydriver.Watched(func() { <-finish }, func() { close(mounted) }))
	if err := start(t.Context(), c, "w", "v"); err == nil || !strings.Contains(err.Error(), "the outcome is unknown") {
		t.Errorf("the start returned %v", err)
	}
	h.Eventually("the driver has answered the unstage, and the claim is kept", func() error {
		s, err := h.Status()
		if err != nil {
			return err
		}
		said := h.Run("workload", "status", "w")
		if s.GetClaims() != 1 || len(d.Calls("NodeUnstageVolume")) == 0 || !strings.Contains(said, "never answered a call to stage") {
			return fmt.Errorf("%d claims, and: %s", s.GetClaims(), said)
		}
		return nil
	})
	close(finish)
	<-mounted
	if s, err := h.Status(); err != nil || s.GetClaims() != 1 {
		t.Errorf("%d claims while it is mounted (%v)", s.GetClaims(), err)
	}
	h.NothingInUse()
	must(t, startAndStop(t.Context(), c, "w", "v"))
	h.NothingInUse()
}
