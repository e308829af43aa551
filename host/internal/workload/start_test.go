package workload

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/csi/drivers"
	"github.com/pannier/pannier/host/internal/csi/mounts"
	"github.com/pannier/pannier/host/internal/workload/specs"
	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
)

func TestOneVolumeStartAndStop(t *testing.T) {
	for driver, want := range map[string]string{
		full:    "claim w, attach data, stage data, publish data, unpublish data, unstage data, detached w, freed w",
		divided: "claim w, attach data, stage data, publish data, unpublish data, unstage data, detached w, freed w",
		staged:  "claim w, stage data, publish data, unpublish data, unstage data, detached w, freed w",
		plain:   "claim w, publish data, unpublish data, detached w, freed w",
	} {
		t.Run(driver, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, driver, "data")
			w := h.start(t, spec("w", "data"))
			if len(w.Mounts) != 1 {
				t.Fatalf("mounts: %+v", w.Mounts)
			}
			m := w.Mounts[0]
			if m.Volume != volumeRef("data") || m.Request != "data" || m.Destination != "/data" || m.ReadOnly || m.Block {
				t.Errorf("mount: %+v", m)
			}
			check.NoError(t, os.WriteFile(filepath.Join(m.HostPath, "file"), []byte("x"), 0o600))
			if _, err := os.Stat(filepath.Join(h.driver.base, "external-data", "file")); err != nil {
				t.Errorf("what the workload writes is not in the volume: %v", err)
			}
			if w = h.stop(t, "w"); w.State != Stopped || w.Message != "the test stops it" || w.EndedAt.IsZero() ||
				len(w.Mounts) > 0 {
				t.Errorf("stopped: %+v", w)
			}
			all := h.happened()
			inOrder(t, all, "publish data", "end w", "detached w") // beside the undo
			all = slices.DeleteFunc(all, func(what string) bool { return what == "end w" })
			if got := strings.Join(all, ", "); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			h.clean(t)
		})
	}
}

// meet makes n calls wait for each other: they continue when all have arrived.
func meet(n int) func(ctx context.Context) error {
	var mu sync.Mutex
	all := make(chan struct{})
	return func(ctx context.Context) error {
		mu.Lock()
		if n--; n == 0 {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all:
			return nil
		case <-ctx.Done():
		}
		select {
		case <-all: // all have met
			return nil
		default:
			return context.Cause(ctx)
		}
	}
}

func TestVolumesInParallel(t *testing.T) {
	h := newHost(t)
	for _, id := range []string{"a", "b", "c"} {
		h.volume(t, full, id)
	}
	for _, label := range []string{
		"attach:before", "stage:before", "publish:before", "unpublish:before",
		"unstage:before",
	} {
		h.on(label, 0, meet(3))
	}
	if w := h.start(t, spec("w", "a", "b", "c")); len(w.Mounts) != 3 {
		t.Errorf("mounts: %+v", w.Mounts)
	}
	if n := h.count("claim w"); n != 1 {
		t.Errorf("%d commands for the claims of one workload", n)
	}
	h.stop(t, "w")
	h.clean(t)
}

func TestNoVolumes(t *testing.T) {
	h := newHost(t)
	h.start(t, spec("w"))
	h.stop(t, "w")
	h.clean(t)
}

func TestReadOnly(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "data")
	h.volume(t, full, "archive", claim.Capability{AccessMode: claim.MultiNodeReaderOnly, AttachmentMode: claim.FileSystem})
	s := spec("w", "data", "archive")
	s.Volumes[0].ReadOnly = true
	w := h.start(t, s)
	for _, m := range w.Mounts {
		if !m.ReadOnly {
			t.Errorf("%s is not read-only", m.Request)
		}
		if err := os.WriteFile(filepath.Join(m.HostPath, "x"), nil, 0o600); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing to %s: %v", m.Request, err)
		}
	}
	for _, c := range h.ledger.claims() {
		if c.Mode != claim.Read || c.DriverNodeID != "node-of-full" || c.Node != here {
			t.Errorf("claim: %+v", c)
		}
	}
	h.stop(t, "w")
	h.clean(t)
}

