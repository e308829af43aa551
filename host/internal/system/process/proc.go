package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// stat is what we need of /proc/PID/stat.
type stat struct {
	pid     int
	state   byte
	group   int
	start   uint64
	cpu     time.Duration // its own and that of its children that have ended
	threads int
}

// tick is the unit of times in /proc/PID/stat: USER_HZ, which Linux has at 100.
const tick = 10 * time.Millisecond

// dead processes have ended and only wait for their parent to look.
func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

func readStat(pid int) (stat, error) {
	data, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return stat{}, err
	}
	return parseStat(pid, data)
}

// parseStat reads proc(5)'s "pid (comm) state ppid pgrp ... starttime ...". The
// name may hold anything, parentheses and spaces too: fields count from the last
// parenthesis.
func parseStat(pid int, data []byte) (stat, error) {
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return stat{}, fmt.Errorf("/proc/%d/stat has no name in it", pid)
	}
	f := strings.Fields(string(data[i+1:]))
	const state, group, utime, cstime, threads, start = 0, 2, 11, 14, 17, 19 // proc(5)'s fields 3, 5, 14, 17, 20 and 22
	if len(f) <= start {
		return stat{}, fmt.Errorf("/proc/%d/stat is short", pid)
	}
	s := stat{pid: pid, state: f[state][0]}
	var err error
	if s.group, err = strconv.Atoi(f[group]); err != nil {
		return stat{}, fmt.Errorf("read the group in /proc/%d/stat: %w", pid, err)
	}
	if s.start, err = strconv.ParseUint(f[start], 10, 64); err != nil {
		return stat{}, fmt.Errorf("read the start time in /proc/%d/stat: %w", pid, err)
	}
	if s.threads, err = strconv.Atoi(f[threads]); err != nil {
		return stat{}, fmt.Errorf("read the threads in /proc/%d/stat: %w", pid, err)
	}
	for _, field := range f[utime : cstime+1] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return stat{}, fmt.Errorf("read the times in /proc/%d/stat: %w", pid, err)
		}
		s.cpu += time.Duration(n) * tick
	}
	return s, nil
}

// hasToken tells whether a process was started with a token. A process whose
// environment we may not read is not ours.
func hasToken(pid int, token string) bool {
	env, err := os.ReadFile(procPath(pid, "environ"))
	if err != nil {
		return false
	}
	want := []byte(envToken + "=" + token)
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(kv, want) {
			return true
		}
	}
	return false
}

// allProcesses lists what runs now, without the dead.
func allProcesses() []stat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var all []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil && !s.dead() {
			all = append(all, s)
		}
	}
	return all
}

// leaderWithToken finds the process that Start made with this token: the oldest
// one that carries the token and leads its group.
func leaderWithToken(token string) (pid int, ok bool) {
	var oldest stat
	for _, s := range allProcesses() {
		if s.pid != s.group || oldest.pid != 0 && s.start >= oldest.start || !hasToken(s.pid, token) {
			continue
		}
		oldest = s
	}
	return oldest.pid, oldest.pid != 0
}

// bootID tells one start of the machine from another.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
})

func procPath(pid int, file string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + file
}
