package process

import "sync"

// Room is where a process will start: its control groups, and a thread of the host that is in them and forks it. To
// move a thread into a group of cgroup v1 takes long (cgroups.enter); meanwhile the caller can do something else.
type Room struct {
	spec   Spec // with the token and the limits
	groups *cgroups
	ready  chan struct{} // closed when the thread is in groups
	use    chan func()   // what the thread does there; closed: nothing
	used   bool
	ended  sync.WaitGroup
}

// Prepare begins to make room for a process with these limits, and returns at once; nil if that takes no time. The
// caller calls Close.
func Prepare(limits Limits) *Room {
	r := &Room{
		spec: Spec{Token: NewToken(), Limits: limits}, ready: make(chan struct{}), use: make(chan func()),
	}
	if _, pids := r.spec.cgroups(); pids == "" {
		return nil
	}
	r.ended.Go(func() {
		OnOwnThread(func() {
			r.groups = makeCgroups(r.spec)
			r.groups.enter()
			close(r.ready)
			if f, ok := <-r.use; ok {
				f()
			}
		})
	})
	return r
}

// Token is that of the process (Spec.Token).
func (r *Room) Token() string { return r.spec.Token }

// Suits says whether the room is for a process with these limits; nil suits none.
func (r *Room) Suits(limits Limits) bool { return r != nil && r.spec.Limits == limits }

// Close removes the room if no process has been started in it.
func (r *Room) Close() {
	if r == nil || r.used {
		return
	}
	r.used = true
	close(r.use)
	r.ended.Wait()
	r.groups.close()
	removeCgroups(r.spec.Intent())
}

// cgroups waits until the thread is in the control groups, and returns them.
func (r *Room) cgroups() *cgroups {
	<-r.ready
	return r.groups
}

// run makes the thread do f. It does so once; then, and for nil, run returns false.
func (r *Room) run(f func()) bool {
	if r == nil || r.used {
		return false
	}
	r.used = true
	r.use <- f
	return true
}
