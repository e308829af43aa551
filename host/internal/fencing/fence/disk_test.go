package fence

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/powerloss"
	"github.com/pannier/pannier/test/lib/testbin"
)

// diskOfItsOwn makes a fence's folder on a separate file system.
func diskOfItsOwn(t *testing.T, fstype string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	disk := filepath.Join(dir, "disk")
	must(t, os.Mkdir(disk, 0o700))
	must(t, unix.Mount(loop(t, image(t, dir, fstype)), disk, fstype, 0, ""))
	t.Cleanup(func() { unmountQuietly(disk) })
	return endFence(t, disk)
}

// The fence acts, and its agent can still send it a new deadline, while every write to its folder hangs.
func TestDiskThatHangs(t *testing.T) {
	if !inOwnNamespace(t) {
		return
	}
	v, dir := bound(t), diskOfItsOwn(t, "ext4")
	c := open(t, dir)
	update(t, c, func(c Change) { c.Protect(v.mounts...) })
	fence := fencePID(t, dir)
	w := writer(t, filepath.Join(v.target, "times"))
	thaw := powerloss.Freeze(t, dir)
	deadline := boottime.Now().Add(2 * time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	if err := c.Update(ctx, func(c Change) { c.SetTimes(Times{Stop: deadline, Deadline: deadline}) }); !errors.Is(err,
		ErrNotKept) {
		t.Errorf("telling the fence what it cannot save: %v", err)
	}
	notBefore(t, "the writer ended", w.ends(t), deadline)
	eventually(t, "the end of the mounts", func() bool { return !mounted(t, v.target) && !mounted(t, v.staging) })
	if now := fencePID(t, dir); now != fence {
		t.Errorf("the fence was replaced: it is process %d, not %d", now, fence)
	}
	thaw()
	if r := finished(t, dir, 1); len(r.Killed) != 1 || len(r.Unmounted) != 2 {
		t.Errorf("the report is %+v", r)
	}
	eventually(t, "the state on the disk", func() bool {
		s, err := loadState(dir)
		must(t, err)
		return s.Times.Deadline == deadline
	})
}

// The whole program is in memory, because the disk that contains it may hang as well.
func TestProgramIsInMemory(t *testing.T) {
	testbin.RequireRoot(t, "locked memory")
	dir := folder(t)
	open(t, dir)
	// See proc_pid_smaps(5).
	maps, err := os.ReadFile(filepath.Join(procfs.Dir(fencePID(t, dir)), "smaps"))
	must(t, err)
	mappings, size, inProgram := 0, "", false
	for line := range strings.Lines(string(maps)) {
		words := strings.Fields(line)
		switch {
		case !strings.HasSuffix(words[0], ":"):
			if inProgram = len(words) == 6 && words[5] == os.Args[0]; inProgram {
				mappings++
			}
		case words[0] == "Size:":
			size = words[1]
		case inProgram && words[0] == "Rss:" && words[1] != size:
			t.Errorf("of a mapping of %s kB of the program %s kB are in memory", size, words[1])
		}
	}
	if mappings < 3 {
		t.Errorf("%d mappings of the program were found", mappings)
	}
}
