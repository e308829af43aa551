package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/test/lib/check"
)

// Every step fails in every way. All actions with an intent are undone in reverse order, and the claims are
// released last.
func TestAStepGoesWrong(t *testing.T) {
	ways := map[string]struct {
		when string
		stop bool // it hangs, and the start is given up
	}{
		"fails":           {when: "before"},
		"is uncertain":    {when: "after"},
		"hangs":           {when: "before", stop: true},
		"hangs when done": {when: "after", stop: true},
	}
	// The order in which volume b, whose step fails, is undone.
	undone := map[string][]string{
		"claim":   nil,
		"attach":  nil,
		"stage":   {"unstage b"},
		"publish": {"unpublish b", "unstage b"},
	}
	for stepName, undoing := range undone {
		for way, c := range ways {
			t.Run(stepName+" "+way, func(t *testing.T) {
				h := newHost(t)
				h.volume(t, full, "a")
				h.volume(t, staged, "b")
				label, held := stepName+":"+c.when, newGate()
				switch stepName {
				case "attach":
					h.volume(t, full, "b")
					label += " b"
				case "stage", "publish":
					label += " b"
				}
				if c.stop {
					h.on(label, 1, held.hold)
					go func() {
						held.await(t)
						_, _ = h.Stop(context.Background(), ref("w"), "enough", nil)
					}()
				} else {
					h.on(label, 1, fail(codes.DeadlineExceeded))
				}
				h.impatient()
				_, err := h.Start(t.Context(), spec("w", "a", "b"), Options{})
				if !errors.Is(err, ErrFailed) {
					t.Fatal(err)
				}
				w := h.ended(t, "w")
				want := "the test wants it so"
				if c.stop {
					want = "the start was given up: enough"
				}
				if !strings.Contains(err.Error(), want) || !strings.Contains(w.Message, want) || w.State != Failed {
					t.Errorf("the error %q and the message %q do not say %q", err, w.Message, want)
				}
				released := []string{"detached w", "freed w"}
				if stepName == "claim" && c.when == "before" {
					released = released[1:] // nothing was claimed
				}
				got := h.happened()
				inOrder(t, got, append(undoing, released...)...)
				inOrder(t, got, "end w", released[0])
				h.clean(t)
				h.start(t, spec("w", "a", "b")) // and again
				h.stop(t, "w")
				h.clean(t)
			})
		}
	}
}

// A ledger command of a start that was given up may arrive last.
func TestDelayedClaim(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"end", "detached", "freed"} {
		t.Run(after, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			h.on("claim:before", 1, fail(codes.DeadlineExceeded)) // it is still on its way
			h.on(after+":after", 1, func(context.Context) error {
				if err := h.ledger.again(); !errors.Is(err, claim.ErrConflict) {
					t.Errorf("it is granted after %q: %v", after, err)
				}
				return nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			if w, err := h.Start(ctx, spec("w", "a"), Options{}); !errors.Is(err, ErrFailed) || w.State != Failed {
				t.Fatalf("%s, %v", w.State, err)
			}
			if claims := h.ledger.claims(); len(claims) > 0 {
				t.Errorf("claims are left: %v", claims)
			}
			if w, err := h.Start(ctx, spec("w", "a"), Options{}); err != nil || w.State != Running {
				t.Fatalf("another start: %s, %v", w.State, err)
			}
		})
	}
}

// inOrder checks that the wanted calls happened in that order.
func inOrder(t *testing.T, got []string, want ...string) {
	t.Helper()
	rest := got
	for _, w := range want {
		n := slices.Index(rest, w)
		if n < 0 {
			t.Errorf("%q did not happen in its place: %v, want in this order %v", w, got, want)
			return
		}
		rest = rest[n+1:]
	}
}

// A refusal by the ledger leaves nothing to undo; any other error of the claim does.
func TestARefusedClaimIsNotUndone(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.on("claim:before", 1, func(context.Context) error { return claimRefused })
	if _, err := h.Start(t.Context(), spec("w", "a"), Options{}); !errors.Is(err, claimRefused) {
		t.Fatal(err)
	}
	if got := h.happened(); len(got) > 0 {
		t.Errorf("calls were made: %v", got)
	}
	h.clean(t)
}

