package process

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// afterKill bounds the wait for what was killed to be gone. Only a process that
// hangs in the kernel (state D, such as on a dead NFS mount) takes longer.
const afterKill = 10 * time.Second

// Stop ends the process and all of its group, also what is left of the group of
// a process that ended by itself: SIGTERM, and SIGKILL when ctx ends. It returns
// when nothing is left, or an error that names what cannot be killed.
func (p *Process) Stop(ctx context.Context) error {
	err := stopGroup(ctx, p.ref)
	if err == nil && p.isReleased() {
		return nil
	}
	if err == nil {
		<-p.done // it ended, and is reaped if it was our child
	}
	p.Release()
	return err
}

// Clean ends what is left of the process of a Ref whose leader is gone.
func Clean(ctx context.Context, ref Ref) error {
	if ref.BootID != bootID() {
		return nil
	}
	return stopGroup(ctx, ref)
}

func (p *Process) isReleased() bool {
	select {
	case <-p.released:
		return true
	default:
		return false
	}
}

func stopGroup(ctx context.Context, ref Ref) error {
	asked := map[stat]bool{}
	gone := waitGone(ctx, ref, func(m stat) {
		if m.state = 0; !asked[m] { // once each, also what is forked meanwhile
			asked[m] = true
			signal(m, unix.SIGTERM)
		}
	})
	if gone {
		return nil
	}
	killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterKill)
	defer cancel()
	if waitGone(killCtx, ref, func(m stat) { signal(m, unix.SIGKILL) }) {
		return nil
	}
	var pids []int
	for _, m := range members(ref) {
		pids = append(pids, m.pid)
	}
	return fmt.Errorf("stop process %d: still there %v after SIGKILL: %v", ref.PID, afterKill, pids)
}

// waitGone calls each for every member, again and again until none is left.
func waitGone(ctx context.Context, ref Ref, each func(stat)) bool {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := members(ref)
		if len(left) == 0 {
			return true
		}
		for _, m := range left {
			each(m)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// members are the processes that belong to ref: those of its group while its
// leader lives, and those that carry its token wherever they are. Once the leader
// is gone the number of its group may be another's, so then only the token
// counts.
func members(ref Ref) []stat {
	leader, err := readStat(ref.PID)
	leads := ref.PID != 0 && err == nil && leader.start == ref.StartTime
	var found []stat
	for _, s := range allProcesses() {
		if leads && (s.group == ref.PID || s.pid == ref.PID) || ref.Token != "" && hasToken(s.pid, ref.Token) {
			found = append(found, s)
		}
	}
	return found
}

// signal sends sig to the very process that s was read of. That it ended in the
// meantime is no error: whoever signals looks again.
func signal(s stat, sig unix.Signal) {
	fd, err := unix.PidfdOpen(s.pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if now, err := readStat(s.pid); err == nil && now.start == s.start {
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}
