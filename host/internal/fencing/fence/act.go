package fence

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/fencing/boottime"
	"github.com/pannier/pannier/host/internal/system/mountuse"
	"github.com/pannier/pannier/host/internal/system/process"
	"github.com/pannier/pannier/internal/procfs"
)

// Bounds of one round.
const (
	// unmountTimeout is how long a round waits for the kernel to unmount. The unmount continues in the background,
	// since the kernel writes out the page cache first.
	unmountTimeout = 500 * time.Millisecond
	// lazyAfter is how long a mount may stay busy, although no process is seen to use it, before it is detached lazily
	// (umount2(2), MNT_DETACH).
	lazyAfter = time.Second
	// maxRefusals is how often the kernel may say that something is not a mount before the fence gives it up.
	maxRefusals = 3
)

// actor kills and unmounts.
type actor struct {
	dir string
	log hclog.Logger
	// due reports whether the deadline has passed. A renewed lease can postpone it at any time.
	due func() bool

	guards   map[string]Mount                  // the mounts to take away at this deadline, by their paths
	copies   map[mountuse.Copy]mountuse.Origin // as of the last round
	disks    map[mountuse.Disk]bool            // those of the mounts, until nothing uses them any more
	unmounts unmounts
	// unmounts that the kernel has not finished, by key; the mount table may not list them any more
	slow      map[string]try
	stuck     map[string]time.Time // by key: since when a mount has been busy although no process is seen to use it
	report    *Report              // nil: nothing had to be done yet at this deadline
	written   Report               // the report that was last handed to writeReports
	refused   map[string]int       // by key: how often the kernel said that it is not a mount, or locked
	forbidden map[uint64]bool      // namespaces in which something cannot be unmounted

	writes  chan Report // the newest report that is not written yet
	writing sync.WaitGroup
}

func newActor(dir string, log hclog.Logger, due func() bool) *actor {
	a := &actor{dir: dir, log: log, due: due}
	a.unmounts.byKey = map[string]*unmount{}
	a.reset()
	a.writes = make(chan Report, 1)
	a.writing.Go(a.writeReports)
	return a
}

// close waits until the last report is written.
func (a *actor) close() {
	close(a.writes)
	a.writing.Wait()
}

// reset forgets a deadline that was postponed.
func (a *actor) reset() {
	a.guards, a.copies, a.slow, a.stuck = map[string]Mount{}, nil, map[string]try{}, map[string]time.Time{}
	a.disks = map[mountuse.Disk]bool{}
	a.refused, a.forbidden = map[string]int{}, map[uint64]bool{}
	a.report, a.written = nil, Report{}
}

// round kills the processes that use a guarded mount, and unmounts what no process uses. It reports whether it found
// anything that it can do; if so, another round has to follow.
func (a *actor) round(s State) (left bool) {
	if len(s.Mounts) == 0 && len(s.Processes) == 0 && len(a.copies) == 0 && len(a.slow) == 0 && len(a.disks) == 0 {
		a.done()
		return false
	}
	for _, m := range s.Mounts {
		a.guards[m.Path] = m
	}
	sc, err := look(s, a.copies)
	if err != nil {
		a.log.Error("the mounts and processes of this machine cannot be read: retrying", "error", err)
		return true
	}
	defer sc.Close()
	a.copies = sc.Copies
	for d := range sc.Disks {
		a.disks[d] = true
	}
	holders := workloads(sc, s.Processes)
	var users []holder
	if len(holders) == 0 && len(sc.Places) == 0 && len(sc.Copies) == 0 && len(sc.Loops) == 0 && len(a.slow) == 0 {
		if users = a.users(sc); len(users) == 0 { // of what was unmounted by others, lazily
			a.proveUnused(sc.Swaps)
			return false
		}
	}
	if a.report == nil || a.report.Done != 0 {
		a.report = &Report{BootID: process.BootID(), Deadline: s.Times.Deadline, Began: time.Now()}
		a.log.Warn("the lease is over: what uses the volumes is killed", "deadline", s.Times.Deadline,
			"workload_processes", len(holders), "mounts", len(sc.Places))
	}
	a.report.Left = nil
	// The search may take a while on a machine whose disk hangs: the processes that are known die before it.
	if !a.killAll(sc, holders) {
		return true
	}
	if users == nil {
		users = a.users(sc)
	}
	if !a.killAll(sc, users) {
		return true
	}
	a.unmountAll(sc, append(holders, users...))
	a.write()
	return true
}

func look(s State, before map[mountuse.Copy]mountuse.Origin) (*mountuse.Scene, error) {
	of := make([]mountuse.Original, 0, len(s.Mounts))
	for _, m := range s.Mounts {
		of = append(of, mountuse.Original{Path: m.Path, Was: m.Was})
	}
	return mountuse.Look(of, before)
}

// holder is a process to kill.
type holder struct {
	mountuse.User // Path is empty where it is a workload's own process
	workload      claim.WorkloadRef
}

