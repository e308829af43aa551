package workload

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
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

// Whoever has the volume when it is unmounted keeps its claim: a container at the host's own path, one that has started
// meanwhile, and whatever somebody left of a mount that he has unmounted himself.
func TestStopProvesThatNothingIsLeft(t *testing.T) {
	bound := func(t *testing.T, target string) program {
		t.Helper()
		return runScript(t, true, "mount --make-rprivate /; mount --bind "+target+" "+t.TempDir()+"; "+idle)
	}
	opened := func(t *testing.T, file string) program {
		t.Helper()
		return runScript(t, false, "exec 3>"+file+"; cd /; "+idle)
	}
	for name, hold := range map[string]func(t *testing.T, h *host, target string) (holder func() program){
		"at the host's path": func(t *testing.T, _ *host, target string) func() program {
			aside := t.TempDir()
			p := runScript(t, true, "mount --make-rprivate /; mount --bind "+target+" "+aside+"; mount -t tmpfs root "+filepath.Dir(target)+
				"; mkdir "+target+"; mount --move "+aside+" "+target+"; "+idle)
			return func() program { return p }
		},
		"unmounted by somebody": func(t *testing.T, _ *host, target string) func() program {
			p := bound(t, target)
			check.NoError(t, unix.Unmount(target, 0))
			return func() program { return p }
		},
		"unmounted lazily": func(t *testing.T, _ *host, target string) func() program {
			p := opened(t, target+"/file")
			check.NoError(t, unix.Unmount(target, unix.MNT_DETACH))
			return func() program { return p }
		},
		"bound and unmounted lazily while the host was away": func(t *testing.T, h *host, target string) func() program {
			h.shut(t)
			aside := t.TempDir()
			check.NoError(t, unix.Mount(target, aside, "", unix.MS_BIND, ""))
			p := opened(t, aside+"/file")
			check.NoError(t, unix.Unmount(aside, unix.MNT_DETACH))
			*h = *h.restart(t)
			h.running(t, "w")
			return func() program { return p }
		},
		"begun during the driver's call": func(t *testing.T, h *host, target string) func() program {
			begun := make(chan program, 1)
			h.on("unpublish:before", 1, func(context.Context) error { begun <- bound(t, target); return nil })
			return func() program { return <-begun }
		},
		"by a descriptor that was passed on": func(t *testing.T, _ *host, target string) func() program {
			aside := t.TempDir()
			container := runScript(t, true, "mount --make-rprivate /; mount --bind "+target+" "+aside+"; "+idle)
			p := opened(t, filepath.Join("/proc", strconv.Itoa(container.pid()), "root", aside, "file"))
			check.NoError(t, container.Process.Kill())
			container.reap()
			return func() program { return p }
		},
	} {
		for _, driver := range []string{full, plain} {
			t.Run(name+", "+driver, func(t *testing.T) {
				h := newHost(t)
				h.volume(t, driver, "a")
				target := h.start(t, spec("w", "a")).Mounts[0].HostPath
				holder := hold(t, h, target)
				go func() { _, _ = h.Stop(context.Background(), ref("w"), "the test stops it", nil) }()
				w := h.waiting(t, "w")
				p := holder()
				if !strings.Contains(w.Waiting, "still in use by process "+strconv.Itoa(p.pid())) || !strings.Contains(w.Waiting, `volume "a"`) {
					t.Errorf("it waits for %q, and process %d has it", w.Waiting, p.pid())
				}
				if len(h.ledger.claims()) != 1 {
					t.Errorf("the claim was released: %v", h.happened())
				}
				check.NoError(t, p.Process.Kill())
				p.reap()
				h.ended(t, "w")
				h.clean(t)
			})
		}
	}
}

// Nobody uses a copy of the host's whole tree: it loses the volume with the host.
func TestStopUnmountsCopiesOfTheTree(t *testing.T) {
	for _, driver := range []string{full, plain} {
		h := newHost(t)
		h.volume(t, driver, "a")
		target := h.start(t, spec("w", "a")).Mounts[0].HostPath
		p := runScript(t, true, "mount --make-rprivate /; "+idle)
		h.stop(t, "w")
		table := check.Must(os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid()), "mountinfo")))(t)
		if strings.Contains(string(table), h.dir) {
			t.Errorf("%s: the copy is left, as that of %s was: %s", driver, target, table)
		}
		h.clean(t)
	}
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
