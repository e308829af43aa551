package testns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// patience bounds the wait for the end of a killed process.
const patience = 30 * time.Second

// runInNamespace runs the tests in a separate process there. However that ends (normally, interrupted, or after a
// timeout), all processes that it started and left, such as agents, are ended too.
func runInNamespace() (code int, err error) {
	// The kernel sends Pdeathsig when the thread that started the process ends.
	runtime.LockOSThread()
	// Processes that the tests leave become children of this process.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("become the parent of what the tests leave: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	tests := exec.Command("/proc/self/exe", os.Args[1:]...)
	tests.Env = append(os.Environ(), envParent+"="+strconv.Itoa(os.Getpid()))
	tests.Stdin, tests.Stdout, tests.Stderr = os.Stdin, os.Stdout, os.Stderr
	tests.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := tests.Start(); err != nil {
		return 1, err
	}
	go interrupt(tests.Process, signals)
	status, err := await(tests.Process.Pid)
	return max(status.ExitStatus(), 0), errors.Join(err, endLeftovers())
}

// interrupt ends the tests when this process, or its parent, is to end.
func interrupt(tests *os.Process, signals <-chan os.Signal) {
	parent := os.Getppid()
	orphan := time.NewTicker(time.Second)
	for {
		select {
		case <-signals:
		case <-orphan.C:
			if os.Getppid() == parent {
				continue
			}
		}
		_ = tests.Kill() // it may have ended
	}
}

// await waits for a process, and reaps orphans that end meanwhile.
func await(pid int) (status unix.WaitStatus, err error) {
	for {
		ended, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return status, fmt.Errorf("wait for the tests: %w", err)
		case ended == pid && status.Signaled():
			return status, fmt.Errorf("the tests were ended by a signal: %v", status.Signal())
		case ended == pid:
			return status, nil
		}
	}
}

// endLeftovers kills this process's children until there are none; their children become its own.
func endLeftovers() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		for ended := 1; ended > 0; {
			var err error
			ended, err = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) {
				return nil
			}
		}
		left := children()
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v, which the tests left, do not end within %v of SIGKILL", left, patience)
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL) // only this process reaps it, so the number cannot be reused
		}
	}
}

// children returns this process's children.
func children() (pids []int) {
	all, _ := procfs.Processes()
	for _, p := range all {
		if p.Parent == os.Getpid() {
			pids = append(pids, p.PID)
		}
	}
	return pids
}
