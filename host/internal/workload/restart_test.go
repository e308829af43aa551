package workload

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/test/lib/check"
)

var (
	startKinds = []string{"await", "others", "claim", "attach", "stage", "publish"}
	stopKinds  = []string{"end", "unpublish", "unstage", "detached", "freed"}
)

// outcome is everything that must be the same with and without an interruption.
type outcome struct {
	State  State
	Mounts []MountPoint
	Table  []mounts.Mount
	Claims []claim.Claim
	Users  map[string]users
}

func (h *host) outcome(t *testing.T, id string) outcome {
	t.Helper()
	w, err := h.Get(ref(id))
	check.NoError(t, err)
	table, err := mounts.Below(h.Layout.Dir)
	check.NoError(t, err)
	slices.SortFunc(table, func(a, b mounts.Mount) int { return strings.Compare(a.Path, b.Path) })
	o := outcome{State: w.State, Mounts: w.Mounts, Table: table, Claims: h.ledger.claims(), Users: map[string]users{}}
	for n := range o.Claims {
		o.Claims[n].TakenAt, o.Claims[n].ModifiedAt, o.Claims[n].Index = time.Time{}, time.Time{}, 0
	}
	check.NoError(t, h.journal.View(func(tx *journal.Tx) error {
		put := func(k string, u *users) error {
			delete(*u, "unanswered") // a call that was interrupted stays so
			if mounted, ok := (*u)["mounted"].(map[string]any); ok {
				delete(mounted, "unique") // it is another mount
			}
			o.Users[k] = *u
			return nil
		}
		return errors.Join(attachments.Each(tx, put), stagings.Each(tx, put))
	}))
	return o
}

// The host is closed or killed at each point. The next process reaches the same state as an uninterrupted
// one.
func TestTheHostEndsInTheMiddle(t *testing.T) {
	s := spec("w", "a", "b")
	s.After = refs("gone")
	interruptions := map[string]func(t *testing.T, h *host, c child) *host{
		"killed": func(t *testing.T, h *host, c child) *host {
			h.shut(t)
			c.killed(t)
			return h.restart(t)
		},
		"closed": func(t *testing.T, h *host, c child) *host {
			held := newGate()
			h.on(c.Label, 1, held.hold)
			go func() {
				_, _ = h.Start(context.Background(), s, Options{})
				if c.Stop {
					_, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil)
				}
			}()
			if c.Label == "" {
				h.running(t, "w")
			} else {
				held.await(t)
			}
			return h.restart(t)
		},
	}
	for how, interrupt := range interruptions {
		at := func(t *testing.T, label string, stop bool) {
			h := newHost(t)
			h.volume(t, full, "a")
			h.volume(t, staged, "b")
			// Without an interruption everything happens once, and is undone.
			h.start(t, s)
			want := h.outcome(t, "w")
			h.stop(t, "w")
			h.clean(t)

			h.forget()
			h = interrupt(t, h, child{Dir: h.dir, Spec: s, Label: label, Stop: stop})
			if !stop {
				h.running(t, "w")
				if got := h.outcome(t, "w"); !reflect.DeepEqual(got, want) {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
				h = h.restart(t) // it is restored from what was restored
				h.running(t, "w")
				h.stop(t, "w")
			} else if w := h.ended(t, "w"); w.State != Stopped || w.Message != "the test stops it" {
				t.Errorf("it is %s: %s", w.State, w.Message)
			}
			h.clean(t)
		}
		t.Run(how+" while it runs", func(t *testing.T) { at(t, "", false) })
		for _, when := range []string{":before", ":after"} {
			for _, kind := range startKinds {
				t.Run(how+" at "+kind+when, func(t *testing.T) { at(t, kind+when, false) })
			}
			for _, kind := range stopKinds {
				t.Run(how+" at "+kind+when, func(t *testing.T) { at(t, kind+when, true) })
			}
		}
	}
}

// A host that is killed when a claim is gone does not have the volume unmounted again: another node may have it.
func TestNothingIsUnmountedWithoutAClaim(t *testing.T) {
	for _, driver := range []string{plain, full} {
		t.Run(driver, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, driver, "a")
			h.shut(t)
			child{Dir: h.dir, Spec: spec("w", "a"), Label: "freed:after", Stop: true}.killed(t)
			h = h.restart(t)
			h.ended(t, "w")
			if n := h.count("unpublish a") + h.count("unstage a"); n > 0 {
				t.Errorf("the driver was called without a claim: %v", h.happened())
			}
			h.clean(t)
		})
	}
}

// Intact workloads continue untouched, once.
func TestRestoredOnceAndOnlyOnce(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	s := spec("w", "a")
	s.Volumes[0].MountOptions.Flags = []string{} // none, out of the journal
	h.start(t, s)
	for range 3 {
		h = h.restart(t)
		if all := h.List(); len(all) != 1 || all[0].State != Running || len(all[0].Mounts) != 1 {
			t.Fatalf("got %+v", all)
		}
		h.start(t, s) // joins
		if got := h.happened(); len(got) > 0 {
			t.Errorf("calls were made: %v", got)
		}
	}
	for _, e := range h.bus.Recent(100) {
		if e.Type == "started" {
			t.Error("it was started once more")
		}
	}
	h.stop(t, "w")
	h = h.restart(t)
	if all := h.List(); len(all) != 0 {
		t.Errorf("it is back: %+v", all)
	}
	h.clean(t)
}

