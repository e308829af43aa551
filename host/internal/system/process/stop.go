package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// afterKill bounds the wait for killed processes to end. Only a process that is blocked in the kernel (state D, such
// as on a dead NFS mount) takes longer.
const afterKill = 10 * time.Second

// Ending is the signal that asks a workload's program to end, by its name or SIGTERM where that is empty, and how long
// the program then has until it is killed; 0: the text is empty, and the caller knows.
func Ending(signal, timeout string) (unix.Signal, time.Duration) {
	patience, _ := time.ParseDuration(timeout)
	return cmp.Or(unix.SignalNum(signal), unix.SIGTERM), patience
}

// Stop stops the process and its whole group, including what is left of the group of a process that has ended:
// SIGTERM, then SIGKILL when ctx ends. It returns when nothing is left, or with an error that names what cannot be
// killed.
func (p *Process) Stop(ctx context.Context) error {
	return p.stopped(stopGroup(ctx, p.ref))
}

// StopKeepingMounts is Stop for a process whose children may serve FUSE file systems that are in use. It stops the
// process and its descendants, except those that have /dev/fuse open and what these have started; a child that has
// become a daemon stays as well, since it may be what such a process works with. kept lists what stays, to be ended
// later with Clean. If none of them has /dev/fuse open, everything is stopped.
func (p *Process) StopKeepingMounts(ctx context.Context) (kept []int, err error) {
	if !slices.ContainsFunc(members(p.ref), func(m procfs.Stat) bool { return m.PID != p.PID() && ServesMounts(m.PID) }) {
		return nil, p.Stop(ctx)
	}
	g := &group{ref: p.ref, known: map[int]procfs.Stat{}, keepMounts: true}
	err = p.stopped(g.stop(ctx))
	return Left(p.ref), err
}

// stopped releases a process after its stop.
func (p *Process) stopped(err error) error {
	if err == nil && p.isReleased() {
		return nil
	}
	if err == nil {
		<-p.done // it has ended, and was reaped if it was a child
	}
	p.Release()
	return err
}

// Left lists what is left of the process of a Ref, of its group and of its descendants.
func Left(ref Ref) (pids []int) {
	if ref.BootID != bootID() {
		return nil
	}
	for _, m := range members(ref) {
		pids = append(pids, m.PID)
	}
	slices.Sort(pids)
	return pids
}

// ServesMounts reports whether a process has /dev/fuse open: if it ends, so do the FUSE file systems that it serves
// (fuse(4)).
func ServesMounts(pid int) bool { return len(procfs.Descriptors(pid, "/dev/fuse")) > 0 }

// Clean stops what is left of the group of a Ref whose leader is gone.
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
	return (&group{ref: ref, known: map[int]procfs.Stat{}}).stop(ctx)
}

// stop asks the members to end, and kills them when ctx ends.
func (g *group) stop(ctx context.Context) error {
	asked := map[int]bool{}
	gone := g.wait(ctx, func(m procfs.Stat) {
		if !asked[m.PID] { // once each, also those forked meanwhile
			asked[m.PID] = true
			_ = Signal(m.PID, m.StartTime, unix.SIGTERM)
		}
	})
	if gone {
		g.removeCgroups()
		return nil
	}
	if !g.keepMounts {
		killCgroups(g.ref)
	}
	killCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterKill)
	defer cancel()
	if g.wait(killCtx, func(m procfs.Stat) { _ = Signal(m.PID, m.StartTime, unix.SIGKILL) }) {
		g.removeCgroups()
		return nil
	}
	return fmt.Errorf("stop process %d: still there %v after SIGKILL: %v", g.ref.PID, afterKill,
		slices.Sorted(maps.Keys(g.known)))
}

// group is the processes of a Ref while they are being stopped.
//
// A process that is ending has no environment any more while it still holds its files, and one whose leader is gone
// may not be recognized as a member any more. So a member that was seen once is waited for until it has ended.
type group struct {
	ref   Ref
	known map[int]procfs.Stat
	// keepMounts leaves members alone that serve mounts (StopKeepingMounts).
	keepMounts bool
}

// removeCgroups removes the control groups, unless members that were kept are in them.
func (g *group) removeCgroups() {
	if !g.keepMounts {
		removeCgroups(g.ref)
	}
}

// wait calls each for every member, repeatedly until none is left or ctx ends.
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

// look removes the members that have ended and adds new ones.
func (g *group) look() {
	for pid, m := range g.known {
		now, err := procfs.ReadStat(procfs.Dir(pid))
		if err != nil || now.Ended() || now.StartTime != m.StartTime {
			delete(g.known, pid)
		}
	}
	all := members(g.ref)
	if g.keepMounts {
		all = g.tree(all)
	}
	for _, m := range all {
		g.known[m.PID] = m
	}
}

// tree returns of all members the leader and its descendants, as far as no process between them serves mounts.
func (g *group) tree(all []procfs.Stat) (found []procfs.Stat) {
	in := map[int]bool{}
	for pid := range g.known {
		in[pid] = true // its children may have been forked since
	}
	for more := true; more; {
		more = false
		for _, m := range all {
			if in[m.PID] || m.PID != g.ref.PID && (!in[m.Parent] || ServesMounts(m.PID)) {
				continue
			}
			in[m.PID], more = true, true
			found = append(found, m)
		}
	}
	return found
}

// members lists the processes of ref: those of its group while its leader lives, those with its token wherever they
// are, and those in its control groups. Once the leader is gone the group's number may belong to another group, so
// then it does not count.
func members(ref Ref) []procfs.Stat {
	inside := inCgroups(ref)
	leader, err := procfs.ReadStat(procfs.Dir(ref.PID))
	leads := ref.PID != 0 && err == nil && leader.StartTime == ref.StartTime
	var found []procfs.Stat
	for _, s := range living() {
		if leads && (s.Group == ref.PID || s.PID == ref.PID) || slices.Contains(inside, s.PID) || ref.Token != "" &&
			hasToken(s.PID, ref.Token) {
			found = append(found, s)
		}
	}
	return found
}

// Signal sends a signal to the process that has this PID and start time (procfs.Stat), and to no later one with the
// same PID. It is no error if the process has ended.
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
