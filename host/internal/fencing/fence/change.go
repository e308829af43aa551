package fence

import (
	"maps"
	"slices"
)

// Change is what may be done to what a fence knows (Client.Update).
type Change struct{ to *book }

// SetTimes sets when the lease ends.
func (c Change) SetTimes(t Times) { c.to.times = t }

// Protect adds mounts, by their paths.
func (c Change) Protect(mounts ...Mount) {
	for _, m := range mounts {
		c.to.mounts[m.Path] = m
	}
}

// Release takes mounts out, by their paths.
func (c Change) Release(mounts ...Mount) {
	for _, m := range mounts {
		delete(c.to.mounts, m.Path)
	}
}

// ProtectProcess adds a process.
func (c Change) ProtectProcess(p Process) { c.to.processes[p.PID] = p }

// ReleaseProcess takes a process out, unless its pid is another's.
func (c Change) ReleaseProcess(p Process) {
	if c.to.processes[p.PID].StartTime == p.StartTime {
		delete(c.to.processes, p.PID)
	}
}

// book is a State, by path and by pid.
type book struct {
	times     Times
	mounts    map[string]Mount
	processes map[int]Process
}

func newBook(s State) *book {
	b := &book{times: s.Times, mounts: map[string]Mount{}, processes: map[int]Process{}}
	Change{b}.Protect(s.Mounts...)
	for _, p := range s.Processes {
		Change{b}.ProtectProcess(p)
	}
	return b
}

// state is the book as a State of its own, sorted.
func (b *book) state() State {
	s := State{Times: b.times}
	for _, path := range slices.Sorted(maps.Keys(b.mounts)) {
		s.Mounts = append(s.Mounts, b.mounts[path])
	}
	for _, pid := range slices.Sorted(maps.Keys(b.processes)) {
		s.Processes = append(s.Processes, b.processes[pid])
	}
	return s
}

// With is the state after a change.
func (s State) With(change func(Change)) State {
	b := newBook(s)
	change(Change{b})
	return b.state()
}
