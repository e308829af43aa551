package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// step is a set of faults that begin together, and the pause after them.
type step struct {
	faults []fault
	lasts  time.Duration
	calm   time.Duration // after the faults have ended
}

func (s step) String() string {
	var faults []string
	for _, f := range s.faults {
		faults = append(faults, fmt.Sprint(f))
	}
	return fmt.Sprintf("%s, for %v, then calm for %v", strings.Join(faults, " and "), s.lasts, s.calm)
}

// fault is one fault. Its numbers select hosts and whatever else it needs.
type fault struct {
	name    string
	numbers [4]int
}

func (f fault) String() string { return f.name + fmt.Sprint(f.numbers) }

// network are the link faults: one of them is active at a time.
var network = []string{
	"cut off the leader", "cut off some servers", "cut off a node", "cut off a node from the servers",
	"nothing leaves a host", "nothing reaches a host",
	"30 % of the packets are lost", "packets are 200 ms late", "a host is far away",
}

// hosts are the faults of hosts.
var hosts = []string{
	"kill the leader", "kill a host", "kill the servers", "stop the leader", "stop a host", "stop a host for long",
	"stop a host in bursts",
	"a slow disk", "a slow disk of the leader", "restart from a snapshot", "another leader",
	"the fence is killed", "a driver hangs", "a frozen disk", "a full disk",
}

// alone are faults of hosts that come without one of the network. While the fence is stopped, or is killed with its
// agent, nothing stops a node that is cut off (docs/fencing.md, What is not bounded).
var alone = []string{
	"the fence is stopped", "agent and fence are killed", "a node is lost and detached by force",
	"a node is lost and purged", "a machine of the same name",
}

// plan is the list of steps of a seed.
func plan(seed uint64, lasts, letGo time.Duration) (steps []step) {
	chance := rand.New(rand.NewPCG(seed, 1))
	one := func(names []string) fault {
		f := fault{name: names[chance.IntN(len(names))]}
		for n := range f.numbers {
			f.numbers[n] = chance.IntN(1000)
		}
		return f
	}
	var all time.Duration
	for all < lasts {
		s := step{
			lasts: between(chance, 500*time.Millisecond, 3*time.Second),
			calm:  between(chance, 200*time.Millisecond, 1500*time.Millisecond),
		}
		if chance.IntN(2) == 0 {
			// Long enough for claims to be released, and for the volume to be taken.
			s.lasts = letGo + between(chance, 1500*time.Millisecond, 3500*time.Millisecond)
		}
		switch chance.IntN(5) {
		case 0:
			s.faults = []fault{one(network)}
		case 1:
			s.faults = []fault{one(hosts)}
		case 2:
			s.faults = []fault{one(alone)}
		default:
			s.faults = []fault{one(network), one(hosts)}
		}
		steps = append(steps, s)
		all += s.lasts + s.calm
	}
	if seed%2 == 1 {
		// A server is added after the first step, and removed before the last.
		steps[0].faults = append(steps[0].faults, fault{name: "a server is added"})
		steps[len(steps)-1].faults = []fault{{name: "it is removed"}}
	}
	return steps
}