// workloads finds the workloads' processes.
func workloads(sc *mountuse.Scene, own []Process) (found []holder) {
	for _, p := range own {
		if st, ok := sc.Processes[p.PID]; ok && st.StartTime == p.StartTime {
			found = append(found, holder{
				mountuse.User{PID: p.PID, StartTime: p.StartTime, Why: "it is the workload's process"},
				p.Workload,
			})
		}
	}
	return found
}

// users finds the processes that use a guarded mount.
func (a *actor) users(sc *mountuse.Scene) (found []holder) {
	for _, u := range append(sc.Users(len(a.stuck) > 0), sc.Residents(a.forbidden)...) {
		found = append(found, holder{u, a.guards[u.Path].Workload})
	}
	return found
}

// killAll returns false if the deadline was postponed.
func (a *actor) killAll(sc *mountuse.Scene, holders []holder) bool {
	for _, h := range holders {
		if !a.due() {
			return false
		}
		a.kill(sc, h)
	}
	return true
}

// kill sends SIGKILL to the process that was looked at, and to no later one with its PID.
func (a *actor) kill(sc *mountuse.Scene, h holder) {
	err := process.Signal(h.PID, h.StartTime, unix.SIGKILL)
	k := Killed{PID: h.PID, Command: procfs.Command(h.PID), Why: h.Why, Workload: h.workload}
	if err != nil {
		a.report.Left = append(a.report.Left, fmt.Sprintf("kill process %d (%s), %s: %v", k.PID, k.Command, k.Why, err))
		return
	}
	if sc.Processes[h.PID].State == 'D' {
		a.report.Left = append(a.report.Left,
			fmt.Sprintf("process %d (%s) is blocked in the kernel and will end when the kernel call returns: %s", k.PID,
				k.Command, k.Why))
	}
	a.report.killed(k)
}

// unmountAll unmounts what no process uses: first published volumes, then staged ones, of each the innermost and
// newest mounts first; then the copies in other namespaces.
func (a *actor) unmountAll(sc *mountuse.Scene, holders []holder) {
	held := func(m Mount) bool {
		return slices.ContainsFunc(holders, func(h holder) bool {
			return h.Path == m.Path || h.Path == "" && h.workload == m.Workload
		})
	}
	places := slices.Clone(sc.Places)
	slices.Reverse(places)
	slices.SortStableFunc(places, func(x, y mountuse.Place) int {
		return -cmp.Compare(strings.Count(x.Mountpoint, "/"), strings.Count(y.Mountpoint, "/"))
	})
	busy := map[string]bool{}
	tries := a.unseen(sc)
	for c, of := range sc.Copies {
		if guard := a.guards[of.Path]; of.Layer && !held(guard) {
			tries = append(tries, a.tryCopy(sc, c, guard))
		}
	}
	a.wait(tries, busy)
	tries = nil
	for name, path := range sc.Loops {
		if guard := a.guards[path]; !held(guard) {
			tries = append(tries, a.try("loop device "+name, guard, func(int) error { return detachLoop(name) }))
		}
	}
	a.wait(tries, busy)
	tries = nil
	for _, staging := range []bool{false, true} {
		for _, p := range places {
			guard := a.guards[p.Path]
			if guard.Staging == staging && !held(guard) && (!staging || !a.published(sc, p)) {
				tries = append(tries, a.try(key(p), guard, func(flags int) error {
					return unix.Unmount(p.Mountpoint, flags)
				}))
			}
		}
		a.wait(tries, busy)
		tries = nil
	}
	for c, of := range sc.Copies {
		guard := a.guards[of.Path]
		if of.Layer || held(guard) ||
			slices.ContainsFunc(sc.Places, func(p mountuse.Place) bool { return p.Path == of.Path }) {
			continue // unmounting the original removes most copies
		}
		tries = append(tries, a.tryCopy(sc, c, guard))
	}
	a.wait(tries, busy)
	for key := range a.stuck {
		if !busy[key] {
			delete(a.stuck, key)
		}
	}
}

// unseen lists the unfinished unmounts whose mounts are in no table any more. The kernel may still write to the file
// system until they are finished.
func (a *actor) unseen(sc *mountuse.Scene) (tries []try) {
	for name, t := range a.slow {
		if !slices.ContainsFunc(sc.Places, func(p mountuse.Place) bool { return key(p) == name }) {
			tries = append(tries, t)
		}
	}
	return tries
}

// key names a place in one boot, also for people.
func key(p mountuse.Place) string { return fmt.Sprintf("%d %s", p.ID, p.Mountpoint) }

// published reports whether what is staged at a place was also published when the scene was read.
func (a *actor) published(sc *mountuse.Scene, at mountuse.Place) bool {
	return slices.ContainsFunc(sc.Places, func(p mountuse.Place) bool {
		return !a.guards[p.Path].Staging && p.Major == at.Major && p.Minor == at.Minor
	})
}

