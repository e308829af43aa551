package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pannier/pannier/internal/procfs"
)

// limit is how much of one core others may use. An idle machine's daemons use some percent.
const limit = 20

// moment is the CPU time that was used until then.
type moment struct {
	at        time.Time
	machine   time.Duration // by all cores, also by processes that have ended, and by other machines on the same host
	processes map[int]time.Duration
}

func now() (moment, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return moment{}, err
	}
	m := moment{at: time.Now(), processes: map[int]time.Duration{}}
	if m.machine, err = used(string(text)); err != nil {
		return m, err
	}
	all, err := procfs.Processes()
	for _, p := range all {
		m.processes[p.PID] = p.CPU
	}
	return m, err
}

// used reads the times of all cores (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal.
func used(stat string) (sum time.Duration, err error) {
	const idle, iowait, steal = 3, 4, 7
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < steal+2 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for n, field := range fields[1 : steal+2] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		if n != idle && n != iowait {
			sum += time.Duration(ticks) * (time.Second / 100)
		}
	}
	return sum, nil
}

// busy is what others used, in percent of one core.
type busy struct {
	percent float64
	who     []process // the busiest come first
}

type process struct {
	pid     int
	percent float64
}

// look measures for a period what others than this process use.
func look(period time.Duration) (busy, error) {
	before, err := now()
	if err != nil {
		return busy{}, err
	}
	time.Sleep(period)
	after, err := now()
	if err != nil {
		return busy{}, err
	}
	return between(before, after, os.Getpid()), nil
}

// between returns what others than one process used between two moments.
func between(before, after moment, own int) (b busy) {
	percent := func(used time.Duration) float64 { return 100 * float64(used) / float64(after.at.Sub(before.at)) }
	b.percent = max(0, percent(after.machine-before.machine-(after.processes[own]-before.processes[own])))
	for pid, used := range after.processes {
		if share := percent(used - before.processes[pid]); pid != own && share >= 1 {
			b.who = append(b.who, process{pid, share})
		}
	}
	slices.SortFunc(b.who, func(a, b process) int { return cmp.Compare(b.percent, a.percent) })
	return b
}

// refuse explains why the machine is too busy for measurements.
func (b busy) refuse() error {
	if b.percent <= limit {
		return nil
	}
	var who []string
	for _, p := range b.who[:min(5, len(b.who))] {
		who = append(who, fmt.Sprintf("%s (process %d) %.0f %%", procfs.Command(p.pid), p.pid, p.percent))
	}
	if len(who) == 0 {
		who = append(who, "short programs, the kernel, or other machines on the same host")
	}
	return fmt.Errorf("this machine is busy: others use %.0f %% of a core, and at most %d %% are right for measurements: "+
		"%s. End them, or measure nevertheless with FORCE=1", b.percent, limit, strings.Join(who, ", "))
}
