package acl

import (
	"maps"
	"slices"
	"strings"
)

// Capability is one thing that can be done in a namespace, under the name that Nomad
// has for it where it has one.
type Capability string

// The capabilities of a namespace.
const (
	Deny           Capability = "deny"
	ListWorkloads  Capability = "list-workloads"
	ReadWorkload   Capability = "read-workload"
	SubmitWorkload Capability = "submit-workload"
	CSIListVolume  Capability = "csi-list-volume"
	CSIReadVolume  Capability = "csi-read-volume"
	CSIWriteVolume Capability = "csi-write-volume"
	CSIMountVolume Capability = "csi-mount-volume"
)

// Capabilities are all of a namespace.
var Capabilities = []Capability{
	ListWorkloads, ReadWorkload, SubmitWorkload, CSIListVolume, CSIReadVolume, CSIWriteVolume, CSIMountVolume, Deny,
}

// shorthands are what policy in a namespace block stands for.
var shorthands = map[string][]Capability{
	"deny": {Deny},
	"read": {ListWorkloads, ReadWorkload, CSIListVolume, CSIReadVolume},
	"write": {
		ListWorkloads, ReadWorkload, SubmitWorkload, CSIListVolume, CSIReadVolume, CSIWriteVolume, CSIMountVolume,
	},
}

var shorthandNames = slices.Sorted(maps.Keys(shorthands))

// implied are the capabilities that one brings with it: who may read a thing may see that
// it is there.
var implied = map[Capability]Capability{
	ReadWorkload:   ListWorkloads,
	CSIReadVolume:  CSIListVolume,
	SubmitWorkload: ListWorkloads,
}

type capabilities map[Capability]bool

func (c capabilities) add(all ...Capability) {
	for _, one := range all {
		c[one] = true
		if more, ok := implied[one]; ok {
			c[more] = true
		}
	}
}

// Area is what has no namespace.
type Area string

// The areas.
const (
	Plugin   Area = "plugin"   // plugins and CSI drivers
	Node     Area = "node"     // nodes and their devices
	Operator Area = "operator" // servers, raft, keys, collection, what is done by force
	Agent    Area = "agent"    // one agent: its status, events and logs, and its end
)

// Level is how far someone may go in an area; each has those before it.
type Level int

// The levels. Plugins alone have List.
const (
	None Level = iota
	List
	Read
	Write
	denied // wins over all others
)

var levels = map[string]Level{"deny": denied, "list": List, "read": Read, "write": Write}

// String is the level as a policy has it.
func (l Level) String() string {
	for name, level := range levels {
		if level == l {
			return name
		}
	}
	return "none"
}

func levelNames(area Area) []string {
	if area == Plugin {
		return []string{"deny", "list", "read", "write"}
	}
	return []string{"deny", "read", "write"}
}

// Rules are what the policies of one caller allow together. The zero value, and nil, allow
// nothing; they never change.
type Rules struct {
	management bool
	namespaces map[string]capabilities
	levels     map[Area]Level
}

// Management allows everything.
var Management = &Rules{management: true}

// Merge makes the rules of several policies.
func Merge(policies ...Policy) *Rules {
	r := &Rules{namespaces: map[string]capabilities{}, levels: map[Area]Level{}}
	for _, p := range policies {
		for pattern, all := range p.namespaces {
			if r.namespaces[pattern] == nil {
				r.namespaces[pattern] = capabilities{}
			}
			maps.Copy(r.namespaces[pattern], all)
		}
		for area, level := range p.levels {
			r.levels[area] = max(r.levels[area], level)
		}
	}
	return r
}

// IsManagement says whether everything is allowed, tokens and policies included.
func (r *Rules) IsManagement() bool { return r != nil && r.management }

// AllowNamespace says whether a capability is allowed in a namespace.
func (r *Rules) AllowNamespace(namespace string, c Capability) bool {
	if r == nil || r.management {
		return r != nil
	}
	all := r.of(namespace)
	return all[c] && !all[Deny]
}

// AllowSomewhere says whether a capability is allowed in any namespace that there could be.
func (r *Rules) AllowSomewhere(c Capability) bool {
	if r == nil || r.management {
		return r != nil
	}
	for _, all := range r.namespaces {
		if all[c] && !all[Deny] {
			return true
		}
	}
	return false
}

// Allow says whether someone may go as far as level in an area.
func (r *Rules) Allow(area Area, level Level) bool {
	if r == nil || r.management {
		return r != nil
	}
	have := r.levels[area]
	return have != denied && have >= level
}

// of is what the most exact pattern of a namespace's name has: the name itself, then the
// one with the most letters of it. Patterns that are equally exact count together.
func (r *Rules) of(namespace string) capabilities {
	if all, exact := r.namespaces[namespace]; exact {
		return all
	}
	most, found := -1, capabilities{}
	for pattern, all := range r.namespaces {
		letters := len(pattern) - strings.Count(pattern, "*")
		if letters < most || letters == len(pattern) || !matches(pattern, namespace) {
			continue
		}
		if letters > most {
			most, found = letters, capabilities{}
		}
		maps.Copy(found, all)
	}
	return found
}

// matches says whether a pattern, in which * stands for any letters or none, is a name's.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return true
}
