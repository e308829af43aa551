package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/check"
)

func (r *rig) group(name string, volumes ...string) (*csi.VolumeGroupSnapshot, error) {
	resp, err := csi.NewGroupControllerClient(r.conn).CreateVolumeGroupSnapshot(r.ctx,
		&csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: volumes})
	return resp.GetGroupSnapshot(), err
}

// restored makes volumes of a group's snapshots, and returns where they are staged, by the snapshots' volumes.
func (r *rig) restored(g *csi.VolumeGroupSnapshot, c *csi.VolumeCapability) map[string]string {
	r.t.Helper()
	at := map[string]string{}
	for _, snap := range g.GetSnapshots() {
		req := createRequest("of "+snap.GetSnapshotId(), 0, c)
		req.VolumeContentSource = fromSnapshot(snap.GetSnapshotId())
		resp, err := r.CreateVolume(r.ctx, req)
		check.NoError(r.t, err)
		at[snap.GetSourceVolumeId()] = r.stage(resp.GetVolume().GetVolumeId(), c)
	}
	return at
}

// TestGroupSnapshotIsOfOneMoment takes group snapshots while a program writes a number to one volume and then to
// another. In every copy the second number is that of the first, or the one before. Snapshots that are taken one
// after the other do not have that.
func TestGroupSnapshotIsOfOneMoment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := mount(writer, "ext4")
	a, b := r.create("a", 32*mib, c), r.create("b", 32*mib, c)
	order := []string{r.stage(a, c), r.stage(b, c)}
	number := func(dir string) int {
		t.Helper()
		n, err := strconv.Atoi(readFile(t, filepath.Join(dir, "n")))
		check.NoError(t, err)
		return n
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for i := 0; ctx.Err() == nil; i++ {
			for _, dir := range order {
				tmp := filepath.Join(dir, "tmp")
				err := os.WriteFile(tmp, []byte(strconv.Itoa(i)), 0o600)
				if err == nil {
					err = os.Rename(tmp, filepath.Join(dir, "n"))
				}
				if err != nil {
					done <- err
					return
				}
			}
		}
		done <- nil
	}()
	check.Eventually(t, "the writer writes",
		func() bool { _, err := os.Stat(filepath.Join(order[1], "n")); return err == nil })
	var groups []*csi.VolumeGroupSnapshot
	for i := range 5 {
		g, err := r.group("g"+strconv.Itoa(i), b, a)
		check.NoError(t, err)
		groups = append(groups, g)
	}
	stop()
	check.NoError(t, <-done)
	r.unstage(a)
	r.unstage(b)
	for _, g := range groups {
		at := r.restored(g, c)
		first, second := at[filepath.Base(order[0])], at[filepath.Base(order[1])]
		if d := number(first) - number(second); d < 0 || d > 1 {
			t.Errorf("%s: the first volume has %d, the second %d", g.GetGroupSnapshotId(), number(first), number(second))
		}
		for _, dir := range at {
			r.unstage(filepath.Base(dir))
		}
	}
	r.checkNothingLeft()
}

func TestGroupSnapshots(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	groups := csi.NewGroupControllerClient(r.conn)
	c := mount(writer, "ext4")
	a, b := r.create("a", 32*mib, c), r.create("b", 32*mib, c)
	g, err := r.group("g", a, b)
	check.NoError(t, err)
	if again, err := r.group("g", b, a); err != nil || again.GetGroupSnapshotId() != g.GetGroupSnapshotId() ||
		!again.GetCreationTime().AsTime().Equal(g.GetCreationTime().AsTime()) {
		t.Errorf("repeated: %v, %v", again, err)
	}
	_, err = r.group("g", a)
	expectCode(t, err, codes.AlreadyExists, "other volumes")
	_, err = r.group("none")
	expectCode(t, err, codes.InvalidArgument, "source_volume_ids")
	_, err = r.group("missing", a, "vol-x")
	expectCode(t, err, codes.NotFound, "vol-x")
	var members []string
	for _, s := range g.GetSnapshots() {
		members = append(members, s.GetSnapshotId())
		if s.GetGroupSnapshotId() != g.GetGroupSnapshotId() || !s.GetReadyToUse() {
			t.Errorf("a member is %v", s)
		}
	}
	_, err = r.DeleteSnapshot(r.ctx, &csi.DeleteSnapshotRequest{SnapshotId: members[0]})
	expectCode(t, err, codes.InvalidArgument, g.GetGroupSnapshotId())
	_, err = groups.GetVolumeGroupSnapshot(r.ctx,
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: members[:1]})
	expectCode(t, err, codes.InvalidArgument, "snapshot_ids")
	del := &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId(), SnapshotIds: []string{"snap-x"}}
	_, err = groups.DeleteVolumeGroupSnapshot(r.ctx, del)
	expectCode(t, err, codes.InvalidArgument, "snap-x")
	del.SnapshotIds = members
	for range 2 {
		_, err = groups.DeleteVolumeGroupSnapshot(r.ctx, del)
		check.NoError(t, err)
	}
	_, err = groups.GetVolumeGroupSnapshot(r.ctx,
		&csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: g.GetGroupSnapshotId()})
	expectCode(t, err, codes.NotFound)

	device := block(writer)
	d := r.create("d", 8*mib, device)
	r.stage(d, device)
	r.publish(d, "d", device, false)
	_, err = r.group("with a device", a, d)
	expectCode(t, err, codes.FailedPrecondition, d, "block device")
	r.unpublish(d, filepath.Join(r.dir, "pub", "d"))
	r.unstage(d)
	left, err := r.ListSnapshots(r.ctx, &csi.ListSnapshotsRequest{})
	if err != nil || len(left.GetEntries()) > 0 {
		t.Errorf("snapshots are left: %v, %v", left, err)
	}
	r.checkNothingLeft()
}

// TestGroupSnapshotIsWholeOrNothing kills the driver in the middle of a group snapshot.
func TestGroupSnapshotIsWholeOrNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.needSlowCopies()
	c := mount(writer, "ext4")
	a, b := r.create("a", 256*mib, c), r.create("b", 256*mib, c)
	stages := []string{r.stage(a, c), r.stage(b, c)}
	for _, dir := range stages {
		writeFile(t, filepath.Join(dir, "big"), bytes.Repeat(pattern(1, mib), 100)) // makes the copy slow
	}
	for try := range 4 {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.group("g"+strconv.Itoa(try), a, b)
		}()
		check.Eventually(t, "the copy begins", r.copying)
		r.kill()
		<-ended
		r.start()
		for _, dir := range stages {
			if r.isFrozen(dir) {
				t.Fatalf("%s is frozen", dir)
			}
		}
		left, err := r.ListSnapshots(r.ctx, &csi.ListSnapshotsRequest{})
		if err != nil || len(left.GetEntries())%2 != 0 {
			t.Errorf("snapshots after a kill: %v, %v", left, err)
		}
	}
	g, err := r.group("g0", a, b)
	if err != nil || len(g.GetSnapshots()) != 2 {
		t.Errorf("repeated: %v, %v", g, err)
	}
	r.unstage(a)
	r.unstage(b)
	r.checkNothingLeft()
}
