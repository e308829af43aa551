package journal

import (
	"fmt"
	"syscall"

	"github.com/pannier/pannier/internal/errcode"
)

// ErrDiskFull says that the journal's disk is nearly full. Nothing was written.
var ErrDiskFull = errcode.ResourceExhausted.New("the journal's disk is nearly full")

// needed is the free space, in bytes, below which nothing is written. Badger writes
// through memory maps of sparse files: on a full disk it would not fail, but die of
// SIGBUS with the whole host. It is what the memtables and a compaction can take.
const needed = 16 << 20

// needSpace refuses with ErrDiskFull.
func needSpace(dir string) error {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return fmt.Errorf("free space of the journal's disk: statfs %s: %w", dir, err)
	}
	if free := s.Bavail * uint64(s.Bsize); free < needed {
		return fmt.Errorf("%w: %s has %d MiB left, and this needs %d MiB", ErrDiskFull, dir, free>>20, uint64(needed)>>20)
	}
	return nil
}
