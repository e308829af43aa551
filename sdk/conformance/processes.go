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

// marked are the living processes that carry a mark or are in the group of pid.
func marked(mark string, group int) []int {
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
		state, pgrp := stateOf(pid)
		if state == "Z" || state == "" {
			continue
		}
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)) // not ours: not marked
		if pgrp == group || bytes.Contains(environ, []byte(envMark+"="+mark)) {
			found = append(found, pid)
		}
	}
	return found
}

// stateOf is a process's state and its group (proc(5), /proc/PID/stat).
func stateOf(pid int) (state string, group int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	// The name, in parentheses, may have anything in it.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 3 {
		return "", 0
	}
	group, _ = strconv.Atoi(fields[2])
	return fields[0], group
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