func TestUndoIsRepeatedUntilItWorks(t *testing.T) {
	for _, kind := range []string{"end", "unpublish", "unstage", "detached", "freed"} {
		for _, when := range []string{"before", "after"} {
			t.Run(kind+" "+when, func(t *testing.T) {
				h := newHost(t)
				h.volume(t, full, "a")
				h.volume(t, full, "b")
				h.start(t, spec("w", "a", "b"))
				for n := 1; n <= 2; n++ {
					h.on(kind+":"+when, n, fail(codes.Unavailable))
				}
				if w := h.stop(t, "w"); w.State != Stopped || w.Waiting != "" {
					t.Errorf("%+v", w)
				}
				h.clean(t)
			})
		}
	}
}

// While the driver of one volume is unavailable, the other volumes are released. That volume is released as
// soon as the driver is back, although the pause between two attempts is an hour here.
func TestADriverIsAwayAtAStop(t *testing.T) {
	h := newHost(t)
	h.limits.undo.Min, h.limits.undo.Max = time.Hour, time.Hour
	h.volume(t, full, "a")
	h.volume(t, staged, "b")
	h.start(t, spec("w", "a", "b"))
	h.drivers.healthy(staged, false)

	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := h.Stop(ctx, ref("w"), "the test stops it", nil)
		left <- err
	}()
	w := h.waiting(t, "w")
	if !strings.Contains(w.Waiting, "the test took it away") || !strings.Contains(w.Waiting, `volume "b"`) {
		t.Errorf("it waits for %q", w.Waiting)
	}
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("a stop that is left says %v", err)
	}
	if claims := h.ledger.claims(); len(claims) != 1 || claims[0].Volume.ID != "b" {
		t.Errorf("claims: %+v", claims)
	}
	if len(w.Mounts) != 1 || w.Mounts[0].Request != "b" || at(w.Mounts[0].HostPath) == nil {
		t.Errorf("mounts: %+v", w.Mounts)
	}
	h.drivers.healthy(staged, true)
	h.ended(t, "w")
	h.clean(t)
}

// A start that fails and cannot be undone at once returns nevertheless, and says what happened and what continues.
func TestAStartThatCannotBeUndoneAtOnce(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.on("publish:before", 1, func(ctx context.Context) error {
		h.drivers.healthy(full, false)
		return fail(codes.Unavailable)(ctx)
	})
	w, err := h.Start(t.Context(), spec("w", "a"), Options{})
	if !errors.Is(err, ErrFailed) || w.State != Stopping {
		t.Fatalf("%s, %v", w.State, err)
	}
	for _, want := range []string{
		`publish volume "a"`, "the test wants it so", "undoing it continues",
		"the test took it away",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	h.drivers.healthy(full, true)
	if w := h.ended(t, "w"); w.State != Failed {
		t.Errorf("it is %s", w.State)
	}
	h.clean(t)
}

// Without the ledger no claim is released, but nothing stays mounted either.
func TestTheLedgerIsAwayAtAStop(t *testing.T) {
	for name, away := range map[string]func(ctx context.Context) error{
		"fails": fail(codes.Unavailable),
		"hangs": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.limits.ledger = 300 * time.Millisecond
			h.volume(t, full, "a")
			h.start(t, spec("w", "a"))
			h.on("end:before", 1, away)
			held := newGate()
			h.on("end:before", 2, held.hold)
			go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
			held.await(t)
			inOrder(t, h.happened(), "unpublish a", "unstage a")
			if h.count("detached w") > 0 || len(h.ledger.claims()) != 1 {
				t.Error("the claim was released, but the ledger does not know that the workload ended")
			}
			close(held.open)
			h.ended(t, "w")
			h.clean(t)
		})
	}
}

// Volumes are unmounted while the ledger is being told of the end; their claims wait for it.
func TestTheLedgerIsSlowAtAStop(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	end, unstaged := newGate(), newGate()
	h.on("end:before", 1, end.hold)
	h.on("unstage:after", 1, unstaged.hold)
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
	unstaged.await(t)
	close(unstaged.open)
	end.await(t)
	if h.count("end w")+h.count("detached w") > 0 {
		t.Errorf("the claim was released before the end was known: %v", h.happened())
	}
	close(end.open)
	h.ended(t, "w")
	inOrder(t, h.happened(), "unpublish a", "unstage a", "end w", "detached w", "freed w")
	h.clean(t)
}

