package notify

import (
	"sync"
	"testing"
)

func TestNotifyWakesEveryWaiter(t *testing.T) {
	var b Broadcast
	b.Notify() // nobody waits
	var woken sync.WaitGroup
	for range 10 {
		changed := b.Wait()
		woken.Go(func() { <-changed })
	}
	b.Notify()
	woken.Wait()
}

func TestWaitIsForTheNextNotify(t *testing.T) {
	var b Broadcast
	before := b.Wait()
	b.Notify()
	after := b.Wait()
	select {
	case <-before:
	default:
		t.Error("Notify did not wake an earlier waiter")
	}
	select {
	case <-after:
		t.Error("an earlier Notify woke a later waiter")
	default:
	}
}

func TestNoChangeIsMissed(t *testing.T) {
	var b Broadcast
	var mu sync.Mutex
	value, want := 0, 1000
	go func() {
		for range want {
			mu.Lock()
			value++
			mu.Unlock()
			b.Notify()
		}
	}()
	for {
		changed := b.Wait()
		mu.Lock()
		got := value
		mu.Unlock()
		if got == want {
			return
		}
		<-changed
	}
}