func TestBlockDevice(t *testing.T) {
	for _, driver := range []string{full, plain} {
		t.Run(driver, func(t *testing.T) {
			h := newHost(t)
			h.blockVolume(t, driver, "disk")
			w := h.start(t, spec("w", "disk"))
			if number, err := mounts.Device(w.Mounts[0].HostPath); number == "" || err != nil || !w.Mounts[0].Block {
				t.Errorf("mount: %+v (%v)", w.Mounts[0], err)
			}
			h = h.restart(t) // nothing of it is lost
			h.running(t, "w")
			h.stop(t, "w")
			if n := h.count("publish disk"); n > 0 {
				t.Errorf("it was published %d times again", n)
			}
			h.clean(t)
		})
	}
}

// A reader gets no block device that it could write to: some drivers ignore readonly for block devices.
func TestReadOnlyBlockDevice(t *testing.T) {
	h := newHost(t)
	h.blockVolume(t, full, "disk")
	reader := spec("w", "disk")
	reader.Volumes[0].ReadOnly = true
	_, err := h.Start(t.Context(), reader, Options{})
	if err == nil || !strings.Contains(err.Error(), "can be written to") {
		t.Errorf("a device that can be written to: %v", err)
	}
	h.clean(t)
	device, err := filepath.EvalSymlinks(filepath.Join(h.driver.base, "external-disk"))
	check.NoError(t, err)
	t.Cleanup(func() { check.NoError(t, exec.Command("blockdev", "--setrw", device).Run()) }) // it outlives the loop device
	check.NoError(t, exec.Command("blockdev", "--setro", device).Run())
	h.start(t, reader)
	h.stop(t, "w")
	h.clean(t)
}

// A volume has one claim of a workload, one staging mount and one attachment, however it is used.
func TestOneVolumeTwice(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "data")
	s := spec("w")
	s.Volumes = []specs.VolumeRequest{
		{Name: "first", Source: "data", Destination: "/1"},
		{Name: "second", Source: "data", Destination: "/2", MountOptions: claim.MountOptions{Flags: []string{"noatime"}}},
		{Name: "reader", Source: "data", Destination: "/3", ReadOnly: true},
	}
	w := h.start(t, s)
	seen := map[string]bool{}
	for _, m := range w.Mounts {
		seen[m.HostPath] = true
	}
	if len(seen) != 3 {
		t.Errorf("mounts: %+v", w.Mounts)
	}
	if a, s := h.count("attach data"), h.count("stage data"); a != 1 || s != 1 {
		t.Errorf("%d attachments and %d staging mounts, want 1 and 1", a, s)
	}
	if c := h.ledger.claims(); len(c) != 1 || c[0].Mode != claim.Write {
		t.Errorf("claims: %+v", c)
	}
	h.stop(t, "w")
	if n := h.count("unstage data"); n != 1 {
		t.Errorf("unstaged %d times, want once", n)
	}
	h.clean(t)
}