// A mount that was lost while no host was running is restored before the workload is shown as running.
func TestALostMountIsMountedAgain(t *testing.T) {
	for _, lost := range []string{"target", "target and staging"} {
		t.Run(lost, func(t *testing.T) {
			h, p := newHost(t), runScript(t, false, idle)
			h.volume(t, full, "a")
			h.volume(t, full, "b")
			s := spec("w", "a", "b")
			w := h.start(t, s)
			target := w.Mounts[0].HostPath
			check.NoError(t, unix.Unmount(target, 0))
			if lost != "target" {
				check.NoError(t, unix.Unmount(h.Layout.Staging(full, volumeRef("a"), usage()), 0))
			}
			h = h.next(t)
			held := newGate()
			h.on("publish:before", 1, held.hold)
			h.open(t)
			held.await(t)
			if err := h.Running(ref("w"), p.pid(), process.Ref{}); err == nil || !strings.Contains(err.Error(), "may not begin") {
				t.Errorf("its process may begin without the mount: %v", err)
			}
			if w, err := h.Get(ref("w")); err != nil || w.State != Starting {
				t.Errorf("it is %s, %v", w.State, err)
			}
			close(held.open)
			h.start(t, s) // joins, and returns when all is there
			if at(target) == nil {
				t.Error("it is not mounted again")
			}
			if n := h.count("publish b"); n > 0 {
				t.Error("the other volume was published again")
			}
			if want := map[string]int{"target": 0, "target and staging": 1}[lost]; h.count("stage a") != want {
				t.Errorf("staged %d times, want %d", h.count("stage a"), want)
			}
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// The volume's capability has changed since: the workload keeps its own.
func TestRestoredWithTheModesItHad(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	target := h.start(t, spec("w", "a")).Mounts[0].HostPath
	v, err := h.ledger.volume("a")
	check.NoError(t, err)
	v.Capabilities = append(v.Capabilities,
		claim.Capability{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem})
	check.NoError(t, h.ledger.add(v))
	check.NoError(t, unix.Unmount(target, 0))
	h = h.restart(t)
	h.running(t, "w")
	h.stop(t, "w")
	h.clean(t)
}

func TestAWorkloadThatCannotBeBroughtBackIsReleased(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	target := h.start(t, spec("w", "a")).Mounts[0].HostPath
	check.NoError(t, unix.Unmount(target, 0))
	h = h.next(t)
	h.on("publish:before", 0, fail(1))
	h.open(t)
	if w := h.ended(t, "w"); w.State != Failed {
		t.Errorf("it is %s: %s", w.State, w.Message)
	}
	h.clean(t)
}

func TestAResumedStartIsAnnounced(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	held := newGate()
	h.on("stage:before", 1, held.hold)
	go func() { _, _ = h.Start(context.Background(), spec("w", "a"), Options{}) }()
	held.await(t)
	h = h.next(t)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	all := h.bus.Subscribe(ctx, 0)
	h.open(t)
	for e := range all {
		if e.Topic == events.TopicWorkload && e.Type == "started" && e.Subject == "w" {
			cancel()
		}
	}
	if !errors.Is(ctx.Err(), context.Canceled) {
		t.Error("nobody was told that it started")
	}
	h.stop(t, "w")
	h.clean(t)
}

// After a reboot nothing is mounted, no process is left, and nothing is assumed about a volume's other users.
func TestAReboot(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("ran", "a"))
	starting := newGate()
	h.on("publish:before", 1, starting.hold)
	go func() { _, _ = h.Start(context.Background(), spec("starting", "a"), Options{}) }()
	starting.await(t)
	h = h.next(t)
	h.bootID = "another"
	there, err := mounts.Below(h.Layout.Dir)
	check.NoError(t, err)
	for _, m := range slices.Backward(there) {
		check.NoError(t, unix.Unmount(m.Path, 0))
	}

	held := newGate()
	h.on("unpublish:before", 0, held.hold)
	h.on("end:before starting", 0, held.hold) // it has no publish to undo before
	h.open(t)
	for _, id := range []string{"ran", "starting"} {
		h.eventually(t, id, "stopping", func(w Workload) bool { return w.State == Stopping })
	}
	if got := h.happened(); slices.ContainsFunc(got, func(s string) bool { return !strings.HasPrefix(s, "end ") }) {
		t.Errorf("calls were made: %v", got)
	}
	w := h.start(t, spec("new", "a"))
	if a, s := h.count("attach a"), h.count("stage a"); a != 1 || s != 1 {
		t.Errorf("%d attachments and %d staging mounts after the reboot, want one each", a, s)
	}
	close(held.open)
	if w := h.ended(t, "ran"); w.State != Stopped || w.Message != "the machine was rebooted" {
		t.Errorf("%s: %s", w.State, w.Message)
	}
	if w := h.ended(t, "starting"); w.State != Failed || w.Message != "the machine was rebooted" {
		t.Errorf("%s: %s", w.State, w.Message)
	}
	if at(w.Mounts[0].HostPath) == nil || h.count("unstage a") > 0 {
		t.Error("the new workload has lost its mount")
	}
	h.stop(t, "new")
	h.clean(t)
}

// Users of a volume are counted across restarts.
func TestUsersAreCountedOverARestart(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	calls := map[string]int{}
	again := func() {
		for _, s := range h.happened() {
			calls[s]++
		}
		h = h.restart(t)
	}
	h.start(t, spec("one", "a"))
	again()
	h.start(t, spec("two", "a"))
	again()
	h.start(t, spec("three", "a"))
	again()
	h.stop(t, "one")
	again()
	h.stop(t, "three")
	again()
	if calls["attach a"] != 1 || calls["stage a"] != 1 || calls["publish a"] != 3 || calls["unstage a"] != 0 {
		t.Errorf("calls: %v", calls)
	}
	h.stop(t, "two")
	if n := h.count("unstage a"); n != 1 {
		t.Errorf("unstaged %d times", n)
	}
	h.clean(t)
}
