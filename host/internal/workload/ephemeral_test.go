package workload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/journal"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/host/internal/workload/volumesteps"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

// ephemeral asks for a volume that the driver makes for the workload, and for registered ones.
func ephemeral(volumes ...string) Spec {
	s := spec("w", volumes...)
	s.Volumes = append(s.Volumes, specs.VolumeRequest{
		Name: "scratch", Driver: full, Attributes: map[string]string{"size": "1GiB"}, Destination: "/scratch",
	})
	return s
}

// scratch is where the ephemeral volume is.
func scratch(t *testing.T, w Workload) string {
	t.Helper()
	n := slices.IndexFunc(w.Mounts, func(m MountPoint) bool { return m.Driver == full })
	if n < 0 || at(w.Mounts[n].HostPath) == nil {
		t.Fatalf("the ephemeral volume is not mounted: %+v", w.Mounts)
	}
	return w.Mounts[n].HostPath
}

// A driver makes the volume and deletes it. It is published only, without a claim, and each run has its own.
func TestEphemeralVolume(t *testing.T) {
	h := newHost(t)
	var ids []string
	for range 2 {
		w := h.start(t, ephemeral())
		path := scratch(t, w)
		check.NoError(t, os.WriteFile(filepath.Join(path, "file"), nil, 0o600))
		if claims := h.ledger.claims(); len(claims) > 0 {
			t.Errorf("the ledger has %+v", claims)
		}
		if using := h.WorkloadsUsing(full); !slices.Equal(using, []string{`ephemeral volume "scratch" of workload "w"`}) {
			t.Errorf("the driver is in use by %q", using)
		}
		ids = append(ids, w.Mounts[0].Volume.ID)
		h.stop(t, "w")
		h.clean(t)
	}
	if ids[0] == ids[1] || len(ids[0]) != len("csi-")+64 {
		t.Errorf("the runs had the volumes %q", ids)
	}
	for _, call := range []string{"attach ephemeral", "stage ephemeral", "unstage ephemeral"} {
		if slices.Contains(h.happened(), call) {
			t.Errorf("the driver was called: %q", h.happened())
		}
	}
	if h.count("publish ephemeral") != 2 || h.count("unpublish ephemeral") != 2 {
		t.Errorf("the driver was called: %q", h.happened())
	}
}

func TestReadOnlyEphemeralVolume(t *testing.T) {
	h := newHost(t)
	s := ephemeral()
	s.Volumes[0].ReadOnly = true
	path := scratch(t, h.start(t, s))
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write: %v", err)
	}
	h.stop(t, "w")
	h.clean(t)
}

// Nobody has a volume of a driver that its operator has not opened, in a namespace that he has not named, or with mount
// flags that he has not allowed.
func TestEphemeralVolumeIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h *host, r *specs.VolumeRequest)
		want   string
		is     error
	}{
		"not opened": {
			func(_ *host, r *specs.VolumeRequest) { r.Driver = staged },
			`have root write ephemeral_volumes {} in the block csi_driver "staged"`, drivers.ErrNotEphemeral,
		},
		"another namespace": {func(h *host, _ *specs.VolumeRequest) {
			h.drivers.set(full, func(d *drivers.Driver) {
				d.EphemeralVolumes = &drivers.EphemeralVolumes{Namespaces: []string{"shop"}}
			})
		}, `in the namespace "default": driver "full": have root add it to namespaces in ephemeral_volumes`, drivers.ErrNotEphemeral},
		"no such driver": {
			func(_ *host, r *specs.VolumeRequest) { r.Driver = "none" }, "is not on this node", drivers.ErrNotFound,
		},
		"no node service": {func(h *host, _ *specs.VolumeRequest) {
			h.drivers.set(full, func(d *drivers.Driver) { d.Fingerprint.Node = nil })
		}, "has no node service on this node", nil},
		"a mount flag": {
			func(_ *host, r *specs.VolumeRequest) { r.MountOptions.Flags = []string{"uid=0"} }, `"uid"`, drivers.ErrMountFlag,
		},
		"suid": {func(h *host, r *specs.VolumeRequest) {
			r.MountOptions.Flags = []string{"suid"}
			h.drivers.set(full, func(d *drivers.Driver) { d.AllowedMountFlags = []string{"suid"} })
		}, `"suid"`, drivers.ErrMountFlag},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			s := ephemeral()
			c.change(h, &s.Volumes[0])
			_, err := h.Start(t.Context(), s, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got %v", err)
			}
			if slices.Contains(h.happened(), "publish ephemeral") {
				t.Error("the driver was called")
			}
			h.clean(t)
		})
	}
}

