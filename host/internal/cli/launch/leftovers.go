package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// EndLeftovers ends what the program started and left running, so that nothing
// uses a volume that is released: SIGTERM first, SIGKILL after the grace or as soon
// as ctx is done. It returns when none is left, with how many it ended. Call it once the
// program has ended; no other child may be running but those that lead the spared
// sessions, which are left alone.
func EndLeftovers(ctx context.Context, grace time.Duration, spared ...int) (ended int, err error) {
	if len(spared) == 0 {
		return end(ctx, grace, everyone)
	}
	return end(ctx, grace, func() ([]int, bool, error) {
		return those(func(r procfs.Stat) bool { return !slices.Contains(spared, r.Session) })
	})
}

// endSession kills what is left of a session whose leader has ended. It returns when
// nothing is left, or when ctx is done, with an error that names what is.
func endSession(ctx context.Context, leader int) error {
	_, err := end(ctx, 0, func() ([]int, bool, error) {
		pids, left, err := those(func(r procfs.Stat) bool { return r.Session == leader })
		if err == nil && left && ctx.Err() != nil {
			err = fmt.Errorf("kill processes %v, which may hang in the kernel: %w", pids, context.Cause(ctx))
		}
		return pids, left, err
	})
	return err
}

// end ends the processes that look finds, until none is left.
func end(ctx context.Context, grace time.Duration, look func() (pids []int, left bool, err error)) (ended int,
	err error,
) {
	deadline := time.Now().Add(grace)
	hurry := ctx.Done()
	asked := map[int]bool{}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		pids, left, err := look()
		if err != nil || !left {
			return len(asked), err
		}
		for _, pid := range pids {
			switch {
			case !time.Now().Before(deadline):
				_ = unix.Kill(pid, unix.SIGKILL) // It may end meanwhile.
			case !asked[pid]:
				_ = unix.Kill(pid, unix.SIGTERM)
				// A stopped process handles the signal when it continues.
				_ = unix.Kill(pid, unix.SIGCONT)
			}
			asked[pid] = true
		}
		select {
		case <-tick.C:
		case <-hurry:
			deadline, hurry = time.Now(), nil
		}
	}
}

// everyone finds all descendants of this process. Every descendant has a child of this
// process above it, so none is left when there is no child.
func everyone() (pids []int, left bool, err error) {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return nil, false, nil
		case err != nil:
			return nil, true, fmt.Errorf("wait for processes: %w", err)
		case pid == 0:
			all, err := descendants(os.Getpid())
			for _, r := range all {
				if !r.Ended() {
					pids = append(pids, r.PID)
				}
			}
			return pids, true, err
		}
	}
}

// those finds the descendants that match. A process forked during the scan may be missed, so
// only two scans without a match count as none.
func those(which func(procfs.Stat) bool) (pids []int, left bool, err error) {
	for range 2 {
		all, err := descendants(os.Getpid())
		if err != nil {
			return nil, true, err
		}
		for _, r := range all {
			switch {
			case !which(r):
			case !r.Ended():
				pids = append(pids, r.PID)
			case r.Parent == os.Getpid():
				_, _ = unix.Wait4(r.PID, nil, unix.WNOHANG, nil) // An adopted orphan: nobody else waits for it.
			}
		}
		if len(pids) > 0 {
			return pids, true, nil
		}
	}
	return nil, false, nil
}

// descendants are the processes below one.
func descendants(root int) ([]procfs.Stat, error) {
	processes, err := procfs.Processes()
	if err != nil {
		return nil, err
	}
	children := map[int][]procfs.Stat{}
	for _, p := range processes {
		children[p.Parent] = append(children[p.Parent], p)
	}
	var all []procfs.Stat
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0].PID]...)
	}
	return all, nil
}
