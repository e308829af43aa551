package resident

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// One of the threads that wake up less often is the one that, whenever it waits while another one works, does so in
// nanosleep(2) most of the time. The others are those that it has started, which inherit its slack.
func TestCalmMonitor(t *testing.T) {
	err := CalmMonitor()
	if errors.Is(err, os.ErrPermission) {
		t.Skip("that the runtime's monitor wakes up less often was not tested: it takes CAP_SYS_NICE")
	}
	if err != nil {
		t.Fatal(err)
	}
	const looks = 10_000
	asleep, waiting := map[string]int{}, map[string]int{}
	for _, thread := range calmThreads(t) {
		for range looks {
			call, err := os.ReadFile("/proc/self/task/" + thread + "/syscall")
			if errors.Is(err, os.ErrNotExist) {
				break // it has ended
			}
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_NANOSLEEP, " ")):
				asleep[thread]++
			case !strings.HasPrefix(string(call), "running"): // or it waits for a processor
				waiting[thread]++
			}
		}
		if asleep[thread] > max(waiting[thread], looks/100) {
			return
		}
	}
	t.Errorf("in %d looks each, the threads with the slack were asleep %v times, and waited for something else %v times: "+
		"none is the monitor", looks, asleep, waiting)
}

// calmThreads returns the threads of this process that have monitorSlack.
func calmThreads(t *testing.T) (calm []string) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		slack, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(string(slack)) == strconv.FormatInt(monitorSlack.Nanoseconds(), 10) {
			calm = append(calm, thread.Name())
		}
	}
	return calm
}
