package journal

import "sync"

// syncer lets callers that need an fsync at the same time share one: a sync that
// begins after a caller's write covers it, so at most two are ever waited for.
type syncer struct {
	do func() error

	mu      sync.Mutex
	running *round // under way: began before a caller that finds it
	waiting *round // begins when running ends
}

type round struct {
	done chan struct{}
	err  error
}

// Sync returns after an fsync that began after the call did.
func (s *syncer) Sync() error {
	s.mu.Lock()
	if s.running == nil {
		r := &round{done: make(chan struct{})}
		s.running = r
		s.mu.Unlock()
		s.run(r)
		return r.err
	}
	if s.waiting == nil {
		s.waiting = &round{done: make(chan struct{})}
		r, before := s.waiting, s.running
		s.mu.Unlock()
		<-before.done
		s.run(r)
		return r.err
	}
	r := s.waiting
	s.mu.Unlock()
	<-r.done
	return r.err
}

// run syncs for everyone in the round. Whoever made the round calls it, after
// the round before has ended.
func (s *syncer) run(r *round) {
	s.mu.Lock()
	if s.waiting == r {
		s.running, s.waiting = r, nil
	}
	s.mu.Unlock()
	r.err = s.do()
	s.mu.Lock()
	if s.running == r {
		s.running = nil
	}
	s.mu.Unlock()
	close(r.done)
}
