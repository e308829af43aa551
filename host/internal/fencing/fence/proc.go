package fence

import (
	"strconv"

	"github.com/pannier/pannier/internal/procfs"
)

// processes lists what runs, by its number, without what has ended with all its threads.
func processes() (map[int]procfs.Stat, error) {
	list, err := procfs.Processes()
	if err != nil {
		return nil, err
	}
	all := make(map[int]procfs.Stat, len(list))
	for _, s := range list {
		if !s.Ended() || len(liveThreads(procfs.Dir(s.PID))) > 0 {
			all[s.PID] = s
		}
	}
	return all, nil
}

// liveThreads are the directories of a process's threads that have not ended.
func liveThreads(dir string) (live []string) {
	tids, err := procfs.Numbers(dir + "/task")
	if err != nil {
		return nil
	}
	for _, tid := range tids {
		task := dir + "/task/" + strconv.Itoa(tid)
		if s, err := procfs.ReadStat(task); err == nil && !s.Ended() {
			live = append(live, task)
		}
	}
	return live
}
