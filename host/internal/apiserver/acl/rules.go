package acl

import (
	"maps"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
)

// Capability is one thing that can be done in a namespace, named as in Nomad where Nomad has it.
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
	// CSIForeignSnapshots is to use what the ledger does not know as the source of a volume. It is in no shorthand.
	CSIForeignSnapshots Capability = "csi-foreign-snapshots"
)

// Capabilities lists all capabilities of a namespace.
var Capabilities = []Capability{
	ListWorkloads, ReadWorkload, SubmitWorkload, CSIListVolume, CSIReadVolume, CSIWriteVolume, CSIMountVolume,
	CSIForeignSnapshots, Deny,
}

// shorthands are the values of policy in a namespace block.
var shorthands = map[string][]Capability{
	"deny": {Deny},
	"read": {ListWorkloads, ReadWorkload, CSIListVolume, CSIReadVolume},
	"write": {
		ListWorkloads, ReadWorkload, SubmitWorkload, CSIListVolume, CSIReadVolume, CSIWriteVolume, CSIMountVolume,
	},
}

// implied maps a capability to one that it includes. For example, a caller that may read an object may list
// it.
var implied = map[Capability]Capability{
	ReadWorkload:   ListWorkloads,
	CSIReadVolume:  CSIListVolume,
	SubmitWorkload: ListWorkloads,
}

// grant is what policies allow in the namespaces of one pattern.
type grant struct {
	capabilities map[Capability]bool
	services     []string // patterns of names
}

func newGrant() grant { return grant{capabilities: map[Capability]bool{}} }

func (g grant) add(all ...Capability) {
	for _, one := range all {
		g.capabilities[one] = true
		if more, ok := implied[one]; ok {
			g.capabilities[more] = true
		}
	}
}

// with returns both grants together.
func (g grant) with(other grant) grant {
	maps.Copy(g.capabilities, other.capabilities)
	g.services = append(g.services, other.services...)
	return g
}

func (g grant) allows(c Capability) bool { return g.capabilities[c] && !g.capabilities[Deny] }

// Area is a part of the API without namespaces.
type Area string

// The areas.
const (
	Plugin   Area = "plugin"   // plugins and CSI drivers
	Node     Area = "node"     // nodes and their devices
	Operator Area = "operator" // servers, raft, keys, garbage collection, forced operations
	Agent    Area = "agent"    // one agent: its status, events, logs and stop
)

// Level is the access to an area. Each level includes those before it.
type Level int

// The levels. Only plugins have List.
const (
	None Level = iota
	List
	Read
	Write
	denied // overrides all others
)

var levels = map[string]Level{"deny": denied, "list": List, "read": Read, "write": Write}

// String returns the level as policies have it.
func (l Level) String() string {
	for name, level := range levels {
		if level == l {
			return name
		}
	}
	return "none"
}

// Rules are one caller's merged policies. They never change. The zero value and nil allow nothing.
type Rules struct {
	management bool
	within     []string         // patterns of namespaces that bound the rest; none: it is not bounded
	namespaces map[string]grant // by pattern
	levels     map[Area]Level
}

// Management allows everything.
var Management = &Rules{management: true}

// Merge combines policies.
func Merge(policies ...Policy) *Rules {
	r := &Rules{namespaces: map[string]grant{}, levels: map[Area]Level{}}
	for _, p := range policies {
		for pattern, granted := range p.namespaces {
			before, ok := r.namespaces[pattern]
			if !ok {
				before = newGrant()
			}
			r.namespaces[pattern] = before.with(granted)
		}
		for area, level := range p.levels {
			r.levels[area] = max(r.levels[area], level)
		}
	}
	return r
}

// Within bounds the rules to namespaces that match one of the patterns. Of what has no namespace, only reading is left,
// and of agents, which are about all namespaces, nothing. Without patterns they stay as they are.
func (r *Rules) Within(patterns []string) *Rules {
	if r == nil || len(patterns) == 0 {
		return r
	}
	bounded := *r
	bounded.within = patterns
	return &bounded
}

// IsManagement reports whether everything is allowed, including tokens and policies.
func (r *Rules) IsManagement() bool { return r != nil && r.management && r.within == nil }

// AllowNamespace reports whether a capability is allowed in a namespace.
func (r *Rules) AllowNamespace(namespace string, c Capability) bool {
	if r.excludes(namespace) {
		return false
	}
	return r.management || r.of(namespace).allows(c)
}

// excludes reports whether the rules allow nothing in a namespace, whatever the policies say.
func (r *Rules) excludes(namespace string) bool {
	return r == nil || r.within != nil && !claim.AmongNamespaces(r.within, namespace)
}

// AllowService reports whether a workload of a namespace may have a service of that name in Consul, with the identity
// that this gives it. A namespace has no such names by default.
func (r *Rules) AllowService(namespace, name string) bool {
	if r.excludes(namespace) || r.management {
		return !r.excludes(namespace)
	}
	g := r.of(namespace)
	return !g.capabilities[Deny] &&
		slices.ContainsFunc(g.services, func(pattern string) bool { return matches(pattern, name) })
}

// AllowSomewhere reports whether a capability is allowed in any possible namespace.
func (r *Rules) AllowSomewhere(c Capability) bool {
	if r == nil || r.management {
		return r != nil
	}
	for _, g := range r.namespaces {
		if g.allows(c) {
			return true
		}
	}
	return false
}

// Allow reports whether a level of an area is allowed.
func (r *Rules) Allow(area Area, level Level) bool {
	if r != nil && r.within != nil && (level > Read || area == Agent) {
		return false
	}
	if r == nil || r.management {
		return r != nil
	}
	have := r.levels[area]
	return have != denied && have >= level
}

// of returns the grant of the most specific pattern that matches a namespace: its exact name, else the pattern with
// the most literal characters. Equally specific patterns are merged.
func (r *Rules) of(namespace string) grant {
	if g, exact := r.namespaces[namespace]; exact {
		return g
	}
	most, found := -1, newGrant()
	for pattern, g := range r.namespaces {
		letters := len(pattern) - strings.Count(pattern, "*")
		if letters < most || letters == len(pattern) || !matches(pattern, namespace) {
			continue
		}
		if letters > most {
			most, found = letters, newGrant()
		}
		found = found.with(g)
	}
	return found
}

// matches reports whether a name matches a pattern, in which * stands for any characters or none.
func matches(pattern, name string) bool {
	if !strings.Contains(pattern, "*") {
		return pattern == name
	}
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
