package watcher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pannier/pannier/cluster/command"
)

// A state change waits for those of the other releases that are under way, but not for long, and not without others.
func TestStateChangesWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sizes []int
		marks := checkpoints{apply: func(_ context.Context, _ string, items ...command.Advance) (
			result command.AdvanceClaimsResult, err error,
		) {
			sizes = append(sizes, len(items))
			return result, nil
		}}
		put := func(n, releases int) time.Duration {
			marks.releases.Store(int32(releases))
			began := time.Now()
			var all sync.WaitGroup
			for i := range n {
				all.Go(func() {
					time.Sleep(time.Duration(i) * time.Millisecond / 10)
					if err := marks.put(t.Context(), command.Advance{Volume: ref(fmt.Sprint(i))}); err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			return time.Since(began)
		}
		if took := put(1, 1); took != 0 {
			t.Errorf("a change waits %s for no other", took)
		}
		if took := put(5, 5); took != 400*time.Microsecond {
			t.Errorf("five changes take %s, though no other is to be expected after the last", took)
		}
		if took := put(2, 5); took != gather {
			t.Errorf("two changes wait %s for others that do not come", took)
		}
		if !slices.Equal(sizes, []int{1, 5, 2}) {
			t.Errorf("commands of %v", sizes)
		}
	})
}
