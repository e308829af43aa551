package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/test/lib/check"
)

// claimOf returns a workload's claim and its volume, as the leader has them.
func (h *host) claimOf(t *testing.T, id, volume string) (claim.Claim, claim.Volume) {
	t.Helper()
	v, err := h.ledger.volume(volume)
	check.NoError(t, err)
	for _, c := range h.ledger.claims() {
		if c.Workload == ref(id) && c.Volume == v.VolumeRef {
			return c, v
		}
	}
	return claim.Claim{
		Volume: v.VolumeRef, Workload: ref(id), Node: here, Mode: claim.Write,
		AccessMode: v.Capabilities[0].AccessMode, AttachmentMode: v.Capabilities[0].AttachmentMode,
	}, v
}

func TestDetachStopsAWorkload(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	c, v := h.claimOf(t, "w", "a")
	did, err := h.Detach(t.Context(), c, v)
	if err != nil || did != `stopped workload "w"` {
		t.Errorf("%q, %v", did, err)
	}
	if w := h.ended(t, "w"); !strings.Contains(w.Message, `volume "a" was detached`) {
		t.Errorf("it says %q", w.Message)
	}
	h.clean(t)
	if _, err := h.Detach(t.Context(), c, v); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestDetachRefusesWhileAProcessRuns(t *testing.T) {
	h, p := newHost(t), runScript(t, true, idle)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	check.NoError(t, h.Running(ref("w"), p.pid(), process.Ref{}))
	c, v := h.claimOf(t, "w", "a")
	if _, err := h.Detach(t.Context(), c, v); err == nil ||
		!strings.Contains(err.Error(), "stop it first: pannier workload stop w") {
		t.Errorf("got %v", err)
	}
	if w, err := h.Get(ref("w")); err != nil || w.State != Running || !p.alive() {
		t.Errorf("it is %s, %v", w.State, err)
	}
	h.stop(t, "w")
}

// Mounts for a workload that no record knows any more are found by their paths.
func TestDetachOfAnUnknownWorkload(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("known", "a"))
	h.start(t, spec("w", "a"))
	h.start(t, spec("w2", "a"))
	h.shut(t)
	h = prepareHost(t, h.dir)
	check.NoError(t, h.journal.Update(func(tx *journal.Tx) error { return records.Delete(tx, key(ref("w"))) }))
	h.open(t)
	c, v := h.claimOf(t, "w", "a")
	if c.State != claim.Unpublishing {
		t.Errorf("a workload that the journal does not know is %s", c.State)
	}
	h.on("unpublish:after", 1, fail(codes.Internal))
	if _, err := h.Detach(t.Context(), c, v); err == nil {
		t.Error("a failed unpublish is no detach")
	}
	did, err := h.Detach(t.Context(), c, v)
	if err != nil || did != `unmounted what was left of it on node "here"` {
		t.Errorf("%q, %v", did, err)
	}
	if at(h.Layout.Target(full, ref("w"), volumeRef("a"), usage(), "a")) != nil {
		t.Error("it is still mounted")
	}
	for _, id := range []string{"known", "w2"} {
		if w := h.running(t, id); at(w.Mounts[0].HostPath) == nil {
			t.Errorf("%s has lost its mount", id)
		}
	}
	if h.count("unstage a") > 0 {
		t.Error("the volume was unstaged below the others")
	}
}

// A mount at an unexpected path keeps the claim too.
func TestDetachOfAnUnknownWorkloadLeavesNoMount(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	path := remade(t, filepath.Dir(h.Layout.Target(full, ref("w"), volumeRef("a"), usage(), "a")))
	check.NoError(t, unix.Mount(foreign, path, "tmpfs", 0, ""))
	c, v := h.claimOf(t, "w", "a")
	if err := h.DetachUnknown(t.Context(), c, v); err == nil ||
		!strings.Contains(err.Error(), "mounts still: [tmpfs of foreign") {
		t.Errorf("got %v", err)
	}
	check.NoError(t, unix.Unmount(path, 0))
	check.NoError(t, h.DetachUnknown(t.Context(), c, v))
}

