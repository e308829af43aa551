package resident

import (
	"testing"
	"testing/synctest"
	"time"
)

// Processes that begin at any time wait until the same moments.
func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, begin := range []time.Duration{0, time.Nanosecond, 7 * time.Second, 19999 * time.Millisecond} {
			time.Sleep(begin)
			pause := Until(20 * time.Second)
			if pause <= 0 || pause > 20*time.Second {
				t.Errorf("begun after %s: a pause of %s", begin, pause)
			}
			if time.Sleep(pause); time.Now().Second()%20 != 0 || time.Now().Nanosecond() != 0 {
				t.Errorf("begun after %s: it waited until %s", begin, time.Now())
			}
		}
	})
}
