package conformance

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// envMark marks a process and what it starts, as a host does.
const envMark = "PANNIER_PROCESS_ID"

// marked are the living processes that carry a mark or are in the group of its leader,
// a pid. Those that were there before the leader was started are not looked at.
func marked(mark string, leader int, since uint64) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		s := statOf(pid)
		if s.state == "Z" || s.state == "" || s.start < since {
			continue
		}
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // not ours: not marked
		if s.group == leader || bytes.Contains(environ, []byte(envMark+"="+mark)) {
			found = append(found, pid)
		}
	}
	return found
}

// stat is of proc(5), /proc/PID/stat; empty where the process is gone.
type stat struct {
	state string
	group int
	start uint64 // in clock ticks since boot
}

func statOf(pid int) (s stat) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s
	}
	// The name, in parentheses, may have anything in it. The state is the third field.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return s
	}
	s.state = fields[0]
	s.group, _ = strconv.Atoi(fields[2])
	s.start, _ = strconv.ParseUint(fields[19], 10, 64)
	return s
}

// public is what others may read of a process: its arguments and its environment.
func public(pid int) string {
	var out strings.Builder
	for _, name := range []string{"cmdline", "environ"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name)) // it may have ended
		out.Write(bytes.ReplaceAll(text, []byte{0}, []byte{'\n'}))
		out.WriteByte('\n')
	}
	return out.String()
}