// A driver's success is verified.
func TestDriversSuccessIsVerified(t *testing.T) {
	t.Run("nothing is mounted", func(t *testing.T) {
		h := newHost(t)
		h.volume(t, plain, "a")
		h.on("publish:after", 1, func(context.Context) error {
			return unmount(h.Layout.Target(plain, ref("w"), volumeRef("a"), usage(), "a"))
		})
		if _, err := h.Start(t.Context(), spec("w", "a"), Options{}); err == nil ||
			!strings.Contains(err.Error(), "nothing is mounted at") {
			t.Errorf("got %v", err)
		}
		h.clean(t)
	})
	t.Run("writable for a reader", func(t *testing.T) {
		h := newHost(t)
		h.volume(t, plain, "a")
		s := spec("w", "a")
		s.Volumes[0].ReadOnly = true
		u := usage()
		u.ReadOnly = true
		target := h.Layout.Target(plain, ref("w"), volumeRef("a"), u, "a")
		h.on("publish:after", 1, func(context.Context) error { return h.driver.bind(h.driver.base, target, false) })
		h.start(t, s)
		if err := os.WriteFile(filepath.Join(target, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("a write to it: %v", err)
		}
		h.stop(t, "w")
		h.clean(t)
	})
	t.Run("still mounted", func(t *testing.T) {
		h := newHost(t)
		h.volume(t, full, "a")
		target := h.start(t, spec("w", "a")).Mounts[0].HostPath
		h.on("unpublish:after", 1, func(context.Context) error {
			return h.driver.bind(h.driver.base, remade(t, target),
				false)
		})
		h.stop(t, "w")
		h.clean(t)
	})
	t.Run("mounted below the staging path", func(t *testing.T) {
		h := newHost(t)
		h.volume(t, full, "a")
		h.start(t, spec("w", "a"))
		own := filepath.Join(h.Layout.Staging(full, volumeRef("a"), usage()), "own")
		h.on("unstage:after", 1, func(context.Context) error { return h.driver.bind(h.driver.base, remade(t, own), false) })
		h.stop(t, "w")
		h.clean(t)
	})
	t.Run("files are left", func(t *testing.T) {
		h := newHost(t)
		h.volume(t, plain, "a")
		target := h.start(t, spec("w", "a")).Mounts[0].HostPath
		h.on("unpublish:after", 1, func(context.Context) error {
			return os.WriteFile(filepath.Join(remade(t, target), "file"), []byte("x"), 0o600)
		})
		h.stop(t, "w")
		if raw, err := os.ReadFile(filepath.Join(h.asides()[target], "file")); err != nil || string(raw) != "x" {
			t.Errorf("what was beside the volume is gone: %v", err)
		}
		if len(h.ledger.claims()) > 0 {
			t.Error("the claim is kept for a file that is not in the volume")
		}
	})
}

// A later user does not mistake an unstage that failed half-way for a stage.
func TestAFailedUnstageIsNoStage(t *testing.T) {
	h := newHost(t)
	h.limits.undo.Min, h.limits.undo.Max = time.Hour, time.Hour
	h.blockVolume(t, full, "disk") // nothing is mounted that would tell
	h.volume(t, full, "disk", multiBlock)
	h.start(t, spec("first", "disk"))
	h.on("unstage:after", 1, fail(codes.Internal))
	go func() { _, _ = h.Stop(context.Background(), ref("first"), "the test stops it", nil) }()
	h.waiting(t, "first")
	h.start(t, spec("second", "disk"))
	if n := h.count("stage disk"); n != 2 {
		t.Errorf("staged %d times: the second workload runs on what was unstaged", n)
	}
	h.drivers.set(full, func(*drivers.Driver) {})
	h.ended(t, "first")
	if n := h.count("unstage disk"); n != 1 {
		t.Errorf("unstaged %d times below the second workload", n)
	}
	h.stop(t, "second")
	h.clean(t)
}

// A mount at the staging path that belongs to nobody is not used, and is gone before the claim is.
func TestAForeignMountAtTheStagingPath(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	path := remade(t, h.Layout.Staging(full, volumeRef("a"), usage()))
	check.NoError(t, unix.Mount(foreign, path, "tmpfs", 0, ""))
	if _, err := h.Start(t.Context(), spec("w", "a"), Options{}); err == nil ||
		!strings.Contains(err.Error(), "is not ours: tmpfs of foreign") {
		t.Errorf("got %v", err)
	}
	if h.count("stage a")+h.count("unstage a") > 0 || at(path) != nil {
		t.Errorf("the driver was called, or it is there still: %v", h.happened())
	}
	h.start(t, spec("w", "a"))
	h.stop(t, "w")
	h.clean(t)
}

// A leftover at the target is removed when the start is undone.
func TestALeftoverAtTheTarget(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	path := remade(t, h.Layout.Target(full, ref("w"), volumeRef("a"), usage(), "a"))
	check.NoError(t, unix.Mount("leftover", path, "tmpfs", 0, ""))
	if _, err := h.Start(t.Context(), spec("w", "a"), Options{}); err == nil ||
		!strings.Contains(err.Error(), "is mounted already") {
		t.Errorf("got %v", err)
	}
	h.start(t, spec("w", "a"))
	h.stop(t, "w")
	h.clean(t)
}

// If the journal cannot be written, no Do is called and nothing runs.
func TestNothingIsDoneWithoutTheJournal(t *testing.T) {
	h := newHost(t)
	r := &run{h.Manager, h.instance(record{Spec: spec("w"), State: Starting, Steps: map[string]step.Progress{}})}
	check.NoError(t, h.journal.Close())
	called := false
	do := func(*run, context.Context, subject) error { called = true; return nil }
	if err := r.do(t.Context(), action{name: "it", do: do}, r.subjects()[0]); !errors.Is(err, journal.ErrClosed) ||
		called {
		t.Errorf("got %v, called: %t", err, called)
	}
	if err := r.set(Running, nil); !errors.Is(err, journal.ErrClosed) || r.state() != Starting {
		t.Errorf("got %v, it is %s", err, r.state())
	}
	if _, err := h.Start(t.Context(), spec("w"), Options{}); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("a start: %v", err)
	}
	if got := h.happened(); len(got) > 0 {
		t.Errorf("calls were made: %v", got)
	}
}

