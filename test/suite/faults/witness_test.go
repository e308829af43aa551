package faults

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testcluster"
)

// watchMounts checks the kernel's mount table at every change until the end of the test. No volume may be
// mounted on two hosts at once.
func watchMounts(t *testing.T, c *testcluster.Cluster) {
	t.Helper()
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		defer table.Close()
		told := map[string]bool{}
		for {
			for volume, hosts := range mountedOn(t, table, c) {
				if len(hosts) > 1 && !told[volume] {
					told[volume] = true
					t.Errorf("%d: volume %s is mounted on the hosts %v at once", boottime(), volume, slices.Sorted(maps.Keys(hosts)))
				}
			}
			select {
			case <-stop:
				return
			default:
			}
			// A change of the mount table is reported as an exceptional condition (proc(5), mountinfo).
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(table.Fd()), Events: unix.POLLPRI}}, 100)
		}
	})
	t.Cleanup(func() { close(stop); watching.Wait() })
}

// mountedOn returns the hosts on which each volume is mounted, by the driver's id of the volume.
func mountedOn(t *testing.T, table *os.File, c *testcluster.Cluster) map[string]map[string]bool {
	on := map[string]map[string]bool{}
	if _, err := table.Seek(0, 0); err != nil {
		t.Error(err)
		return on
	}
	// Root is the directory of the file system that a bind mount shows.
	mounts, err := mountinfo.GetMountsFromReader(table, func(m *mountinfo.Info) (skip, stop bool) {
		return filepath.Base(m.Root) != "data" || !strings.HasSuffix(c.Volumes, filepath.Dir(filepath.Dir(m.Root))), false
	})
	if err != nil {
		t.Error(err)
	}
	for _, m := range mounts {
		volume := filepath.Base(filepath.Dir(m.Root))
		for _, h := range c.Hosts {
			if strings.HasPrefix(m.Mountpoint, h.Dir+"/") {
				if on[volume] == nil {
					on[volume] = map[string]bool{}
				}
				on[volume][h.Name] = true
			}
		}
	}
	return on
}

// deed is a line of the drivers' log: the time (CLOCK_BOOTTIME), the node, the operation, the volume, and a
// path or, for controller operations, the node whose controller did it.
type deed struct {
	at                        int64
	node, what, volume, where string
}

// deeds returns the operations of the drivers of all hosts, in order.
func deeds(t *testing.T, c *testcluster.Cluster) (all []deed) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(c.Volumes, ".log"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // an incomplete line that is still being written
		}
		var d deed
		if _, err := fmt.Sscan(line, &d.at, &d.node, &d.what, &d.volume, &d.where); err != nil {
			t.Fatalf("the drivers' log has the line %q: %v", line, err)
		}
		all = append(all, d)
	}
	return all
}