func TestRefusedStartsTouchNothing(t *testing.T) {
	single := claim.Capability{AccessMode: claim.SingleNodeWriter, AttachmentMode: claim.FileSystem}
	for name, c := range map[string]struct {
		breakIt func(t *testing.T, h *host, s *Spec)
		want    string
		is      error
	}{
		"unknown volume": {
			func(_ *testing.T, _ *host, s *Spec) { s.Volumes[1].Source = "nowhere" },
			`volume block "b": volume "nowhere" is not registered`, claim.ErrVolumeNotFound,
		},
		"unknown driver": {
			func(t *testing.T, h *host, _ *Spec) { h.volume(t, "none", "b") }, `volume block "b": is not on this node`,
			drivers.ErrNotFound,
		},
		"no such mode": {
			func(_ *testing.T, _ *host, s *Spec) { s.Volumes[1].AccessMode = claim.MultiNodeMultiWriter },
			"no capability with access_mode", claim.ErrUnsupported,
		},
		"which mode": {func(t *testing.T, h *host, _ *Spec) {
			h.volume(t, full, "b", single,
				claim.Capability{AccessMode: claim.SingleNodeMultiWriter, AttachmentMode: claim.FileSystem})
		}, "several capabilities", claim.ErrUnsupported},
		"no node service": {func(t *testing.T, h *host, _ *Spec) {
			h.drivers.set(full, func(d *drivers.Driver) { d.Fingerprint.Node = nil })
		}, "no node service", nil},
		"another rack": {
			func(t *testing.T, h *host, _ *Spec) {
				h.drivers.set(full, func(d *drivers.Driver) {
					d.Fingerprint.Node.AccessibleTopology = storage.Topology{"rack": "R2"}
				})
				b, err := h.ledger.volume("b")
				check.NoError(t, err)
				b.Topologies = []claim.Topology{{Segments: map[string]string{"rack": "R1"}}}
				check.NoError(t, h.ledger.add(b))
			}, `volume block "b": the node cannot reach the volume: volume "b" is in rack=R1, node "here" has rack=R2`,
			claim.ErrUnreachable,
		},
		"unhealthy driver": {func(t *testing.T, h *host,
			_ *Spec,
		) {
			h.volumes.Calls.DriverWait = 1
			h.drivers.healthy(full, false)
		}, "the driver is not healthy: the test took it away", nil},
		"held by another": {func(t *testing.T, h *host,
			_ *Spec,
		) {
			h.volume(t, full, "b", single)
			h.start(t, spec("other", "b"))
		}, `held by workload "other"`, claim.ErrHeld},
		"used in two ways": {func(t *testing.T, h *host, s *Spec) {
			h.volume(t, full, "b", single,
				claim.Capability{AccessMode: claim.SingleNodeMultiWriter, AttachmentMode: claim.FileSystem})
			s.Volumes = append(s.Volumes, specs.VolumeRequest{
				Name: "c", Source: "b", AccessMode: claim.SingleNodeMultiWriter, Destination: "/c",
			})
			s.Volumes[1].AccessMode = claim.SingleNodeWriter
		}, "one workload uses a volume in one way", nil},
		"invalid": {func(_ *testing.T, _ *host, s *Spec) { s.Volumes[1].Destination = "/a" }, `is that of volume "a" too`, specs.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, full, "a")
			h.volume(t, full, "b")
			s := spec("w", "a", "b")
			c.breakIt(t, h, &s)
			before := h.happened()
			_, err := h.Start(t.Context(), s, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) {
				t.Fatalf("got %v, want %q (%v)", err, c.want, c.is)
			}
			if !errors.Is(c.is, specs.ErrInvalid) && !errors.Is(err, ErrFailed) {
				t.Errorf("%v is no ErrFailed", err)
			}
			if after := h.happened(); !slices.Equal(before, after) {
				t.Errorf("calls were made: %v", after[len(before):])
			}
			if slices.ContainsFunc(h.ledger.claims(), func(c claim.Claim) bool { return c.Workload == s.WorkloadRef }) {
				t.Error("it holds claims")
			}
		})
	}
}

// A start that had succeeded is reported as failed if the workload was stopped before the caller was told: it has no
// mounts any more.
func TestStoppedBeforeTheAnswer(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	stop := sync.OnceFunc(func() {
		h.running(t, "w")
		if _, err := h.Stop(t.Context(), ref("w"), "somebody else wants it so", nil); err != nil {
			t.Error(err)
		}
	})
	w, err := h.Start(t.Context(), spec("w", "a"), Options{Progress: func(Step) { stop() }})
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "somebody else wants it so") || w.State != Stopped ||
		len(w.Mounts) > 0 {
		t.Errorf("%s with %v, %v", w.State, w.Mounts, err)
	}
}

// A node mounts what the claim was granted on, whatever it read of the volume before.
func TestVolumeIsRedefinedDuringAStart(t *testing.T) {
	for _, driver := range []string{full, plain} {
		for to, fails := range map[string]string{driver: "", staged: "is of driver \"" + staged + "\" now"} {
			t.Run(driver+" to "+to, func(t *testing.T) {
				h := newHost(t)
				h.volume(t, driver, "a")
				check.NoError(t, os.MkdirAll(filepath.Join(h.driver.base, "external-other"), 0o700))
				h.on("claim:before", 1, func(context.Context) error {
					v, err := h.ledger.volume("a")
					v.PluginID, v.ExternalID, v.Context = to, "external-other", map[string]string{"of": "external-other"}
					return errors.Join(err, h.ledger.add(v))
				})
				w, err := h.Start(t.Context(), spec("w", "a"), Options{})
				if fails != "" {
					if err == nil || !strings.Contains(err.Error(), fails) {
						t.Errorf("the start says %v", err)
					}
					h.ended(t, "w")
					h.clean(t)
					return
				}
				check.NoError(t, err)
				if m := at(w.Mounts[0].HostPath); m == nil || filepath.Base(m.Root) != "external-other" {
					t.Errorf("it has mounted %+v", m)
				}
				h.stop(t, "w")
				h.clean(t)
			})
		}
	}
}