// A workload cannot pretend to be another, even if its spec were not checked.
func TestAttributesDoNotReplaceWhoAsks(t *testing.T) {
	r := volumesteps.NewRecord(ref("w"), "run", specs.VolumeRequest{
		Name: "v", Driver: full, Attributes: map[string]string{"csi.storage.k8s.io/pod.namespace": "other"},
	})
	if got := r.Context["csi.storage.k8s.io/pod.namespace"]; got != claim.DefaultNamespace {
		t.Errorf("the driver is told the namespace %q", got)
	}
}

// The host is closed or killed at each point. Nothing of the volume is left when the workload has ended.
func TestTheHostEndsWithAnEphemeralVolume(t *testing.T) {
	points := map[string]bool{
		"claim:before": false, "claim:after": false, "publish:before": false, "publish:after": false,
		"end:before": true, "end:after": true, "unpublish:before": true, "unpublish:after": true, "detached:after": true, "": false,
	}
	for _, how := range []string{"killed", "closed"} {
		for label, stop := range points {
			t.Run(how+" at "+label, func(t *testing.T) {
				h := newHost(t)
				h.volume(t, full, "a")
				s := ephemeral("a")
				switch {
				case how == "killed":
					h.shut(t)
					child{Dir: h.dir, Spec: s, Label: label, Stop: stop}.killed(t)
				case label == "":
					h.start(t, s)
				default:
					held := newGate()
					h.on(label, 1, held.hold)
					go func() {
						_, _ = h.Start(context.Background(), s, Options{})
						if stop {
							_, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil)
						}
					}()
					held.await(t)
				}
				h = h.restart(t)
				if !stop {
					scratch(t, h.running(t, "w"))
					h = h.restart(t) // it is restored from what was restored
					scratch(t, h.running(t, "w"))
					h.stop(t, "w")
				}
				h.ended(t, "w")
				h.clean(t)
			})
		}
	}
}

// After a reboot nothing is mounted, and the driver deletes what it has of the volume.
func TestARebootWithAnEphemeralVolume(t *testing.T) {
	h := newHost(t)
	path := scratch(t, h.start(t, ephemeral()))
	h = h.next(t)
	h.bootID = "another"
	check.NoError(t, unix.Unmount(path, 0))
	h.open(t)
	h.ended(t, "w")
	h.clean(t)
}

// A call that is never answered keeps the workload, and so the record of the volume.
func TestEphemeralVolumeThatIsNeverAnswered(t *testing.T) {
	h := newHost(t)
	h.settles(time.Hour)
	h.impatient()
	h.on("publish:after", 1, hang)
	if _, err := h.Start(t.Context(), ephemeral(), Options{}); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	h.eventually(t, "w", "waiting for the call", func(w Workload) bool {
		return strings.Contains(w.Waiting, "never answered a call to publish volume") &&
			strings.Contains(w.Waiting, "the workload is not released for another")
	})
	h = h.next(t)
	h.settles(time.Hour)
	h.open(t)
	h.waiting(t, "w")
	h.settles(time.Millisecond)
	h.ended(t, "w")
	h.clean(t)
}

// A success without a mount would let the workload write to the host's own disk.
func TestEphemeralVolumeThatIsNotMounted(t *testing.T) {
	h := newHost(t)
	h.on("publish:after", 1, func(context.Context) error {
		there, err := mounts.Below(h.Layout.Driver(full))
		check.NoError(t, err)
		return unix.Unmount(there[0].Path, 0)
	})
	if _, err := h.Start(t.Context(), ephemeral(), Options{}); err == nil ||
		!strings.Contains(err.Error(), "nothing is mounted at") {
		t.Errorf("got %v", err)
	}
	h.clean(t)
}

// The driver is away: the release waits for it, and needs it no more if an operator forces it. What the driver keeps
// of the volume is its own.
func TestForcedReleaseOfAnEphemeralVolume(t *testing.T) {
	h := newHost(t)
	path := scratch(t, h.start(t, ephemeral()))
	h.drivers.healthy(full, false)
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "stopped", nil) }()
	if w := h.waiting(t, "w"); !strings.Contains(w.Waiting, "pannier workload stop -force w") {
		t.Errorf("it waits for %s", w.Waiting)
	}
	check.NoError(t, h.Force(ref("w"), "root"))
	h.ended(t, "w")
	if at(path) != nil || len(h.forcedEvents()) != 1 {
		t.Errorf("mounted: %v, events: %+v", at(path), h.forcedEvents())
	}
}

