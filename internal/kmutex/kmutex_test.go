package kmutex

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

func TestOneAtATimeForEachKey(t *testing.T) {
	var l Locks[string]
	var wg sync.WaitGroup
	inside := map[string]*int{"a": new(int), "b": new(int)}
	for key, n := range inside {
		for range 50 {
			wg.Go(func() {
				unlock, err := l.Lock(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				defer unlock()
				*n++ // the race detector sees two
			})
		}
	}
	wg.Wait()
	for key, n := range inside {
		if *n != 50 || l.Users(key) != 0 {
			t.Errorf("%s: %d were inside, %d users are left", key, *n, l.Users(key))
		}
	}
	if n := l.Len(); n != 0 {
		t.Errorf("%d locks are kept", n)
	}
}

func TestSlots(t *testing.T) {
	l := Locks[string]{Slots: 2}
	var unlocks []func()
	for range l.Slots {
		unlock, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		unlocks = append(unlocks, unlock)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.Lock(ctx, "a"); err == nil {
		t.Error("three hold a lock for two")
	}
	unlocks[0]()
	again, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	again()
	unlocks[1]()
	if n := l.Len(); n != 0 {
		t.Errorf("%d locks are kept", n)
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	var l Locks[string]
	unlock, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Lock(t.Context(), "b") // not in the way
	if err != nil {
		t.Fatal(err)
	}
	other()
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, gone) {
		t.Errorf("waiting gave %v", err)
	}
	if n := l.Users("a"); n != 1 {
		t.Errorf("%d users, want the holder alone", n)
	}
	unlock()
}
