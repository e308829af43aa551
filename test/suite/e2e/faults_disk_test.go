package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// disk is a small separate file system under the host's data directory.
type disk struct{ dir, filler string }

func newDisk(t *testing.T, h *testhost.Host, size int64) disk {
	t.Helper()
	image := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(image)
	must(t, err)
	must(t, errors.Join(f.Truncate(size), f.Close()))
	d := disk{h.Path("data"), h.Path("data/filler")}
	must(t, os.Mkdir(d.dir, 0o700))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-m", "0", image}, {"mount", "-o", "loop", image, d.dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	return d
}

// leave fills the disk until only that many bytes are free.
func (d disk) leave(t *testing.T, free int64) {
	t.Helper()
	f, err := os.OpenFile(d.filler, os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	defer f.Close()
	var s unix.Statfs_t
	must(t, unix.Fstatfs(int(f.Fd()), &s))
	info, err := f.Stat()
	must(t, err)
	for more := int64(s.Bavail)*s.Bsize - free; more > 0; more /= 2 { // the file's own blocks take some
		if err := unix.Fallocate(int(f.Fd()), 0, info.Size(), more); err == nil || !errors.Is(err, unix.ENOSPC) {
			must(t, err)
			return
		}
	}
}

// The disk of the data directory fills up. The host refuses starts and reports why, continues to release
// volumes while some space is left, survives without any, and recovers by itself when there is space again.
// No claim is lost.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	d := faultydriver.Start(t, faultydriver.Config{Mounts: true, NodeID: "faulty-a"})
	h := testhost.New(t, fmt.Sprintf("csi_driver \"faulty\" {\n  endpoint = %q\n}\n", d.Endpoint()))
	disk := newDisk(t, h, 256<<20)
	h.Start()
	c := h.Client()
	for _, id := range []string{"a", "b", "c"} {
		must(t, register(t.Context(), c, d, id, "single-node-writer"))
	}
	must(t, start(t.Context(), c, "one", "a"))
	must(t, start(t.Context(), c, "two", "b"))

	disk.leave(t, 40<<20)
	full(t, "a start on a disk that is nearly full", start(t.Context(), c, "three", "c"))
	full(t, "a new volume", register(t.Context(), c, d, "d", "single-node-writer"))
	h.Refused(1, []string{"nearly full", "data"}, "workload", "start", workload(h, "four", "c", ""))
	must(t, stop(t.Context(), c, "one"))

	disk.leave(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := stop(ctx, c, "two"); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
		t.Errorf("a stop on a full disk returned %v", err)
	}
	full(t, "a start on a full disk", start(t.Context(), c, "three", "c"))
	claims(t, h, 1)
	h.Kill()
	cmd := h.Command("agent", "-config", h.Path("agent.hcl"))
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "nearly full") {
		t.Errorf("an agent on a full disk ended with %v: %s", err, out)
	}

	must(t, os.Remove(disk.filler))
	h.Start()
	must(t, stop(t.Context(), c, "two"))
	claims(t, h, 0)
	must(t, startAndStop(t.Context(), c, "three", "a", "b", "c"))
	claims(t, h, 0)
	if got := h.Mounts(); len(got) != 1 { // the disk's own
		t.Errorf("what is mounted is %q", got)
	}
	lawful(t, d)
}

func full(t *testing.T, what string, err error) {
	t.Helper()
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "nearly full") {
		t.Errorf("%s returned %v", what, err)
	}
}

func claims(t *testing.T, h *testhost.Host, want int64) {
	t.Helper()
	if s, err := h.Status(); err != nil || s.GetClaims() != want {
		t.Errorf("%d claims, want %d (%v)", s.GetClaims(), want, err)
	}
}
