package usage

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	child := exec.Command("sh", "-c", "while :; do :; done")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	here, own, its := CPUHere(t), CPU(t, os.Getpid()), CPU(t, child.Process.Pid)
	for late := time.Now().Add(time.Minute); CPU(t, child.Process.Pid) < its+50*time.Millisecond ||
		CPU(t, os.Getpid()) < own+50*time.Millisecond; {
		if time.Now().After(late) {
			t.Fatal("two busy loops used no CPU time")
		}
	}
	if grown := CPUHere(t) - here; grown < 100*time.Millisecond {
		t.Errorf("together they have used %s", grown)
	}
	if rss, peak := Memory(t, os.Getpid(), "VmRSS"), Memory(t, os.Getpid(), "VmHWM"); rss < 1 || peak < rss/2 {
		t.Errorf("this process has %.1f MiB of memory, and had %.1f at most", rss, peak)
	}
	before := WakeUps(t, os.Getpid())
	for range 10 {
		time.Sleep(time.Millisecond)
	}
	if more := WakeUps(t, os.Getpid()) - before; more < 5 {
		t.Errorf("this process has slept ten times, and was woken up %d times", more)
	}
}