// try is one attempt to unmount.
type try struct {
	key       string // names it, also for people
	guard     Mount
	lazy      bool
	unmount   *unmount // nil: the deadline was postponed
	namespace uint64   // 0: the fence's own
}

// try begins to unmount, lazily if the mount has been busy for longer than lazyAfter.
func (a *actor) try(key string, guard Mount, call func(flags int) error) try {
	flags := unix.UMOUNT_NOFOLLOW
	since, stuck := a.stuck[key]
	lazy := stuck && time.Since(since) > lazyAfter
	if lazy {
		flags |= unix.MNT_DETACH
	}
	if !a.due() {
		return try{key: key, guard: guard}
	}
	return try{key: key, guard: guard, lazy: lazy, unmount: a.unmounts.begin(key, func() error { return call(flags) })}
}

// tryCopy begins to unmount a copy in its namespace.
func (a *actor) tryCopy(sc *mountuse.Scene, c mountuse.Copy, guard Mount) try {
	pid := sc.Member(c.Tree)
	t := a.try(fmt.Sprintf("%d %s in the namespace of process %d", c.ID, c.Path, pid), guard, func(flags int) error {
		return mountuse.UnmountIn(c.Tree, pid, c.Path, flags)
	})
	t.namespace = c.Tree.Namespace
	return t
}

// wait waits up to unmountTimeout for all of tries, and records which mounts are busy.
func (a *actor) wait(tries []try, busy map[string]bool) {
	timeout := time.NewTimer(unmountTimeout)
	defer timeout.Stop()
	for _, t := range tries {
		if t.unmount == nil {
			continue
		}
		select {
		case <-t.unmount.done:
		case <-timeout.C:
			timeout.Reset(0) // do not wait for the others
			a.slow[t.key] = t
			a.report.Left = append(a.report.Left, "unmount "+t.key+": the kernel has not finished")
			continue
		}
		delete(a.slow, t.key)
		err := t.unmount.err
		switch {
		case err == nil && t.lazy:
			a.report.Detached = append(a.report.Detached, t.key)
			a.report.unmounted(t.guard)
		case err == nil:
			a.report.unmounted(t.guard)
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENXIO):
			// Usually it is gone already, as a copy goes with its original. A mount that is seen again after each
			// attempt is locked in its namespace.
			if a.refused[t.key]++; a.refused[t.key] >= maxRefusals {
				a.report.Left = append(a.report.Left, fmt.Sprintf("unmount %s: %v", t.key, err))
				a.forbidden[t.namespace] = t.namespace != 0
			}
		default:
			if _, ok := a.stuck[t.key]; !ok {
				a.stuck[t.key] = time.Now()
			}
			busy[t.key] = true
			a.report.Left = append(a.report.Left, fmt.Sprintf("unmount %s: %v", t.key, err))
		}
	}
}

// proveUnused is done if nothing uses the volumes' disks any more. What no mount table shows can still write to them,
// such as an overlay whose directory has no name any more.
func (a *actor) proveUnused(swaps []string) {
	var left []string
	for _, swap := range swaps {
		left = append(left, fmt.Sprintf("the kernel swaps to %s: run swapoff %s", swap, swap))
	}
	timeout := time.NewTimer(unmountTimeout)
	defer timeout.Stop()
	for d := range a.disks {
		u := a.unmounts.begin("disk "+d.Number, d.Free)
		select {
		case <-u.done:
			if u.err == nil {
				delete(a.disks, d)
				continue
			}
			left = append(left, u.err.Error())
		case <-timeout.C:
			timeout.Reset(0) // do not wait for the others
			left = append(left, "block device "+d.Number+" does not answer whether something uses it")
		}
	}
	if len(left) == 0 || a.report == nil || a.report.Done != 0 {
		a.done()
		return
	}
	a.report.Left = left
	a.write()
}

// done records that nothing is left to do.
func (a *actor) done() {
	if a.report == nil || a.report.Done != 0 {
		return
	}
	a.report.Done, a.report.DoneAt, a.report.Left = boottime.Now(), time.Now(), nil
	a.log.Warn(a.report.String(), "deadline", a.report.Deadline, "done", a.report.Done)
	a.write()
}

// write hands the report to writeReports if it has changed. A slow disk must not hold up the killing.
func (a *actor) write() {
	slices.Sort(a.report.Left)
	r := *a.report
	r.Workloads, r.Killed, r.Unmounted = slices.Clone(r.Workloads), slices.Clone(r.Killed), slices.Clone(r.Unmounted)
	r.Detached, r.Left = slices.Clone(r.Detached), slices.Clone(r.Left)
	if !reflect.DeepEqual(r, a.written) {
		a.written = r
		select {
		case <-a.writes: // writeReports has not taken it yet
		default:
		}
		a.writes <- r
	}
}

func (a *actor) writeReports() {
	for r := range a.writes {
		if err := writeReport(a.dir, r); err != nil {
			a.log.Error("the fence's report could not be written", "error", err, "report", r.String())
		}
	}
}
