package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/bench/table"
)

func TestBetween(t *testing.T) {
	at := time.Unix(100, 0)
	before := moment{at, time.Hour, map[int]time.Duration{1: time.Minute, 2: time.Minute, 3: time.Minute}}
	after := func(machine, first, second, own time.Duration) moment {
		return moment{at.Add(2 * time.Second), time.Hour + machine, map[int]time.Duration{
			1: time.Minute + first, 2: time.Minute + second, 3: time.Minute + own, 4: second,
		}}
	}
	for _, c := range []struct {
		name  string
		after moment
		want  string
		busy  bool
	}{
		{"nothing", after(0, 0, 0, 0), "0: []", false},
		{"this process", after(2*time.Second, 0, 0, 2*time.Second), "0: []", false},
		{"little", after(400*time.Millisecond, 400*time.Millisecond, 0, 0), "20: [{1 20}]", false},
		{"more", after(420*time.Millisecond, 400*time.Millisecond, 0, 0), "21: [{1 20}]", true},
		{"ended processes", after(time.Second, 0, 0, 0), "50: []", true},
		{
			"the busiest first",
			after(4*time.Second, time.Second, 30*time.Millisecond, time.Second),
			"150: [{1 50} {2 1.5} {4 1.5}]",
			true,
		},
	} {
		b := between(before, c.after, 3)
		if len(b.who) == 3 && b.who[1].pid == 4 { // equal shares have no order
			b.who[1], b.who[2] = b.who[2], b.who[1]
		}
		if got := fmt.Sprintf("%.0f: %v", b.percent, b.who); got != c.want {
			t.Errorf("%s: others use %s, want %s", c.name, got, c.want)
		}
		if err := b.refuse(); (err != nil) != c.busy {
			t.Errorf("%s: refused with %v", c.name, err)
		}
	}
}

func TestUsed(t *testing.T) {
	got, err := used("cpu  1 2 4 800 1600 8 16 32 64 128\ncpu0 1 1 1 1\n")
	if err != nil || got != 630*time.Millisecond {
		t.Errorf("used is %v, %v, want 630ms: all but idle, iowait and the guests, which user has", got, err)
	}
	for _, text := range []string{"", "cpu 1 2 3", "cpu 1 2 3 4 5 6 7 x 9"} {
		if _, err := used(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

// A real busy process is found, refused by its name and number, and measured beside with force.
func TestBusyMachine(t *testing.T) {
	loop := exec.Command("sh", "-c", "while :; do :; done")
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = loop.Process.Kill()
		_ = loop.Wait()
	}()
	for late := time.Now().Add(time.Minute); ; {
		b, err := look(200 * time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		named := ""
		if err := b.refuse(); err != nil {
			named = err.Error()
		}
		if strings.Contains(named, fmt.Sprintf("(process %d)", loop.Process.Pid)) && strings.Contains(named, "FORCE=1") {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("process %d is busy, and not found: %+v, %s", loop.Process.Pid, b, named)
		}
	}
	out := filepath.Join(t.TempDir(), "results.json")
	if err := begin(out, "1.2.3", false); err == nil || !strings.Contains(err.Error(), "this machine is busy") {
		t.Errorf("the busy machine is taken: %v", err)
	}
	if _, err := table.Read(out); err == nil {
		t.Error("there are results, though the machine is busy")
	}
	if err := begin(out, "1.2.3", true); err != nil {
		t.Fatal(err)
	}
	r, err := table.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	if m := r.Machine; m.Busy <= limit || m.Version != "1.2.3" || m.Cores == 0 || m.SyncP50 <= 0 || m.FileSystem == "" {
		t.Errorf("the machine is %+v", m)
	}
}
