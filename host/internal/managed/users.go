package managed

import "sync"

// Users counts who uses a process. One that is retired gets no new ones.
type Users struct {
	mu       sync.Mutex
	n        int
	retired  bool
	retiring chan struct{} // closed when it is retired
	drained  chan struct{} // closed when it is retired and has no users left
}

// NewUsers returns no users.
func NewUsers() *Users { return &Users{retiring: make(chan struct{}), drained: make(chan struct{})} }

// Acquire adds a user, until release is called; further calls do nothing. It fails once the process is retired.
func (u *Users) Acquire() (release func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.retired {
		return nil, false
	}
	u.n++
	return sync.OnceFunc(func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.n--
		u.checkDrained()
	}), true
}

// Retire makes Acquire fail from now on.
func (u *Users) Retire() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.retired {
		u.retired = true
		close(u.retiring)
		u.checkDrained()
	}
}

func (u *Users) checkDrained() {
	if u.retired && u.n == 0 {
		close(u.drained)
	}
}

// Count returns how many there are.
func (u *Users) Count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.n
}

// Retired is closed by Retire.
func (u *Users) Retired() <-chan struct{} { return u.retiring }

// Drained is closed when the process is retired and has no users left.
func (u *Users) Drained() <-chan struct{} { return u.drained }
