package kmutex

import (
	"context"
	"errors"
	"sync"
	"testing"
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

func TestTryLock(t *testing.T) {
	var l Locks[string]
	unlock := l.TryLock("a")
	if unlock == nil || l.TryLock("a") != nil {
		t.Fatal("a free lock is not had, or one that is held is")
	}
	if n := l.Users("a"); n != 1 {
		t.Errorf("%d users", n)
	}
	unlock()
	if again, err := l.Lock(t.Context(), "a"); err != nil {
		t.Error(err)
	} else {
		again()
	}
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
