package process

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
	g := &group{ref: ref, known: map[int]stat{}}
	asked := map[int]bool{}
	gone := g.wait(ctx, func(m stat) {
		if !asked[m.pid] { // once each, also what is forked meanwhile
			asked[m.pid] = true
			signal(m, unix.SIGTERM)
		}
	})
	if gone {
		removeCgroups(ref)
		return nil
	}
	killCgroups(ref)
	killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterKill)
	defer cancel()
	if g.wait(killCtx, func(m stat) { signal(m, unix.SIGKILL) }) {
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
	known map[int]stat
}

// wait calls each for every member, again and again until none is left.
func (g *group) wait(ctx context.Context, each func(stat)) bool {
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
		now, err := readStat(pid)
		if err != nil || now.dead() || now.start != m.start {
			delete(g.known, pid)
		}
	}
	for _, m := range members(g.ref) {
		g.known[m.pid] = m
	}
}

// members are the processes that belong to ref: those of its group while its
// leader lives, those that carry its token wherever they are, and those in its
// control groups. Once the leader is gone the number of its group may be another's,
// so then only the others count.
func members(ref Ref) []stat {
	inside := inCgroups(ref)
	leader, err := readStat(ref.PID)
	leads := ref.PID != 0 && err == nil && leader.start == ref.StartTime
	var found []stat
	for _, s := range allProcesses() {
		if leads && (s.group == ref.PID || s.pid == ref.PID) || slices.Contains(inside, s.pid) || ref.Token != "" && hasToken(s.pid, ref.Token) {
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
