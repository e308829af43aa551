package workload

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
)

// hang is a driver that does not answer until its caller leaves.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// mountLate mounts what a driver was asked to mount, after it was given up.
func (h *host) mountLate(t *testing.T, volume, path string) {
	t.Helper()
	for { // the release, which is retried, removes empty folders meanwhile
		err := os.MkdirAll(path, 0o700)
		if err == nil {
			err = unix.Mount(h.driver.base+"/external-"+volume, path, "", unix.MS_BIND, "")
		}
		if errors.Is(err, fs.ErrNotExist) && t.Context().Err() == nil {
			continue
		}
		check.NoError(t, err)
		break
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

// settles sets how long the claim is kept for calls that were never answered.
func (h *host) settles(long time.Duration) {
	h.drivers.set(full, func(d *drivers.Driver) { d.SettleTime = long })
}

// unanswered lists the processes that calls without an answer in the journal were made to; 0: to one that is not known.
func (h *host) unanswered(t *testing.T) (pids []int) {
	t.Helper()
	h.eachUnanswered(t, func(pid int, _ boottime.Instant) { pids = append(pids, pid) })
	return pids
}

// unansweredSince lists from when on the journal counts the time that claims are kept for calls without an answer.
func (h *host) unansweredSince(t *testing.T) (since []boottime.Instant) {
	t.Helper()
	h.eachUnanswered(t, func(_ int, at boottime.Instant) { since = append(since, at) })
	return since
}

func (h *host) eachUnanswered(t *testing.T, do func(pid int, since boottime.Instant)) {
	t.Helper()
	check.NoError(t, h.journal.View(func(tx *journal.Tx) error {
		return errors.Join(
			stagings.Each(tx, func(_ string, u *users) error {
				if call, ok := (*u)["unanswered"].(map[string]any); ok {
					pid, _ := call["pid"].(float64)
					since, _ := call["since"].(float64)
					do(int(pid), boottime.Instant(since))
				}
				return nil
			}),
			records.Each(tx, func(_ string, r *record) error {
				for _, v := range r.Volumes {
					if v.Unanswered != nil {
						do(v.Unanswered.PID, v.Unanswered.Since)
					}
				}
				return nil
			}))
	}))
}

// givenUp starts a workload whose stage or publish is never answered, and returns when its release waits for that.
func (h *host) givenUp(t *testing.T, call string) {
	t.Helper()
	h.volume(t, full, "a")
	h.impatient()
	h.on(call+":before", 1, hang)
	if _, err := h.Start(t.Context(), spec("w", "a"), Options{}); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	h.eventually(t, "w", "waiting for the call", func(w Workload) bool {
		return strings.Contains(w.Waiting, `driver "full" never answered a call to `+call+` volume "a" for workload "w"`) &&
			strings.Contains(w.Waiting, "settle_time")
	})
	if h.count("detached w") > 0 || len(h.ledger.claims()) != 1 {
		t.Errorf("the claim is not kept: %v", h.happened())
	}
}

// A driver that has answered the unstage may be at the stage still. What it mounts is unmounted, and the claim is kept
// until that cannot happen any more.
func TestCallThatIsNeverAnswered(t *testing.T) {
	for _, call := range []string{"stage", "publish"} {
		t.Run(call, func(t *testing.T) {
			h := newHost(t)
			h.settles(time.Hour)
			h.givenUp(t, call)
			path := h.Layout.Staging(full, volumeRef("a"), usage())
			if call == "publish" {
				path = h.Layout.Target(full, ref("w"), volumeRef("a"), usage(), "a")
			}
			h.mountLate(t, "a", path)
			h.eventually(t, "w", "unmounting what came late", func(Workload) bool { return at(path) == nil })

			h = h.next(t) // and the next process of the host waits on
			h.settles(time.Hour)
			h.open(t)
			h.waiting(t, "w")
			if h.count("detached w") > 0 {
				t.Errorf("it is released after a restart: %v", h.happened())
			}
			h.settles(time.Millisecond)
			h.ended(t, "w")
			h.clean(t)
		})
	}
}

// The time that a claim is kept for a call counts from when the call was given up. Its driver worked on it until then.
func TestSettleTimeCountsFromTheEndOfACall(t *testing.T) {
	for _, call := range []string{"stage", "publish"} {
		t.Run(call, func(t *testing.T) {
			h := newHost(t)
			h.settles(time.Hour)
			h.volume(t, full, "a")
			h.impatient()
			var gaveUp boottime.Instant
			h.on(call+":before", 1, func(ctx context.Context) error {
				err := hang(ctx)
				gaveUp = boottime.Now()
				return err
			})
			if _, err := h.Start(t.Context(), spec("w", "a"), Options{}); !errors.Is(err, ErrFailed) {
				t.Fatal(err)
			}
			if since := h.unansweredSince(t); len(since) != 1 || since[0] < gaveUp {
				t.Errorf("the claim is kept for calls from %v on, and this one was given up at %v", since, gaveUp)
			}
			h.settles(time.Millisecond)
			h.ended(t, "w")
			h.clean(t)
		})
	}
}

// errRepeated is in the error of a call that is repeated with another process of the plugin.
var errRepeated = errors.New("repeated")

type repeated struct{ error }

func (r repeated) Unwrap() []error { return []error{r.error, errRepeated} }

func (r repeated) GRPCStatus() *status.Status { return status.Convert(r.error) }

// A call that failed in one process of the plugin, such as a canary, and was repeated with another, was answered: the
// release does not wait for it. If the process ended in the middle of it, nobody knows what the driver does.
func TestCallThatIsRepeated(t *testing.T) {
	for _, call := range []string{"stage", "publish"} {
		for code, waits := range map[codes.Code]bool{codes.Internal: false, codes.Unavailable: true} {
			t.Run(call+" "+code.String(), func(t *testing.T) {
				h := newHost(t)
				h.settles(time.Hour)
				h.volume(t, full, "a")
				h.on(call+":before", 1, func(context.Context) error { return repeated{status.Error(code, "no")} })
				_, err := h.Start(t.Context(), spec("w", "a"), Options{})
				check.NoError(t, err)
				go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
				if waits {
					if w := h.waiting(t, "w"); !strings.Contains(w.Waiting, "never answered a call to "+call) {
						t.Errorf("it waits for %s", w.Waiting)
					}
					h.settles(time.Millisecond)
				}
				h.ended(t, "w")
				h.clean(t)
			})
		}
	}
}

// The host is killed in the middle of a call: nobody knows what the driver does with it.
func TestKilledInTheMiddleOfACall(t *testing.T) {
	for _, call := range []string{"stage", "publish"} {
		t.Run(call, func(t *testing.T) {
			h := newHost(t)
			h.settles(time.Hour)
			h.volume(t, full, "a")
			held := newGate()
			h.on(call+":before", 1, held.hold)
			go func() { _, _ = h.Start(context.Background(), spec("w", "a"), Options{}) }()
			held.await(t)
			if n := len(h.unanswered(t)); n != 1 { // this is all that a kill leaves
				t.Errorf("the journal has %d calls while the driver works on one", n)
			}
			h = h.next(t)
			h.settles(time.Hour)
			h.open(t)
			h.running(t, "w") // the driver has answered the second call
			go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
			if w := h.waiting(t, "w"); !strings.Contains(w.Waiting, "never answered a call to "+call) {
				t.Errorf("it waits for %s", w.Waiting)
			}
			h.settles(time.Millisecond)
			h.ended(t, "w")
			h.clean(t)
		})
	}
}

// The driver is another process than when the call was recorded: the journal has the one that gets the call.
func TestDriverChangesBeforeACall(t *testing.T) {
	for nth, call := range []string{"stage", "publish"} {
		t.Run(call, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			before, after := driverProcess(t), driverProcess(t)
			h.runs(t, before)
			asked, secrets := 0, h.volumes.Secrets
			h.volumes.Secrets = func(ctx context.Context, v claim.Volume) (map[string]string, error) { // before each call
				if asked++; asked == nth+1 {
					h.runs(t, after)
				}
				return secrets(ctx, v)
			}
			h.on(call+":before", 1, func(context.Context) error {
				if got := h.unanswered(t); !slices.Equal(got, []int{after.Pid}) {
					t.Errorf("during the call the journal has calls to %v, want one to %d", got, after.Pid)
				}
				return nil
			})
			h.start(t, spec("w", "a"))
			if got := h.unanswered(t); len(got) > 0 {
				t.Errorf("after the answers the journal has calls to %v", got)
			}
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// runs says that the host runs a process as its driver.
func (h *host) runs(t *testing.T, p *os.Process) {
	t.Helper()
	stat, err := procfs.ReadStat(procfs.Dir(p.Pid))
	check.NoError(t, err)
	h.drivers.set(full, func(d *drivers.Driver) { d.PID, d.Started = stat.PID, stat.StartTime })
}

// driverProcess starts a process that does nothing.
func driverProcess(t *testing.T) *os.Process {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	check.NoError(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	return cmd.Process
}

// What the process of a driver has not done by its end, it does not do.
func TestDriverOfAnUnansweredCallEnds(t *testing.T) {
	h := newHost(t)
	h.settles(time.Hour)
	process := driverProcess(t)
	h.runs(t, process)
	h.givenUp(t, "stage")
	check.NoError(t, process.Kill())
	_, _ = process.Wait()
	h.ended(t, "w")
	h.clean(t)
}

// A stop does not cut off a call that the driver works on: its answer tells that nothing comes later.
func TestStopWaitsForTheAnswer(t *testing.T) {
	h := newHost(t)
	h.settles(time.Hour)
	h.volume(t, full, "a")
	held := newGate()
	h.on("stage:before", 1, held.hold)
	started := make(chan error, 1)
	go func() {
		_, err := h.Start(context.Background(), spec("w", "a"), Options{})
		started <- err
	}()
	held.await(t)
	stopped := make(chan error, 1)
	go func() {
		_, err := h.Stop(context.Background(), ref("w"), "changed my mind", nil)
		stopped <- err
	}()
	h.eventually(t, "w", "stopping", func(w Workload) bool { return w.State == Stopping })
	if h.count("unstage a")+h.count("detached w") > 0 {
		t.Errorf("it is undone before the driver has answered: %v", h.happened())
	}
	close(held.open)
	check.NoError(t, <-stopped)
	if err := <-started; !errors.Is(err, ErrFailed) {
		t.Errorf("the start says %v", err)
	}
	inOrder(t, h.happened(), "stage a", "unstage a", "detached w", "freed w")
	h.clean(t)
}

// The mount table is read before and after a claim is freed.
func TestMountsWhileAClaimIsFreed(t *testing.T) {
	for _, when := range []string{"unstage:after", "freed:before", "freed:after"} {
		t.Run(when, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			h.start(t, spec("w", "a"))
			staging := h.Layout.Staging(full, volumeRef("a"), usage())
			h.on(when, 1, func(context.Context) error { h.mountLate(t, "a", staging); return nil })
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// What is mounted after everything was released is unmounted without a restart; what is busy is reported until then.
func TestRepair(t *testing.T) {
	h := prepareHost(t, newDir(t))
	h.limits.repair = 10 * time.Millisecond
	h.open(t)
	h.volume(t, full, "a")
	h.start(t, spec("w", "a"))
	h.stop(t, "w")
	staging := h.Layout.Staging(full, volumeRef("a"), usage())
	until := func(what string, is func() bool) {
		t.Helper()
		for late := time.Now().Add(timeout); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("it is not %s: %v is mounted, left over are %v", what, at(staging), h.Repairs.Leftovers())
			}
		}
	}
	unlock, err := h.volumes.Locks.Lock(t.Context(), volumeRef("a")) // the repair waits until the mount is in use
	check.NoError(t, err)
	h.mountLate(t, "a", staging)
	user, err := os.Create(filepath.Join(staging, "in use"))
	check.NoError(t, err)
	defer user.Close()
	unlock()
	until("reported", func() bool {
		return len(h.Repairs.Leftovers()) == 1 && strings.Contains(h.Repairs.Leftovers()[0], "busy")
	})
	check.NoError(t, user.Close())
	until("unmounted", func() bool { return at(staging) == nil && len(h.Repairs.Leftovers()) == 0 })
	h.start(t, spec("w", "a"))
	check.NoError(t, h.Repairs.repair(t.Context()))
	if !h.volumes.AllMounted(h.known.workloads[ref("w")].volumes) {
		t.Error("the repair has unmounted what is in use")
	}
	h.stop(t, "w")
	h.clean(t)
}

func TestNoDefaultLimitIsForgotten(t *testing.T) {
	all := reflect.ValueOf(defaultLimits)
	for n := range all.NumField() {
		if all.Field(n).IsZero() {
			t.Errorf("%s is not set", all.Type().Field(n).Name)
		}
	}
}

// A driver answers the stage with success, mounts nothing, and publishes the directory that it was given for it.
func TestStageWithoutAMount(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.driver.lies = true
	_, err := h.Start(t.Context(), spec("w", "a"), Options{})
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "shows a directory of this host's own disk") {
		t.Errorf("got %v", err)
	}
	h.ended(t, "w")
	h.clean(t)
	h.driver.lies = false
	h.start(t, spec("w", "a"))
	h.stop(t, "w")
	h.clean(t)
}

// A volume has one staging path on a node: readers and writers share it.
func TestOneStagingPathOfAVolume(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	reader := func(id string) Spec {
		s := spec(id, "a")
		s.Volumes[0].ReadOnly = true
		return s
	}
	h.start(t, reader("r1"))
	h.start(t, spec("w1", "a"))
	h = h.restart(t)
	r2 := h.start(t, reader("r2"))
	if m := at(r2.Mounts[0].HostPath); m == nil || !m.ReadOnly {
		t.Errorf("a reader's mount is %v", m)
	}
	h.stop(t, "r1")
	if m := at(h.record(t, "w1").Volumes[0].Target); m == nil || m.ReadOnly {
		t.Errorf("a writer's mount is %v", m)
	}
	h.stop(t, "w1")
	if n := h.count("stage a") + h.count("unstage a"); n != 0 {
		t.Errorf("it was staged or unstaged %d times between its first and its last user", n)
	}
	h.stop(t, "r2")
	h.clean(t)
}

func TestContradictingMountOptions(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	with := func(id string, o claim.MountOptions) Spec {
		s := spec(id, "a")
		s.Volumes[0].MountOptions = o
		return s
	}
	h.start(t, with("first", claim.MountOptions{FSType: "ext4", Flags: []string{"noexec", "sync"}}))
	h.start(t, with("same", claim.MountOptions{FSType: "ext4", Flags: []string{"sync", "noexec", "sync", "noatime"}}))
	for field, o := range map[string]claim.MountOptions{
		"mount_flags":        {FSType: "ext4", Flags: []string{"sync"}},
		"fs_type":            {FSType: "xfs", Flags: []string{"noexec", "sync"}},
		"volume_mount_group": {FSType: "ext4", Flags: []string{"noexec", "sync"}, Group: "7"},
	} {
		_, err := h.Start(t.Context(), with("other", o), Options{})
		for _, want := range []string{`workload "first"`, `workload "other"`, field} {
			if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), want) {
				t.Errorf("another %s: %v", field, err)
			}
		}
	}
	if n := h.count("stage a"); n != 1 {
		t.Errorf("staged %d times", n)
	}
	h.stop(t, "first")
	h.stop(t, "same")
	h.start(t, with("other", claim.MountOptions{FSType: "xfs"}))
	h.stop(t, "other")
	h.clean(t)
}
