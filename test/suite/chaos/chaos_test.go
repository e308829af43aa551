package chaos

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// lasts is the length of one seed's fault plan.
const lasts = 40 * time.Second

// long is the command that runs one seed for that length.
const long = "make chaos SEED=%d"

// TestChaos runs the fault plan of each seed and judges the outcome.
func TestChaos(t *testing.T) {
	switch {
	case *seed != 0:
		length := lasts
		if *duration != 0 {
			length = *duration
		}
		tell(t, *seed, length, fmt.Sprintf(long, *seed))
	case *duration != 0:
		all := map[string]int{}
		for end := time.Now().Add(*duration); time.Now().Before(end) && !t.Failed(); {
			next := rand.Uint64N(1_000_000) + 1
			t.Run(fmt.Sprint(next), func(t *testing.T) {
				for id, n := range tell(t, next, lasts, fmt.Sprintf(long, next)) {
					all[id] += n
				}
			})
		}
		t.Logf("in all seeds volumes changed their node %v times", all)
	default:
		for _, c := range cases {
			t.Run(fmt.Sprint(c.seed), func(t *testing.T) {
				t.Parallel()
				tell(t, c.seed, c.lasts, fmt.Sprintf("go test -count=1 -v -run TestChaos/%d ./test/suite/chaos", c.seed))
			})
		}
	}
}
