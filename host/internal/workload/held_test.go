package workload

import (
	"context"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
)

// While another mount namespace has a copy of the volume, the claim is kept.
func TestStopWaitsForCopiesInOtherNamespaces(t *testing.T) {
	for _, driver := range []string{full, plain} {
		t.Run(driver, func(t *testing.T) {
			h := newHost(t)
			h.volume(t, driver, "a")
			target := h.start(t, spec("w", "a")).Mounts[0].HostPath
			p := runScript(t, true, "mount --bind "+target+" "+t.TempDir()+"; "+idle)
			go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
			w := h.waiting(t, "w")
			if !strings.Contains(w.Waiting, "still in use by process") || !strings.Contains(w.Waiting, `volume "a"`) {
				t.Errorf("it waits for %q", w.Waiting)
			}
			if h.count("unpublish a") > 0 || len(h.ledger.claims()) != 1 || at(target) == nil {
				t.Errorf("it was touched: %v", h.happened())
			}
			check.NoError(t, p.Process.Kill())
			p.reap()
			h.ended(t, "w")
			h.clean(t)
		})
	}
}

// While the volume is bound elsewhere on the host, the claim is kept.
func TestStopWaitsForCopiesOnTheHost(t *testing.T) {
	h := newHost(t)
	h.volume(t, plain, "a")
	target, aside := h.start(t, spec("w", "a")).Mounts[0].HostPath, t.TempDir()
	check.NoError(t, unix.Mount(target, aside, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(aside, unix.MNT_DETACH) })
	go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
	if w := h.waiting(t, "w"); !strings.Contains(w.Waiting, "umount "+aside) {
		t.Errorf("it waits for %q", w.Waiting)
	}
	if len(h.ledger.claims()) != 1 {
		t.Error("the claim was released")
	}
	check.NoError(t, unix.Unmount(aside, 0))
	h.ended(t, "w")
	h.clean(t)
}

// The holders of a volume are those who have copies of its mount; the host's own mounts are none.
func TestHolders(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	target := h.start(t, spec("w", "a")).Mounts[0].HostPath
	if held, err := h.Holders(ref("w")); err != nil || len(held) != 0 {
		t.Errorf("nobody has it: %v, %v", held, err)
	}
	aside := t.TempDir()
	p := runScript(t, true, "mount --bind "+target+" "+aside+"; "+idle)
	held, err := h.Holders(ref("w"))
	if err != nil || len(held) != 1 || held[0].PID != p.pid() || held[0].Path != aside || held[0].Request == "" {
		t.Errorf("process %d has it: %+v, %v", p.pid(), held, err)
	}
	check.NoError(t, p.Process.Kill())
	p.reap()
	h.stop(t, "w")
	if held, err := h.Holders(ref("w")); err != nil || len(held) != 0 {
		t.Errorf("the workload has ended: %v, %v", held, err)
	}
	if _, err := h.Holders(ref("other")); err == nil {
		t.Error("another workload has holders")
	}
	h.clean(t)
}
