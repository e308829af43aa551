package process

import (
	"slices"
	"testing"
	"time"
)

// A process that starts in a room is in its control groups, and no thread of the host stays there.
func TestRoom(t *testing.T) {
	room := prepare(t)
	spec := shell(t, loop)
	spec.Token, spec.Limits, spec.Room = room.Token(), room.spec.Limits, room
	spec.DieWithHost = true // so that the thread that forked stays
	p := mustStart(t, spec)
	room.Close()
	inV1 := Ref{Token: room.Token(), PidsCgroup: p.Ref().PidsCgroup}
	if inside := inCgroups(inV1); !slices.Contains(inside, p.PID()) {
		t.Errorf("processes %v are in %s, and the new one is %d", inside, inV1.PidsCgroup, p.PID())
	}
	noThreads(t, room.Token())
	if err := p.Stop(within(t, 5*time.Second)); err != nil {
		t.Fatal(err)
	}
	noCgroups(t, p.Ref())
}

// Nothing is left of a room that is not used, or in which a start fails.
func TestRoomIsClosed(t *testing.T) {
	unused := prepare(t)
	unused.Close()
	failed := prepare(t)
	spec := shell(t, "")
	spec.Token, spec.Limits, spec.Room = failed.Token(), failed.spec.Limits, failed
	spec.Path = "/does/not/exist"
	if _, err := Start(spec); err == nil {
		t.Fatal("started")
	}
	failed.Close()
	for _, r := range []*Room{unused, failed} {
		noThreads(t, r.Token())
		noCgroups(t, r.spec.Intent())
	}
}

func prepare(t *testing.T) *Room {
	t.Helper()
	r := Prepare(Limits{Processes: 50})
	if r == nil {
		t.Skip("needs the pids hierarchy of cgroup v1; not covered: rooms")
	}
	t.Cleanup(r.Close)
	return r
}
