package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testhost"
)

const usage = "rw-file-system-single-node-writer"

func stagingPath(h *testhost.Host, volume string) string {
	return h.Path("data/csi/faulty/staging/default/" + volume + "/" + usage)
}

func targetPath(h *testhost.Host, workload, volume string) string {
	return h.Path("data/csi/faulty/per-workload/" + workload + "/default/" + volume + "/" + usage + "/" + volume)
}

// A process on the host has a file in the volume open. A stop waits, reports the reason, keeps the claim, and
// finishes when the file is closed.
func TestBusyMount(t *testing.T) {
	t.Parallel()
	for name, path := range map[string]func(h *testhost.Host) string{
		"target":  func(h *testhost.Host) string { return targetPath(h, "w", "v") },
		"staging": func(h *testhost.Host) string { return stagingPath(h, "v") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, d, _ := faulty(t)
			c := h.Client()
			must(t, register(t.Context(), c, d, "v", "single-node-writer"))
			must(t, start(t.Context(), c, "w", "v"))
			open, err := os.Open(path(h))
			must(t, err)
			defer open.Close()
			stopped := make(chan error, 1)
			go func() { stopped <- stop(t.Context(), c, "w") }()
			h.Eventually("the stop says what it waits for", func() error {
				if got := h.Run("workload", "status", "w"); !strings.Contains(got, "stopping") || !strings.Contains(got, "busy") {
					return fmt.Errorf("the status is %s", got)
				}
				return nil
			})
			if s, err := h.Status(); err != nil || s.GetClaims() != 1 {
				t.Errorf("%d claims while the mount is busy (%v)", s.GetClaims(), err)
			}
			must(t, open.Close())
			must(t, <-stopped)
			h.NothingInUse()
			must(t, startAndStop(t.Context(), c, "w", "v"))
			h.NothingInUse()
			lawful(t, d)
		})
	}
}

// held starts a host with a workload "w", in whose volume "v" a process of the host has its directory until end.
func held(t *testing.T) (h *testhost.Host, c *api.Client, holder int, end func()) {
	t.Helper()
	h, d, _ := faulty(t)
	c = h.Client()
	must(t, register(t.Context(), c, d, "v", "single-node-writer"))
	must(t, start(t.Context(), c, "w", "v"))
	cmd := h.InNamespace("sleep", "1000")
	cmd.Dir = targetPath(h, "w", "v")
	must(t, cmd.Start())
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(end)
	return h, c, cmd.Process.Pid, end
}

// A release that has to wait shows everywhere, with the same number of tries, and with what to do about it.
func TestStuckReleaseIsSeen(t *testing.T) {
	t.Parallel()
	h, c, holder, end := held(t)
	stopped := make(chan error, 1)
	go func() { stopped <- stop(t.Context(), c, "w") }()
	kill := fmt.Sprintf("kill %d", holder)
	h.Eventually("it is seen everywhere", func() error {
		s, err := h.Status()
		if err != nil || len(s.GetReleases()) != 1 || s.GetReleases()[0].GetTries() < 3 {
			return fmt.Errorf("the status is %v (%w)", s.GetReleases(), err)
		}
		explained, err := c.Volumes.ExplainVolume(t.Context(), &hostv1.ExplainVolumeRequest{Id: "v"})
		if err != nil {
			return err
		}
		after, err := h.Status()
		if err != nil {
			return err
		}
		before, now := s.GetReleases()[0].GetTries(), after.GetReleases()[0].GetTries()
		if n := explained.GetClaims()[0].GetTries(); n < before || n > now {
			return fmt.Errorf("explained with %d tries, while the status said %d to %d", n, before, now)
		}
		if got := explained.GetClaims()[0].GetCommand(); got != kill {
			return fmt.Errorf("the command is %q: %v", got, explained)
		}
		return nil
	})
	for _, args := range [][]string{{"status"}, {"workload", "status", "w"}, {"volume", "explain", "v"}} {
		if out := h.Run(args...); !strings.Contains(out, kill) || !strings.Contains(out, "(sleep)") {
			t.Errorf("pannier %s does not say what to stop:\n%s", strings.Join(args, " "), out)
		}
	}
	if got := metric(t, h, `pannier_workload_releases_waiting{reason="in_use"}`); got != 1 {
		t.Errorf("%v releases wait by the metrics", got)
	}
	if got := metric(t, h, "pannier_workload_release_failed_tries_total"); got < 3 {
		t.Errorf("%v tries have failed by the metrics", got)
	}
	if events := h.Run("events", "-recent", "1000"); !strings.Contains(events, "release-waits") ||
		!strings.Contains(events, "try 1 failed") || strings.Contains(events, "try 3 failed") {
		t.Errorf("the events are:\n%s", events)
	}
	end()
	must(t, <-stopped)
	h.NothingInUse()
	if got := metric(t, h, `pannier_workload_releases_waiting{reason="in_use"}`); got != 0 {
		t.Errorf("%v releases wait by the metrics after the end", got)
	}
}

