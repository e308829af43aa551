package bench

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"golang.org/x/sync/errgroup"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/bench/measure"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/usage"
)

// rest is how long a host is left alone before its memory is measured.
const rest = 35 * time.Second

// floorVolumes is TestMain of the floor: a process that only has the stores open, and in them as many records, each
// written with an entry of raft's log of its own. It has read all of them once.
func floorVolumes(dir, count string) error {
	ledger, n, err := openStores(dir)
	if err != nil {
		return err
	}
	volumes, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	var writing errgroup.Group
	writing.SetLimit(16)
	for range volumes {
		writing.Go(func() error { return n.Apply(make([]byte, volumeRecord), 0).Error() })
	}
	if err := writing.Wait(); err != nil {
		return err
	}
	err = ledger.View(func(tx *badger.Txn) error {
		records := tx.NewIterator(badger.DefaultIteratorOptions)
		defer records.Close()
		read := 0
		for records.Rewind(); records.Valid(); records.Next() {
			if err := records.Item().Value(func([]byte) error { read++; return nil }); err != nil {
				return err
			}
		}
		if read != volumes {
			return fmt.Errorf("%d records were read", read)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "done"), nil, 0o600); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// volumeRecord is the size of such a record, in bytes. The ledger's of one of the volumes has 190, and keys besides.
const volumeRecord = 300

// measureMemory creates volumes, which makes calls to the driver through csi-bridge for each of them, lists
// them, and starts and stops workloads with some of them.
func measureMemory(b *testing.B, r *table.Section) {
	const volumes, used = 10_000, 200
	ctx := b.Context()
	h := newHost(b)
	h.Start()
	c := caller{b, h.Client()}
	id := func(i int) string { return fmt.Sprintf("volume-%05d", i) }
	parallel(b, volumes, 16, func(i int) error {
		_, err := c.Volumes.CreateVolume(ctx, &hostv1.CreateVolumeRequest{Spec: volumeSpec(id(i))})
		return err
	})
	for i := range measure.Turns(used, 20*time.Second) {
		took(b)(c.start(ctx, id(i)))
		took(b)(c.stop(ctx, id(i)))
	}
	list, err := c.Volumes.ListVolumes(ctx, &hostv1.ListVolumesRequest{})
	if err != nil || len(list.GetVolumes()) != volumes {
		b.Fatalf("%d volumes are listed: %v", len(list.GetVolumes()), err)
	}
	dir := b.TempDir()
	bare := startFloor(b, "volumes", dir, strconv.Itoa(volumes))
	check.Eventually(b, "the floor has as many records", func() bool {
		_, err := os.Stat(filepath.Join(dir, "done"))
		return err == nil
	})
	bridge := processOf(b, h, "csi-bridge")
	r.Add(table.Row{
		What: "the host at its peak, while it lists all of them", Value: usage.Memory(b, h.PID(), "VmHWM"),
		Unit: "MiB",
	})
	time.Sleep(rest)
	for _, p := range []struct {
		name   string
		pid    int
		target float64
	}{{"the host", h.PID(), 112}, {"csi-bridge", bridge, 24}, {"a process that only has the stores", bare.Pid, 0}} {
		r.Add(
			table.Row{
				What: "resident memory of " + p.name + ", half a minute later", Value: usage.Memory(b, p.pid, "VmRSS"),
				Unit: "MiB", AtMost: p.target,
			},
			table.Row{What: "of that not mapped from files", Value: usage.Memory(b, p.pid, "RssAnon"), Unit: "MiB"},
		)
	}
}

// processOf returns the host's process that runs a program with that name.
func processOf(b *testing.B, h *testhost.Host, program string) int {
	b.Helper()
	for _, pid := range h.Processes() {
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && strings.HasSuffix(exe, "/"+program) {
			return pid
		}
	}
	b.Fatalf("no process runs %s", program)
	return 0
}
