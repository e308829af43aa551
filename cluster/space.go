package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/internal/diskspace"
)

// Badger writes through memory maps of sparse files, so on a full disk it does not return an error: the host gets
// SIGBUS. Commands are refused before that: commands that add something below SpaceToGrow, and commands that release
// something below spaceToRelease, where opening is refused too. The rest is for the memtables, a compaction and the
// log's next file.
const (
	// SpaceToGrow is the free space of its disk, in bytes, below which the ledger takes nothing new.
	SpaceToGrow    = 64 << 20
	spaceToRelease = 16 << 20
)

// room returns what keeps the log of one of several servers from growing when entries could not be applied: a
// follower is not asked before others agree on an entry. A single server has checked each command already.
func room(cfg Config) func() error {
	if cfg.Streams == nil {
		return nil
	}
	return func() error { return needSpace(cfg.Dir, spaceToRelease) }
}

// roomPause is how often a leader checks whether it has room.
const roomPause = time.Second

// leaveForRoom transfers the leadership to a voter with room if this server has none left, so that one full disk
// does not stop the cluster.
func (n *Node) leaveForRoom(ctx context.Context) {
	tick := time.NewTicker(roomPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		full := needSpace(n.dir, SpaceToGrow)
		if full == nil {
			continue
		}
		voters, err := n.Voters()
		if err != nil {
			return // the node is being closed
		}
		for _, name := range voters {
			if name == n.name || ctx.Err() != nil {
				continue
			}
			if s, err := n.raft.Ask(ctx, name); err != nil || !s.Report.Room {
				continue
			}
			n.log.Warn("the disk is nearly full: transferring the leadership", "to", name, "error", full)
			err := n.TransferLeadership(ctx, name)
			if err == nil {
				return
			}
			n.log.Warn("the leadership could not be transferred", "to", name, "error", err)
		}
	}
}

// needSpace returns ErrDiskFull if less than need bytes are free, or than an inode for each MiB of them.
func needSpace(dir string, need uint64) error {
	lack, err := diskspace.Lack(dir, need, need>>20)
	if err == nil && lack != "" {
		err = fmt.Errorf("%w: %s", command.ErrDiskFull, lack)
	}
	return err
}

// spaceFor returns the free space that a command requires.
func spaceFor(c command.Command) uint64 {
	switch c.(type) {
	case *command.RegisterVolume, *command.StartWorkload, *command.AwaitWorkload, *command.PutNode,
		*command.PutToken, *command.PutSigningKey, *command.RotateSigningKey, *command.PutSnapshot,
		*command.PutACLPolicies, *command.PutACLRoles, *command.PutACLTokens, *command.ResealVolume:
		return SpaceToGrow
	default:
		return spaceToRelease
	}
}