// A mount that no record explains is unpublished by its driver, which deletes the volume: the path names it.
func TestLeftoverEphemeralVolume(t *testing.T) {
	h := newHost(t)
	path := scratch(t, h.start(t, ephemeral()))
	h.shut(t)
	h = prepareHost(t, h.dir)
	check.NoError(t, h.journal.Update(func(tx *journal.Tx) error { return records.Delete(tx, key(ref("w"))) }))
	h.drivers.healthy(full, false) // as it is when the host has just started
	left, err := h.Open(t.Context())
	if err != nil || len(left) != 1 || !strings.Contains(left[0], "the test took it away") || at(path) == nil {
		t.Errorf("left: %q, %v; mounted: %v", left, err, at(path))
	}
	h.drivers.healthy(full, true)
	check.Eventually(t, "the volume is unpublished", func() bool { return at(path) == nil && len(h.Repairs.Leftovers()) == 0 })
	if h.count("unpublish ephemeral") != 1 {
		t.Errorf("the driver was called: %q", h.happened())
	}
	if _, err := os.Stat(filepath.Join(h.driver.base, filepath.Base(filepath.Dir(filepath.Dir(path))))); err == nil {
		t.Error("the driver still has the volume")
	}
}

// A workload with claims is stopped with all its volumes when the node is cut off, and the fence knows them. One that
// has ephemeral volumes only has nothing that another node could use: it continues.
func TestNodeIsCutOffWithEphemeralVolumes(t *testing.T) {
	t.Run("with claims", func(t *testing.T) {
		h := newHost(t)
		h.volume(t, full, "a")
		path := scratch(t, h.start(t, ephemeral("a")))
		if !h.fence.guards(path) {
			t.Error("the fence does not know the volume")
		}
		back := h.ledgerAway()
		h.fence.end()
		h.loses(t, "cut off")
		if at(path) != nil {
			t.Error("it is mounted still")
		}
		back()
		h.ended(t, "w")
		h.clean(t)
	})
	t.Run("without claims", func(t *testing.T) {
		h := newHost(t)
		h.fence.end()
		path := scratch(t, h.start(t, ephemeral()))
		h.loses(t, "cut off")
		check.NoError(t, h.Reconciler.Reconcile(t.Context()))
		if w, err := h.Get(ref("w")); err != nil || w.State != Running || at(path) == nil || h.fence.guards(path) {
			t.Errorf("it is %s, %v; mounted: %v", w.State, err, at(path))
		}
		h.stop(t, "w")
		h.clean(t)
	})
}

// Ephemeral volumes count for the driver's limit together with claimed ones. Of several starts that want the last
// place, one gets it.
func TestEphemeralVolumesCount(t *testing.T) {
	h := newHost(t)
	h.drivers.set(full, func(d *drivers.Driver) {
		n := *d.Fingerprint.Node
		n.MaxVolumes = 2
		d.Fingerprint.Node = &n
	})
	h.driver.anyone = true
	h.volume(t, full, "a")
	h.volume(t, full, "b")
	h.start(t, spec("first", "a"))
	h = h.restart(t)
	h.drivers.set(full, func(d *drivers.Driver) {
		d.Fingerprint.Node = &storage.NodeCapabilities{NodeID: "n", StageUnstage: true, MaxVolumes: 2}
	})
	h.driver.anyone = true
	all := []Spec{ephemeral(), ephemeral(), spec("claims", "b")}
	all[1].ID = "w2"
	errs := make([]error, len(all))
	var starts sync.WaitGroup
	for n, s := range all {
		starts.Go(func() { _, errs[n] = h.Start(t.Context(), s, Options{}) })
	}
	starts.Wait()
	up := 0
	for n, err := range errs {
		switch {
		case err == nil:
			up++
			h.stop(t, all[n].ID)
		case !errors.Is(err, volumesteps.ErrTooMany) || !strings.Contains(err.Error(), `by workload "first"`):
			t.Errorf("%s: %v", all[n].ID, err)
		}
	}
	if up != 1 {
		t.Errorf("%d have started, want 1: %v", up, errs)
	}
}