// A journal that fails in the middle leaves an intent. The next process of the host continues from it, and finds that
// the claims are being released already.
func TestTheJournalFailsInTheMiddle(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.on("publish:before", 1, func(context.Context) error { return h.journal.Close() })
	w, err := h.Start(t.Context(), spec("w", "a"), Options{})
	if !errors.Is(err, journal.ErrClosed) || !errors.Is(err, ErrFailed) || w.State != Stopping {
		t.Fatalf("%s, %v", w.State, err)
	}
	if h.count("detached w") > 0 {
		t.Error("the claim was released")
	}
	h = h.restart(t)
	if w := h.ended(t, "w"); w.State != Failed {
		t.Errorf("it is %s", w.State)
	}
	h.clean(t)
}

func TestRepeatedStopIsAttemptedAtOnce(t *testing.T) {
	h := newHost(t)
	h.limits.undo.Min, h.limits.undo.Max = time.Hour, time.Hour
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	h.on("unstage:before", 1, fail(codes.FailedPrecondition))
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := h.Stop(ctx, ref("w"), "the test stops it", nil)
		left <- err
	}()
	h.waiting(t, "w")
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the abandoned stop returned %v", err)
	}
	if w, err := h.Stop(t.Context(), ref("w"), "again", nil); err != nil || w.State != Stopped ||
		w.Message != "the test stops it" {
		t.Errorf("the second stop returned %+v, %v", w, err)
	}
	h.clean(t)
}

// A start that the ledger has refused takes nothing later, when an earlier copy of it arrives.
func TestARefusedStartArrivesAgain(t *testing.T) {
	h := newHost(t)
	h.RemoteLedger = true
	h.volume(t, full, "a", claim.Capability{
		AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem,
	})
	h.start(t, spec("other", "a"))
	if _, err := h.Start(t.Context(), spec("w", "a"), Options{}); !errors.Is(err, claim.ErrHeld) {
		t.Fatalf("got %v", err)
	}
	earlier := h.ledger.again
	h.ended(t, "w")
	h.stop(t, "other")
	if err := earlier(); !errors.Is(err, claim.ErrConflict) {
		t.Errorf("the earlier copy: %v", err)
	}
	if held := h.ledger.claims(); len(held) > 0 {
		t.Errorf("nobody releases %+v", held)
	}
	h.clean(t)
}