// The last user's staging mount is removed too, in a data directory with an odd name.
func TestDetachOfTheLastUnknownWorkload(t *testing.T) {
	dir := filepath.Join(newDir(t), "[o]dd*")
	check.NoError(t, os.MkdirAll(filepath.Join(dir, "volumes"), 0o700))
	h := prepareHost(t, dir)
	h.open(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	c, v := h.claimOf(t, "w", "a")
	h.shut(t)
	check.NoError(t, os.RemoveAll(filepath.Join(dir, "journal"))) // the journal is lost
	h = prepareHost(t, dir)
	h.open(t)
	if _, err := h.Detach(t.Context(), c, v); err != nil {
		t.Error(err)
	}
	inOrder(t, h.happened(), "end w", "unpublish a", "unstage a")
	// what the releaser does then
	check.NoError(t, cluster.NodeDetached(t.Context(), h.ledger,
		[]claim.Claim{{Workload: ref("w"), Volume: volumeRef("a"), Node: here}}))
	h.clean(t)
}

// The claims are freed by the leader: the workload has ended when they are.
func TestTheLeaderFreesTheClaims(t *testing.T) {
	h := newHost(t)
	h.ledger.keep = true
	h.volume(t, full, "a")
	if h.Owns(ref("w")) {
		t.Error("a workload that was never here is owned")
	}
	h.start(t, spec("w", "a"))
	waits := newGate()
	close(waits.open)
	h.on("freed:before", 1, waits.hold)
	stopped := make(chan error, 1)
	go func() {
		_, err := h.Stop(context.Background(), ref("w"), "the test stops it", nil)
		stopped <- err
	}()
	waits.await(t)
	if w, err := h.Get(ref("w")); err != nil || w.State != Stopping || len(w.Mounts) > 0 || !h.Owns(ref("w")) {
		t.Errorf("before the claims are freed: %+v, %v", w, err)
	}
	if c := h.ledger.claims(); len(c) != 1 || c[0].State != claim.NodeDetached {
		t.Errorf("claims: %+v", c)
	}
	h = h.next(t) // and the next process of the host waits on
	h.ledger.keep = true
	h.open(t)
	h.eventually(t, "w", "stopping", func(w Workload) bool { return w.State == Stopping })
	check.NoError(t, h.ledger.free(ref("w")))
	h.ended(t, "w")
	if err := <-stopped; !errors.Is(err, ErrClosed) {
		t.Errorf("the stop in the process before says %v", err)
	}
	if h.Owns(ref("w")) {
		t.Error("a workload that has ended is owned")
	}
	h.clean(t)
}

func TestPlacementsAndWorkloadsUsing(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.volume(t, plain, "b")
	held := newGate()
	h.on("publish:before b", 1, held.hold)
	go func() { _, _ = h.Start(context.Background(), spec("w", "a", "b"), Options{}) }()
	held.await(t)
	want := []Placement{{
		Workload: ref("w"), Driver: full, Usage: usage(),
		Place: mounts.Place{
			Target:  h.Layout.Target(full, ref("w"), volumeRef("a"), usage(), "a"),
			Staging: h.Layout.Staging(full, volumeRef("a"), usage()),
		},
	}}
	h.eventually(t, "w", "publishing a", func(w Workload) bool { return len(w.Mounts) == 1 })
	if got := h.Placements(volumeRef("a")); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := h.Placements(volumeRef("b")); len(got) > 0 {
		t.Errorf("what is not published is placed: %+v", got)
	}
	for driver, want := range map[string][]string{
		full: {`volume "a" of workload "w"`}, plain: {`volume "b" of workload "w"`}, staged: nil,
	} {
		if got := h.WorkloadsUsing(driver); !reflect.DeepEqual(got, want) {
			t.Errorf("through %s: %q, want %q", driver, got, want)
		}
	}
	close(held.open)
	h.running(t, "w")
	if got := h.Placements(volumeRef("b")); len(got) != 1 || got[0].Staging != "" {
		t.Errorf("of a driver that does not stage: %+v", got)
	}
	h.stop(t, "w")
	if got := append(h.WorkloadsUsing(full), h.WorkloadsUsing(plain)...); len(got) > 0 {
		t.Errorf("after the stop: %q", got)
	}
}

// Which drivers are in use is decided before the workloads are restored: from the journal and the mount table.
func TestInUseBeforeTheWorkloadsAreRestored(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	h = h.next(t)
	path := h.Layout.Target(plain, ref("old"), volumeRef("gone"), usage(), "r")
	check.NoError(t, os.MkdirAll(path, 0o700))
	check.NoError(t, unix.Mount("leftover", path, "tmpfs", 0, ""))
	for driver, want := range map[string][]string{
		full: {`volume "a" of workload "w"`}, plain: {"the mount at " + path}, staged: nil,
	} {
		if got := h.WorkloadsUsing(driver); !reflect.DeepEqual(got, want) {
			t.Errorf("through %s: %q, want %q", driver, got, want)
		}
	}
	h.open(t)
	h.running(t, "w")
	h.stop(t, "w")
	h.clean(t)
}

func TestLeftovers(t *testing.T) {
	h := newHost(t)
	for _, id := range []string{"known", "claimed", "gone", "busy"} {
		h.volume(t, full, id)
	}
	h.start(t, spec("w", "known"))
	h.shut(t)
	h = prepareHost(t, h.dir)
	mount := func(path string) string {
		t.Helper()
		check.NoError(t, os.MkdirAll(path, 0o700))
		check.NoError(t, unix.Mount("leftover", path, "tmpfs", 0, ""))
		return path
	}
	below := mount(filepath.Join(h.Layout.Staging(full, volumeRef("known"), usage()), "deeper"))
	other := mount(h.Layout.Target(full, ref("old"), volumeRef("gone"), usage(), "r"))
	mount(other) // on top of it
	claimed := mount(h.Layout.Staging(full, volumeRef("claimed"), usage()))
	busy := mount(h.Layout.Staging(full, volumeRef("busy"), usage()))
	notOurs := mount(filepath.Join(h.Layout.Driver(full), "its-own", "a", "b", "c", "d", "e"))
	hand, err := os.Create(filepath.Join(busy, "file"))
	check.NoError(t, err)
	defer hand.Close()
	old := claim.Run{Ref: ref("old"), Node: here}
	h.volume(t, full, "claimed")
	_, err = cluster.Apply(t.Context(), h.ledger.node, command.Start(old, []claim.Claim{{
		Volume: volumeRef("claimed"), Workload: ref("old"), Node: here, Mode: claim.Write,
		AccessMode: claim.SingleNodeMultiWriter, AttachmentMode: claim.FileSystem,
	}}))
	check.NoError(t, err)
	_, err = cluster.Apply(t.Context(), h.ledger.node, command.End(old))
	check.NoError(t, err)

	left, err := h.Open(t.Context())
	if err != nil || len(left) != 1 || !strings.Contains(left[0], busy) || !strings.Contains(left[0], "busy") {
		t.Errorf("left: %q, %v", left, err)
	}
	if at(other) != nil {
		t.Error("what nothing explains is still mounted")
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("its directory is left")
	}
	for _, path := range []string{below, claimed, busy, notOurs} {
		if at(path) == nil {
			t.Errorf("%s was unmounted", path)
		}
	}
	told := 0
	for _, e := range h.bus.Recent(100) {
		if e.Type == "unmounted" && e.Subject == other {
			told++
		}
	}
	if told != 1 {
		t.Errorf("it was told %d times", told)
	}
	if w := h.running(t, "w"); at(w.Mounts[0].HostPath) == nil {
		t.Error("the workload has lost its mount")
	}
}

func TestOpenRefusesALinkedDataDirectory(t *testing.T) {
	dir := newDir(t)
	link := filepath.Join(dir, "link")
	check.NoError(t, os.Mkdir(filepath.Join(dir, "real"), 0o700))
	check.NoError(t, os.Mkdir(filepath.Join(dir, "real", "csi"), 0o700))
	check.NoError(t, os.Symlink(filepath.Join(dir, "real"), link))
	h := prepareHost(t, link)
	if _, err := h.Open(t.Context()); err == nil || !strings.Contains(err.Error(), "without links") {
		t.Errorf("got %v", err)
	}
}

// The volume of a driver without VOLUME_MOUNT_GROUP is given to the group by the host, for those that may write.
func TestMountGroupByTheHost(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	with := func(id, group string, readOnly bool) Spec {
		s := spec(id, "a")
		s.Volumes[0].MountOptions.Group, s.Volumes[0].ReadOnly = group, readOnly
		return s
	}
	group := func(w Workload) uint32 {
		var st unix.Stat_t
		check.NoError(t, unix.Stat(w.Mounts[0].HostPath, &st))
		return st.Gid
	}
	if got := group(h.start(t, with("reader", "4242", true))); got != 0 {
		t.Errorf("a reader's volume has group %d", got)
	}
	h.stop(t, "reader")
	if got := group(h.start(t, with("writer", "4242", false))); got != 4242 {
		t.Errorf("a writer's volume has group %d", got)
	}
	h.stop(t, "writer")
	if _, err := h.Start(t.Context(), with("staff", "staff", false), Options{}); !errors.Is(err, ErrFailed) ||
		!strings.Contains(err.Error(), `volume_mount_group = "staff"`) {
		t.Errorf("a group that is no number: %v", err)
	}
	h.clean(t)
}
