package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/command"
)

// leaveForDisk ends this server's leadership if its disk hangs and another server can lead: nothing would be committed
// for as long as it hangs. Commands that wait are repeated there.
func (n *Node) leaveForDisk(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.late:
		}
		for n.raft.Late() {
			if n.raft.OthersWrite(ctx) {
				n.log.Warn("this server leads no more", "error", n.stalled())
				n.leadership.set(0)
				n.resigned.Notify()
				n.raft.Resign(n.running) //nolint:contextcheck // ctx has ended with the leadership
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(roomPause):
			}
		}
	}
}

// noteLate wakes leaveForDisk.
func (n *Node) noteLate() {
	select {
	case n.late <- struct{}{}:
	default:
	}
}

// stalled returns ErrDiskHangs if the ledger's disk does not finish a write.
func (n *Node) stalled() error {
	if !n.raft.Late() {
		return nil
	}
	if why := n.raft.WriteError(); why != nil {
		return fmt.Errorf("%w: a write to it has failed for %s: %w (the kernel's log may say why)", command.ErrDiskHangs,
			n.raft.Unwritten().Round(time.Second), why)
	}
	return fmt.Errorf("%w: a write to %s has not ended for %s (the kernel's log may say why)", command.ErrDiskHangs, n.dir,
		n.raft.Unwritten().Round(time.Second))
}
