package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// EndLeftovers ends what the program started and left running, so that nothing
// uses a volume that is released: SIGTERM first, SIGKILL after the grace or as soon
// as ctx is done. It returns when none is left, with how many were told to end. To
// be called once the program has ended; no other child may be running.
func EndLeftovers(ctx context.Context, grace time.Duration) (told int, err error) {
	deadline := time.Now().Add(grace)
	hurry := ctx.Done()
	asked := map[int]bool{}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := reap()
		if err != nil || !left {
			return len(asked), err
		}
		pids, err := descendants(os.Getpid())
		if err != nil {
			return len(asked), err
		}
		for _, pid := range pids {
			switch {
			case time.Now().After(deadline):
				_ = unix.Kill(pid, unix.SIGKILL) // It may end meanwhile.
			case !asked[pid]:
				_ = unix.Kill(pid, unix.SIGTERM)
				// One that is stopped takes the signal when it goes on.
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

// reap collects the children that have ended and says whether any is left.
func reap() (left bool, err error) {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return false, nil
		case err != nil:
			return true, fmt.Errorf("wait for processes: %w", err)
		case pid == 0:
			return true, nil
		}
	}
}

// descendants are the processes below one, zombies left out.
func descendants(root int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if parent, ok := parentOf(pid); ok {
			children[parent] = append(children[parent], pid)
		}
	}
	var all []int
	for queue := children[root]; len(queue) > 0; queue = queue[1:] {
		all = append(all, queue[0])
		queue = append(queue, children[queue[0]]...)
	}
	return all, nil
}

// parentOf reads a running process's parent out of its stat line, whose second
// field is a name in parentheses that may hold anything (proc(5)).
func parentOf(pid int) (parent int, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 2 || string(fields[0]) == "Z" {
		return 0, false
	}
	parent, err = strconv.Atoi(string(fields[1]))
	return parent, err == nil
}