// A detach that has to wait says for what, and gives up waiting when it was told to; the release goes on.
func TestDetachSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	h, c, holder, end := held(t)
	said, err := os.Create(h.Path("said"))
	must(t, err)
	defer said.Close()
	waits := h.Command("volume", "detach", "v", "a")
	waits.Stderr = said
	must(t, waits.Start())
	leave := sync.OnceFunc(func() {
		_ = waits.Process.Kill()
		_ = waits.Wait()
	})
	t.Cleanup(leave)
	h.Eventually("it says what it waits for", func() error {
		text, err := os.ReadFile(h.Path("said"))
		for _, word := range []string{
			`workload "w" waits for node "a" to unmount it`, "(sleep)", fmt.Sprintf("kill %d", holder),
		} {
			if !strings.Contains(string(text), word) {
				return fmt.Errorf("it does not say %q: %s (%w)", word, text, err)
			}
		}
		return nil
	})
	leave()
	h.Refused(1, []string{"within 1ms", "the release continues", "pannier volume explain v"},
		"volume", "detach", "-timeout", "1ms", "v", "a")
	h.Refused(2, []string{"-timeout"}, "volume", "detach", "-timeout", "-3s", "v", "a")
	if s, err := h.Status(); err != nil || s.GetClaims() != 1 {
		t.Errorf("%d claims while the mount is busy (%v)", s.GetClaims(), err)
	}
	end()
	h.NothingInUse()
	must(t, start(t.Context(), c, "w", "v"))
	h.Run("volume", "detach", "-timeout", "1m", "v", "a")
	h.NothingInUse()
}

// metric reads one number that has no labels.
func metric(t *testing.T, h *testhost.Host, name string) (value float64) {
	t.Helper()
	s, err := h.Status()
	must(t, err)
	resp, err := http.Get("http://" + s.GetHttpAddress() + "/v1/metrics")
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			must(t, err)
			return value
		}
	}
	t.Fatalf("there is no %s in\n%s", name, text)
	return 0
}

// A file system that lies on a volume is still in use after the volume's own mounts are gone. A stop waits, reports it,
// keeps the claim, and finishes when it is unmounted.
func TestVolumeUnderAnotherFileSystem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ attachment, mount, says string }{
		"an overlay": {
			"file-system",
			"cd $1; mkdir up work; mount -t overlay -o lowerdir=$2,upperdir=$1/up,workdir=$1/work overlay $2", "umount ",
		},
		"an overlay by relative names": {
			"file-system", "cd $1; mkdir low up work; mount -i -t overlay -o lowerdir=low,upperdir=up,workdir=work overlay $2",
			"is in use",
		},
		"on the block device": {"block-device", "mkfs.ext4 -q $1; mount -t ext4 $1 $2", "umount "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := testhost.New(t, testhost.LocalDriver(t))
			h.Start()
			h.Run("volume", "create", h.Write("data.hcl", volumeSpec(drivers[0], "data", "single-node-writer", c.attachment, "")))
			h.Run("workload", "start", workload(h, "w", "data", ""))
			target := h.Path("data/csi/local/per-workload/w/default/data/rw-" + c.attachment + "-single-node-writer/data")
			top := h.Path("top")
			must(t, os.Mkdir(top, 0o700))
			t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
			if out, err := exec.Command("sh", "-ec", c.mount, "sh", target, top).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", c.mount, err, out)
			}
			stopped := make(chan error, 1)
			go func() { stopped <- stop(t.Context(), h.Client(), "w") }()
			h.Eventually("the stop says what it waits for", func() error {
				if got := h.Run("workload", "status", "w"); !strings.Contains(got, "stopping") || !strings.Contains(got, c.says) {
					return fmt.Errorf("the status is %s", got)
				}
				return nil
			})
			if s, err := h.Status(); err != nil || s.GetClaims() != 1 {
				t.Errorf("%d claims while the volume is in use (%v)", s.GetClaims(), err)
			}
			must(t, unix.Unmount(top, 0))
			must(t, <-stopped)
			h.NothingInUse()
		})
	}
}

