package measure

import (
	"testing"
	"time"
)

func TestTurnsAreBounded(t *testing.T) {
	count := func(n int, bound time.Duration) (turns int) {
		for turn := range Turns(n, bound) {
			if turn != turns {
				t.Fatalf("turn %d comes after %d others", turn, turns)
			}
			turns++
		}
		return turns
	}
	if n := count(1000, time.Hour); n != 1000 {
		t.Errorf("%d turns within an hour, want 1000", n)
	}
	if n := count(1<<40, 0); n != 2 {
		t.Errorf("%d turns without any time, want 2", n)
	}
	if n := count(1, 0); n != 1 {
		t.Errorf("%d turns, want 1", n)
	}
	*full = true
	defer func() { *full = false }()
	if n := count(1000, 0); n != 1000 {
		t.Errorf("%d turns of a full run, want 1000", n)
	}
}
