// Package notify wakes everyone who waits for a change.
package notify

import "sync"

// Broadcast wakes all its waiters at once. The zero value is ready; it must not be copied after first use.
type Broadcast struct {
	mu   sync.Mutex
	next chan struct{} // nil while nobody waits
}

// Wait returns a channel that the next Notify closes. To miss no change, call Wait first, then read what may
// have changed, then wait on the channel.
func (b *Broadcast) Wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Notify closes the channels that Wait has returned so far. It never blocks.
func (b *Broadcast) Notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}