// Something foreign is in the way of a mount. A start is refused without calling the driver, and works when
// the obstacle is removed. A mount may be left from an earlier use of the volume: it is unmounted before the claim is
// freed.
func TestForeignThingInTheWay(t *testing.T) {
	t.Parallel()
	at := map[string]func(h *testhost.Host) string{
		"staging": func(h *testhost.Host) string { return stagingPath(h, "v") },
		"target":  func(h *testhost.Host) string { return targetPath(h, "w", "v") },
	}
	for name, way := range map[string]struct {
		put      func(h *testhost.Host, path string) error
		takeAway func(path string) error
		says     string
	}{
		"mount": {
			func(_ *testhost.Host, path string) error {
				return firstOf(os.MkdirAll(path, 0o700), func() error { return unix.Mount("tmpfs", path, "tmpfs", 0, "") })
			},
			func(path string) error {
				return firstOf(unix.Unmount(path, 0), func() error { return os.Remove(path) })
			},
			"tmpfs",
		},
		"link": {
			func(h *testhost.Host, path string) error {
				return firstOf(os.MkdirAll(filepath.Dir(path), 0o700),
					func() error { return os.Symlink(h.Path("elsewhere"), path) })
			},
			os.Remove, "link",
		},
		"link above it": {
			func(h *testhost.Host, path string) error {
				above := filepath.Dir(path)
				return firstOf(os.MkdirAll(filepath.Dir(above), 0o700),
					func() error { return os.Symlink(h.Path("elsewhere"), above) })
			},
			func(path string) error { return os.Remove(filepath.Dir(path)) }, "link",
		},
	} {
		for place, path := range at {
			t.Run(name+" at the "+place, func(t *testing.T) {
				t.Parallel()
				h, d, _ := faulty(t)
				c, path := h.Client(), path(h)
				must(t, os.Mkdir(h.Path("elsewhere"), 0o700))
				must(t, os.WriteFile(h.Path("elsewhere/precious"), []byte("kept"), 0o600))
				must(t, register(t.Context(), c, d, "v", "single-node-writer"))
				must(t, way.put(h, path))
				err := start(t.Context(), c, "w", "v")
				if err == nil || !strings.Contains(err.Error(), way.says) {
					t.Errorf("the start returned %v", err)
				}
				if left, err := os.ReadDir(h.Path("elsewhere")); err != nil || len(left) != 1 {
					t.Errorf("outside the host's directory there are %v (%v)", left, err)
				}
				if n := len(d.Calls("NodePublishVolume")); n != 0 {
					t.Errorf("the driver got %d publish calls", n)
				}
				if s, err := h.Status(); err != nil || s.GetClaims() != 0 {
					t.Errorf("%d claims after a refused start (%v)", s.GetClaims(), err)
				}
				if name == "mount" { // it was where only drivers mount, and is gone before the claim
					h.NothingInUse()
				} else {
					must(t, way.takeAway(path))
				}
				must(t, startAndStop(t.Context(), c, "w", "v"))
				h.NothingInUse()
				lawful(t, d)
			})
		}
	}
}

// csi-local refuses to remove files beneath its mount point. They do not block a release.
func TestFilesBeneathAMount(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	target := h.Path("data/csi/local/per-workload/w/default/data/" + usage + "/data")
	beneath := h.Path("beneath")
	must(t, os.Mkdir(beneath, 0o700))
	must(t, unix.Mount(filepath.Dir(target), beneath, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(beneath, unix.MNT_DETACH) })
	must(t, os.WriteFile(filepath.Join(beneath, "data", "file"), []byte("stray"), 0o600))
	must(t, unix.Unmount(beneath, 0))
	h.Run("workload", "stop", "w")
	setAside(t, h, target, "stray")
	h.NothingInUse()
	h.Run("workload", "run", h.Path("w.hcl"), "--", "true")
	h.NothingInUse()
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func firstOf(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}
