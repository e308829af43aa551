package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/drivers/csi-local/internal/filesystem"
	"github.com/pannier/pannier/test/lib/check"
)

// step is one call in a volume's life. It can be repeated.
type step struct {
	name string
	call func(context.Context) error
}

// TestKillAtAnyPoint kills the driver at random moments of every call, restarts it and repeats the call. The end
// state must be as if nothing had happened.
func TestKillAtAnyPoint(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		cap  *csi.VolumeCapability
		size int64
	}{
		{"ext4", mount(writer, "ext4"), 32 * mib},
		{"xfs", mount(writer, "xfs"), 300 * mib},
		{"block", block(writer), 32 * mib},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if fsType := tc.cap.GetMount().GetFsType(); fsType != "" && filesystem.Supported(fsType) != nil {
				t.Skipf("not covered: %v", filesystem.Supported(fsType))
			}
			r := newRig(t)
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			took := make(map[string]time.Duration)
			for round := range 3 {
				life := newLife(r, fmt.Sprint("v", round), tc.cap, tc.size)
				for _, s := range life.steps() {
					if round == 0 { // undisturbed, to know how long it takes
						start := time.Now()
						check.NoError(t, s.call(t.Context()))
						took[s.name] = time.Since(start)
						continue
					}
					// Sometimes twice in a row, during the repeated call.
					for range 1 + rng.IntN(2) {
						r.interrupt(s, time.Duration(rng.Int64N(int64(took[s.name])*5/4)))
					}
					r.repeat(s)
				}
				r.checkNothingLeft()
			}
		})
	}
}

// interrupt makes the call, kills the driver after a while and restarts it.
func (r *rig) interrupt(s step, after time.Duration) {
	r.t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.call(r.ctx) }()
	time.Sleep(after)
	r.kill()
	<-done
	r.start()
}

// repeat makes the call until the answer is final; Aborted asks for a repetition.
func (r *rig) repeat(s step) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := s.call(r.ctx)
		if code := status.Code(err); code == codes.Aborted && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			r.t.Fatalf("%s, repeated after a kill: %v", s.name, err)
		}
		return
	}
}

// life returns the steps of one volume from its creation to its deletion.
type life struct {
	*rig
	name   string
	cap    *csi.VolumeCapability
	size   int64
	id     string
	snap   string
	copied string
	data   []byte
}

func newLife(r *rig, name string, c *csi.VolumeCapability, size int64) *life {
	return &life{rig: r, name: name, cap: c, size: size, data: pattern(len(name), 2*mib)}
}

func (l *life) steps() []step {
	steps := []step{
		{"create", l.createVolume(&l.id, l.name, nil)},
		{"stage", l.stageAt(&l.id)},
		{"publish", l.publishAt(&l.id, "a")},
		{"write", func(context.Context) error { l.write(); return nil }},
		{"unpublish", l.unpublishAt(&l.id, "a")},
		{"snapshot", func(ctx context.Context) error {
			resp, err := l.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "s-" + l.name, SourceVolumeId: l.id},
				grpc.WaitForReady(true))
			l.snap = resp.GetSnapshot().GetSnapshotId()
			return err
		}},
		{"restore", l.createVolume(&l.copied, "c-"+l.name, &l.snap)},
		{"delete snapshot", func(ctx context.Context) error {
			_, err := l.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: l.snap})
			return err
		}},
		{"expand", func(ctx context.Context) error {
			_, err := l.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
				VolumeId: l.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * l.size},
			})
			return err
		}},
	}
	if l.cap.GetBlock() != nil || filesystem.GrowsMounted(l.cap.GetMount().GetFsType()) {
		steps = append(steps, step{"node expand", func(ctx context.Context) error {
			_, err := l.NodeExpandVolume(ctx,
				&csi.NodeExpandVolumeRequest{VolumeId: l.id, VolumePath: filepath.Join(l.dir, "stage", l.id)})
			return err
		}})
	}
	return append(steps,
		step{"unstage", l.unstageAt(&l.id)},
		step{"stage larger", l.stageAt(&l.id)},
		step{"publish larger", l.publishAt(&l.id, "a")},
		step{"check", func(context.Context) error { l.check("a"); return nil }},
		step{"stage copy", l.stageAt(&l.copied)},
		step{"publish copy", l.publishAt(&l.copied, "b")},
		step{"check copy", func(context.Context) error { l.check("b"); return nil }},
		step{"unpublish copy", l.unpublishAt(&l.copied, "b")},
		step{"unstage copy", l.unstageAt(&l.copied)},
		step{"delete copy", l.deleteVolume(&l.copied)},
		step{"unpublish larger", l.unpublishAt(&l.id, "a")},
		step{"unstage larger", l.unstageAt(&l.id)},
		step{"delete", l.deleteVolume(&l.id)},
	)
}

func (l *life) createVolume(id *string, name string, snap *string) func(context.Context) error {
	return func(ctx context.Context) error {
		req := createRequest(name, l.size, l.cap)
		if snap != nil {
			req.VolumeContentSource = fromSnapshot(*snap)
		}
		resp, err := l.CreateVolume(ctx, req)
		if err == nil {
			*id = resp.GetVolume().GetVolumeId()
		}
		return err
	}
}

func (l *life) stageAt(id *string) func(context.Context) error {
	return func(context.Context) error { return l.tryStage(*id, l.path("stage", *id), l.cap) }
}

func (l *life) publishAt(id *string, target string) func(context.Context) error {
	return func(context.Context) error {
		return l.tryPublish(*id, filepath.Join(l.path("pub"), target), l.cap, false)
	}
}

func (l *life) unpublishAt(id *string, target string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := l.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{
			VolumeId: *id, TargetPath: filepath.Join(l.dir, "pub", target),
		})
		return err
	}
}

func (l *life) unstageAt(id *string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := l.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{
			VolumeId: *id, StagingTargetPath: filepath.Join(l.dir, "stage", *id),
		})
		return err
	}
}

func (l *life) deleteVolume(id *string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := l.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: *id})
		return err
	}
}

// write writes like a workload, while the driver may be dead.
func (l *life) write() {
	target := filepath.Join(l.dir, "pub", "a")
	if l.cap.GetBlock() != nil {
		writeDevice(l.t, target, l.data)
		return
	}
	writeFile(l.t, filepath.Join(target, "f"), l.data)
}

func (l *life) check(target string) {
	path := filepath.Join(l.dir, "pub", target)
	var got string
	if l.cap.GetBlock() != nil {
		got = readDevice(l.t, path, len(l.data))
	} else {
		data, err := os.ReadFile(filepath.Join(path, "f"))
		if err != nil {
			l.t.Errorf("at %s: %v", target, err)
		}
		got = string(data)
	}
	if got != string(l.data) {
		l.t.Errorf("other data at %s", target)
	}
}
