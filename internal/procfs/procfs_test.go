package procfs

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	line := "7 (a ) b (c) S 1 5 6 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2\n"
	got, err := parseStat(line)
	want := Stat{
		PID: 7, State: 'S', Parent: 1, Group: 5, Session: 6, Threads: 1, StartTime: 987654,
		CPU: 110 * time.Millisecond, ChildCPU: 150 * time.Millisecond,
	}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{
		"", "7 (a", "7 (a) S 1 2",
		"7 (a) S 1 x 5 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1",
	} {
		if s, err := parseStat(bad); err == nil {
			t.Errorf("%q was read as %+v", bad, s)
		}
	}
}

func TestThisProcess(t *testing.T) {
	pid := os.Getpid()
	s, err := ReadStat(Dir(pid))
	if err != nil || s.PID != pid || s.Parent != os.Getppid() || s.Ended() || s.StartTime == 0 {
		t.Errorf("got %+v, %v", s, err)
	}
	all, err := Processes()
	if err != nil || !slices.ContainsFunc(all,
		func(other Stat) bool { return other.PID == pid && other.StartTime == s.StartTime }) {
		t.Errorf("this process is not in the list: %v", err)
	}
	threads, err := Numbers(Dir(pid) + "/task")
	if err != nil || !slices.Contains(threads, pid) {
		t.Errorf("the threads are %v, %v", threads, err)
	}
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if fds := Descriptors(pid, "/dev/null"); !slices.Contains(fds, int(file.Fd())) {
		t.Errorf("the descriptors of /dev/null are %v, without %d", fds, file.Fd())
	}
	if inode, err := MountNamespace(Dir(pid)); err != nil || inode == 0 {
		t.Errorf("the mount namespace is %d, %v", inode, err)
	}
}

func TestAProcessThatDoesNotExist(t *testing.T) {
	for _, f := range []func(string) error{
		func(dir string) error { _, err := ReadStat(dir); return err },
		func(dir string) error { _, err := MountNamespace(dir); return err },
	} {
		if err := f(Dir(1 << 30)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got %v", err)
		}
	}
}
