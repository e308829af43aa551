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

	"github.com/pannier/pannier/host/internal/system/events"
	"github.com/pannier/pannier/test/lib/check"
)

// beneath shows the drivers' folders as they are below all mounts, until the test ends or hide is called.
func (h *host) beneath(t *testing.T) (dir string, hide func()) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "beneath")
	check.NoError(t, os.Mkdir(dir, 0o700))
	check.NoError(t, unix.Mount(h.Layout.Dir, dir, "", unix.MS_BIND, "")) // not recursive
	hide = func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }
	t.Cleanup(hide)
	return dir, hide
}

// asides reads the events of files that were moved aside: from where, and to where.
func (h *host) asides() map[string]string {
	found := map[string]string{}
	for _, e := range h.Events.Recent(events.DefaultSize) {
		if e.Type == "set-aside" {
			found[e.Details["from"]] = e.Details["to"]
		}
	}
	return found
}

// Files that came beneath a mount point while the volume was mounted are moved aside, and the release goes on.
func TestFilesBeneathAMount(t *testing.T) {
	h := newHost(t)
	h.limits.undo.Min, h.limits.undo.Max = 10*timeout, 10*timeout // one attempt has to do, whatever the jitter
	h.volume(t, full, "a")
	w := h.start(t, spec("w", "a"))
	target := w.Mounts[0].HostPath
	staging := h.record(t, "w").Volumes[0].Staging
	dir, hide := h.beneath(t)
	want := map[string]string{}
	for _, path := range []string{target, staging} {
		rel, err := filepath.Rel(h.Layout.Dir, path)
		check.NoError(t, err)
		check.NoError(t, os.MkdirAll(filepath.Join(dir, rel, "folder"), 0o700))
		check.NoError(t, os.WriteFile(filepath.Join(dir, rel, "folder", "precious"), []byte(path), 0o600))
		want[path] = path
	}
	hide()
	h.stop(t, "w")
	got := h.asides()
	for path, content := range want {
		to := got[path]
		raw, err := os.ReadFile(filepath.Join(to, "folder", "precious"))
		if err != nil || string(raw) != content || !strings.HasPrefix(to, h.Layout.Driver(full)+"/set-aside/") {
			t.Errorf("what was beneath %s is %q at %q (%v); the events say %v", path, raw, to, err, got)
		}
	}
	h.clean(t)
	h.start(t, spec("w", "a"))
	h.stop(t, "w")
	h.clean(t)
}

// A start that would hide files is refused with an error that names them. The files are not touched.
func TestFilesInTheWayOfAStart(t *testing.T) {
	for name, block := range map[string]bool{"target": false, "staging": false, "block device": true} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			want := spec("w", "a")
			if block {
				h.blockVolume(t, full, "a")
			} else {
				h.volume(t, full, "a")
			}
			h.start(t, want)
			path := h.record(t, "w").Volumes[0].Target
			if name == "staging" {
				path = h.record(t, "w").Volumes[0].Staging
			}
			h.stop(t, "w")
			before := len(h.happened())

			file := path
			if block {
				check.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
			} else {
				check.NoError(t, os.MkdirAll(path, 0o700))
				file = filepath.Join(path, "precious")
			}
			check.NoError(t, os.WriteFile(file, []byte("kept"), 0o600))
			_, err := h.Start(context.Background(), want, Options{})
			if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), path) ||
				!strings.Contains(err.Error(), "would hide what is there") {
				t.Errorf("the start returned %v", err)
			}
			verb := map[bool]string{true: "stage a", false: "publish a"}[name == "staging"]
			if got := h.happened()[before:]; slices.Contains(got, verb) {
				t.Errorf("the driver was asked to mount: %v", got)
			}
			if raw, err := os.ReadFile(file); err != nil || string(raw) != "kept" {
				t.Errorf("%s holds other %d bytes now (%v)", file, len(raw), err)
			}
			check.NoError(t, os.RemoveAll(path))
			h.ended(t, "w")
			h.start(t, want)
			h.stop(t, "w")
			h.clean(t)
		})
	}
}

// The error of a step that was refused before it had any effect interrupts another volume's step in mid-call, which had
// one: what that has mounted is unmounted before the claims are released.
func TestARefusedStepInterruptsAnother(t *testing.T) {
	h := newHost(t)
	h.volume(t, full, "a")
	h.volume(t, full, "b")
	want := spec("w", "a", "b")
	h.start(t, want)
	target := h.record(t, "w").Volumes[0].Target
	h.stop(t, "w")
	check.NoError(t, os.MkdirAll(target, 0o700))
	file := filepath.Join(target, "precious")
	check.NoError(t, os.WriteFile(file, nil, 0o600))

	h.settles(time.Millisecond)
	h.impatient()
	staged := make(chan struct{})
	h.on("stage:after b", 1, func(ctx context.Context) error {
		close(staged)
		<-ctx.Done()
		return ctx.Err()
	})
	h.on("stage:before a", 1, func(context.Context) error { <-staged; return nil })
	_, err := h.Start(t.Context(), want, Options{})
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "would hide what is there") {
		t.Errorf("the start returned %v", err)
	}
	h.ended(t, "w")
	check.NoError(t, os.RemoveAll(filepath.Join(h.Layout.Driver(full), "per-workload", "w")))
	h.clean(t)
}
