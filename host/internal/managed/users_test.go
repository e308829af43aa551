package managed

import "testing"

// A process is drained when its last user releases it, and cannot be acquired once it is retired.
func TestUsers(t *testing.T) {
	u := NewUsers()
	drained := func() bool {
		select {
		case <-u.Drained():
			return true
		default:
			return false
		}
	}
	first, ok := u.Acquire()
	if !ok {
		t.Fatal("acquire failed")
	}
	second, _ := u.Acquire()
	if u.Count() != 2 {
		t.Errorf("%d users, want 2", u.Count())
	}
	u.Retire()
	u.Retire()
	if _, ok := u.Acquire(); ok {
		t.Error("a retired process was acquired")
	}
	first()
	first() // a second release by one user does not count for the other
	if drained() {
		t.Error("drained, although one user is left")
	}
	second()
	if !drained() {
		t.Error("not drained by the last release")
	}
	if u = NewUsers(); drained() {
		t.Error("drained before it is retired")
	}
	if u.Retire(); !drained() {
		t.Error("not drained without users")
	}
}
