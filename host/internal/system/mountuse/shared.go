package mountuse

import "sync"

// shared gives one reading to all that wait for it at the same time: many releases at once each need to know what is
// mounted now, and none needs a look of its own. The reading begins after each of them has asked. What it returns is
// shared: it must not be changed.
type shared[T any] struct {
	read func() (T, error)

	reads sync.Mutex // held by the one reading at a time
	mu    sync.Mutex
	next  *reading[T] // has not begun; nil: nobody waits
}

type reading[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (s *shared[T]) get() (T, error) { return s.wait(s.ask()) }

// ask returns a reading that has not begun.
func (s *shared[T]) ask() *reading[T] {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = &reading[T]{}
	}
	return s.next
}

func (s *shared[T]) wait(r *reading[T]) (T, error) {
	r.once.Do(func() {
		s.reads.Lock()
		defer s.reads.Unlock()
		s.mu.Lock()
		s.next = nil // it begins: whoever asks from now on needs the next one
		s.mu.Unlock()
		r.value, r.err = s.read()
	})
	return r.value, r.err
}
