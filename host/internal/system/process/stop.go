package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
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
	g := &group{ref: ref, known: map[int]procfs.Stat{}}
	asked := map[int]bool{}
	gone := g.wait(ctx, func(m procfs.Stat) {
		if !asked[m.PID] { // once each, also what is forked meanwhile
			asked[m.PID] = true
			_ = Signal(m.PID, m.StartTime, unix.SIGTERM)
		}
	})
	if gone {
		removeCgroups(ref)
		return nil
	}
	killCgroups(ref)
	killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterKill)
	defer cancel()
	if g.wait(killCtx, func(m procfs.Stat) { _ = Signal(m.PID, m.StartTime, unix.SIGKILL) }) {
		removeCgroups(ref)
		return nil
	}
	return fmt.Errorf("stop process %d: still there %v after SIGKILL: %v", ref.PID, afterKill, slices.Sorted(maps.Keys(g.known)))
}

// group is what belongs to a Ref while it is being stopped.
//
// A process that is ending has no environment any more while it still holds its
// files, and one whose leader is gone may not be known as a member any more. So
// a member that was seen once is waited for until it has ended.
type group struct {
	ref   Ref
	known map[int]procfs.Stat
}

// wait calls each for every member, again and again until none is left.
func (g *group) wait(ctx context.Context, each func(procfs.Stat)) bool {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		g.look()
		if len(g.known) == 0 {
			return true
		}
		for _, m := range g.known {
			each(m)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// look drops the members that have ended and adds those that are new.
func (g *group) look() {
	for pid, m := range g.known {
		now, err := procfs.ReadStat(procfs.Dir(pid))
		if err != nil || now.Ended() || now.StartTime != m.StartTime {
			delete(g.known, pid)
		}
	}
	for _, m := range members(g.ref) {
		g.known[m.PID] = m
	}
}

// members are the processes that belong to ref: those of its group while its
// leader lives, those that carry its token wherever they are, and those in its
// control groups. Once the leader is gone the number of its group may be another's,
// so then only the others count.
func members(ref Ref) []procfs.Stat {
	inside := inCgroups(ref)
	leader, err := procfs.ReadStat(procfs.Dir(ref.PID))
	leads := ref.PID != 0 && err == nil && leader.StartTime == ref.StartTime
	var found []procfs.Stat
	for _, s := range living() {
		if leads && (s.Group == ref.PID || s.PID == ref.PID) || slices.Contains(inside, s.PID) || ref.Token != "" && hasToken(s.PID, ref.Token) {
			found = append(found, s)
		}
	}
	return found
}

// Signal sends a signal to the process that has this PID and start time (procfs.Stat), and to no later one with the same
// PID. It is no error if the process has ended.
func Signal(pid int, startTime uint64, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		defer unix.Close(fd)
		if now, statErr := procfs.ReadStat(procfs.Dir(pid)); statErr != nil || now.StartTime != startTime {
			return nil
		}
		err = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
