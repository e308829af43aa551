package agent

import "testing"

// The error of a step that fails has its name.
func TestStepNamesAreUnique(t *testing.T) {
	for role, steps := range map[string][]step{
		"standalone": (&standalone{}).steps(), "server": (&server{}).steps(), "node": (&node{}).steps(),
	} {
		seen := map[string]bool{}
		for _, s := range steps {
			if seen[s.name] {
				t.Errorf("%s has two steps %q", role, s.name)
			}
			seen[s.name] = true
		}
	}
}
