package claim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// CheckReachable checks that the volume can be used on a node whose driver told this topology:
// that the node is in one of the volume's (CSI spec, Volume.accessible_topology). A
// volume without any can be reached from everywhere, and a node whose driver told none
// is bound to no place. The error is ErrUnreachable and names the segments.
func (v *Volume) CheckReachable(node string, topology map[string]string) error {
	if len(v.Topologies) == 0 || len(topology) == 0 {
		return nil
	}
	var where, has []string
	for _, t := range v.Topologies {
		differs := slices.DeleteFunc(slices.Sorted(maps.Keys(t.Segments)), func(key string) bool { return topology[key] == t.Segments[key] })
		if len(differs) == 0 {
			return nil
		}
		var at []string
		for _, key := range differs {
			at = append(at, key+"="+t.Segments[key])
			if of, ok := topology[key]; ok {
				has = append(has, key+"="+of)
			} else {
				has = append(has, "no "+key)
			}
		}
		where = append(where, strings.Join(at, ","))
	}
	slices.Sort(has)
	return fmt.Errorf("%w: volume %q is in %s, node %q has %s", ErrUnreachable, v.VolumeRef,
		strings.Join(where, " or in "), node, strings.Join(slices.Compact(has), ","))
}
