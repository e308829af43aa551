package cluster

import (
	"fmt"
	"syscall"

	"github.com/pannier/pannier/cluster/command"
)

// Badger writes through memory maps of sparse files, so a disk that is full is
// not an error to it but a SIGBUS to the whole host. Commands are refused
// before that: those that add something below spaceToGrow, those that release
// something below spaceToRelease, where opening is refused too. What lies between
// and below is for the memtables, a compaction and the log's next file.
const (
	spaceToGrow    = 64 << 20 // bytes
	spaceToRelease = 16 << 20 // bytes
)

// freeSpace is what an ordinary user may still write where dir is, in bytes.
func freeSpace(dir string) (uint64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("free space of the ledger's disk: statfs %s: %w", dir, err)
	}
	return s.Bavail * uint64(s.Bsize), nil
}

// needSpace refuses with ErrDiskFull.
func needSpace(dir string, need uint64) error {
	free, err := freeSpace(dir)
	if err != nil {
		return err
	}
	if free < need {
		return fmt.Errorf("%w: %s has %d MiB left, and this needs %d MiB", ErrDiskFull, dir, free>>20, need>>20)
	}
	return nil
}

// spaceFor is the free space that a command needs to be let in.
func spaceFor(c command.Command) uint64 {
	switch c.(type) {
	case *command.RegisterVolume, *command.StartWorkload, *command.AwaitWorkload, *command.PutNode, *command.PutToken, *command.PutSigningKey,
		*command.PutACLPolicies, *command.PutACLRoles, *command.PutACLTokens, *command.ResealVolume:
		return spaceToGrow
	default:
		return spaceToRelease
	}
}
