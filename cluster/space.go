package cluster

import (
	"context"
	"fmt"
	"syscall"
	"time"

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

// room keeps the log of one of several servers from growing where it cannot be applied any
// more: nobody asks this server before others agree on an entry. A server alone has let the
// command in.
func room(cfg Config) func() error {
	if cfg.Streams == nil {
		return nil
	}
	return func() error { return needSpace(cfg.Dir, spaceToRelease) }
}

// roomPause is how often a leader looks whether it has room.
const roomPause = time.Second

// leaveForRoom gives the lead to a voter that has room, when this server has none any more:
// the cluster need not stand still because of one full disk.
func (n *Node) leaveForRoom(ctx context.Context) {
	tick := time.NewTicker(roomPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		full := needSpace(n.dir, spaceToGrow)
		if full == nil {
			continue
		}
		voters, err := n.voters()
		if err != nil {
			return // it is being closed
		}
		for _, name := range voters {
			if name == n.name || ctx.Err() != nil {
				continue
			}
			if s, err := n.raft.Ask(ctx, name); err != nil || !s.Report.Room {
				continue
			}
			n.log.Warn("this server gives the lead away", "to", name, "because", full)
			err := n.TransferLeadership(ctx, name)
			if err == nil {
				return
			}
			n.log.Warn("the lead was not taken", "by", name, "error", err)
		}
	}
}

// needSpace refuses with ErrDiskFull.
func needSpace(dir string, need uint64) error {
	free, err := freeSpace(dir)
	if err != nil {
		return err
	}
	if free < need {
		return fmt.Errorf("%w: %s has %d MiB left, and this needs %d MiB", command.ErrDiskFull, dir, free>>20, need>>20)
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
