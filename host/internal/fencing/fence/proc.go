package fence

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// stat is what is needed of /proc/PID/stat (proc_pid_stat(5)).
type stat struct {
	state byte
	start uint64
}

// ended processes only wait for their parent to look; other threads of one may live.
func (s stat) ended() bool { return s.state == 'Z' || s.state == 'X' }

func readStat(dir string) (stat, error) {
	data, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return stat{}, err
	}
	// The name in parentheses may hold anything, parentheses too.
	_, rest, _ := bytes.Cut(data[bytes.LastIndexByte(data, ')')+1:], []byte{' '})
	f := strings.Fields(string(rest))
	const state, start = 0, 19
	if len(f) <= start {
		return stat{}, fmt.Errorf("%s/stat is short", dir)
	}
	s := stat{state: f[state][0]}
	if s.start, err = strconv.ParseUint(f[start], 10, 64); err != nil {
		return stat{}, fmt.Errorf("read the start time in %s/stat: %w", dir, err)
	}
	return s, nil
}

// processes lists what runs, without what has ended with all its threads.
func processes() (map[int]stat, error) {
	pids, err := numbers("/proc")
	if err != nil {
		return nil, err
	}
	all := make(map[int]stat, len(pids))
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid)
		s, err := readStat(dir)
		if err != nil {
			continue // it has ended
		}
		if s.ended() && len(liveThreads(dir)) == 0 {
			continue
		}
		all[pid] = s
	}
	return all, nil
}

// liveThreads are the folders of a process's threads that have not ended.
func liveThreads(dir string) (live []string) {
	tids, err := numbers(dir + "/task")
	if err != nil {
		return nil
	}
	for _, tid := range tids {
		task := dir + "/task/" + strconv.Itoa(tid)
		if s, err := readStat(task); err == nil && !s.ended() {
			live = append(live, task)
		}
	}
	return live
}

// numbers lists the entries of a folder of proc(5) that are numbers.
func numbers(dir string) ([]int, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil && len(names) == 0 {
		return nil, err
	}
	found := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			found = append(found, n)
		}
	}
	return found, nil
}

func command(pid int) string {
	name, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	return strings.TrimSpace(string(name))
}
