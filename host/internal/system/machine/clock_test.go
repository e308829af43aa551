package machine

import (
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// maxDrift is how much the clock of a lease may drift.
const maxDrift = 0.101

// TestClockRate: what the time daemons in use can do is within maxDrift; what the kernel permits beyond that is not.
func TestClockRate(t *testing.T) {
	const second = 1 << 16 // the unit of frequencies, per ppm
	for name, row := range map[string]struct {
		timex unix.Timex
		want  float64
		safe  bool
	}{
		"undisciplined":                  {unix.Timex{Tick: 10000, Status: unix.STA_UNSYNC, Constant: 2}, 0.0005, true},
		"chronyd at rest":                {unix.Timex{Tick: 10000, Freq: -30 * second}, 0.00053, true},
		"chronyd slews up":               {unix.Timex{Tick: 10833, Freq: 300 * second}, 0.0841, true},
		"chronyd slews down":             {unix.Timex{Tick: 9167, Freq: -300 * second}, 0.0841, true},
		"chronyd at the kernel's bounds": {unix.Timex{Tick: 11000, Freq: 500 * second}, 0.101, true},
		"ntpd, poll 64 s": {
			unix.Timex{Tick: 10000, Status: unix.STA_PLL | unix.STA_NANO, Constant: 6}, 0.0025, true,
		},
		"timesyncd, its first poll": {unix.Timex{Tick: 10000, Status: unix.STA_PLL, Constant: 5}, 0.0044, true},
		"the shortest loop": {
			unix.Timex{Tick: 10000, Status: unix.STA_PLL | unix.STA_NANO, Constant: 0}, 0.1255, false,
		},
		"a loop beside a slewed tick": {unix.Timex{Tick: 11000, Status: unix.STA_PLL, Constant: 3}, 0.1161, false},
	} {
		got := clockRate(&row.timex)
		if math.Abs(got-row.want) > 1e-4 || (got <= maxDrift+ppm) != row.safe {
			t.Errorf("%s: %.4f, want %.4f", name, got, row.want)
		}
	}
}

// TestCheckClock reads this machine's clock, and changes nothing.
func TestCheckClock(t *testing.T) {
	var before, after unix.Timex
	if _, err := unix.Adjtimex(&before); err != nil {
		t.Skipf("adjtimex is not permitted here: %v", err)
	}
	err := CheckClock(maxDrift)
	if _, e := unix.Adjtimex(&after); e != nil {
		t.Fatal(e)
	}
	if rate := clockRate(&after); (err == nil) != (rate <= maxDrift+ppm) {
		t.Errorf("the clock may be off by %.4f: %v", rate, err)
	}
	if err != nil && !strings.Contains(err.Error(), "time constant") {
		t.Errorf("it does not say what to change: %v", err)
	}
}
