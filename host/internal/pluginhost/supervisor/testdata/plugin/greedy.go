package main

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// eaten keeps the memory that eat takes.
var eaten [][]byte

// eat takes that many MiB of memory, at about 1 GiB a second, and keeps it.
func eat(mib int) {
	for range mib {
		piece := make([]byte, 1<<20)
		for i := range piece {
			piece[i] = byte(i)
		}
		eaten = append(eaten, piece)
		time.Sleep(time.Millisecond)
	}
}

// spin uses as much CPU time as it can get.
func spin() {
	for range 8 {
		go func() {
			for n := 0; ; n++ {
				_ = n
			}
		}()
	}
}

// bomb starts hidden children that only SIGKILL ends: each has its own session and an empty environment. It prints
// their pids.
func bomb(children int) (pids string) {
	for range children {
		cmd := exec.Command("/bin/sh", "-c", "trap '' TERM HUP INT; exec sleep 1000")
		cmd.Env = []string{}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return pids + err.Error()
		}
		pids += strconv.Itoa(cmd.Process.Pid) + " "
	}
	return pids
}

// mib returns the last of a mode's arguments, such as the 600 in "eat 600".
func mib() int {
	n, err := strconv.Atoi(os.Args[len(os.Args)-1])
	if err != nil {
		panic(err)
	}
	return n
}
