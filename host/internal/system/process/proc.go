package process

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/pannier/pannier/internal/procfs"
)

// living lists the processes that have not ended.
func living() []procfs.Stat {
	all, err := procfs.Processes()
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, procfs.Stat.Ended)
}

// hasToken tells whether a process was started with a token. A process whose
// environment we may not read is not ours.
func hasToken(pid int, token string) bool {
	env, err := os.ReadFile(procfs.Dir(pid) + "/environ")
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

// leaderWithToken finds the process that Start made with this token: the oldest
// one that carries the token and leads its group.
func leaderWithToken(token string) (pid int, ok bool) {
	var oldest procfs.Stat
	for _, s := range living() {
		if s.PID != s.Group || oldest.PID != 0 && s.StartTime >= oldest.StartTime || !hasToken(s.PID, token) {
			continue
		}
		oldest = s
	}
	return oldest.PID, oldest.PID != 0
}

// bootID tells one start of the machine from another.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
})
