package nomad

import (
	"strings"
	"testing"
)

// A node is known by its name, its id or the beginning of that. What Nomad's command line has cut off must not lead to
// another node.
func TestNodeNamed(t *testing.T) {
	const bad, none = "any of several", "no claims on a node"
	for name, test := range map[string]struct {
		given   string
		holders []string
		want    string
		says    string
	}{
		"the name":               {"n1", []string{"n1", "n2"}, "n1", ""},
		"two claims of one node": {"n1", []string{"n1", "n1"}, "n1", ""},
		"the id":                 {nodeID("n10"), []string{"n1", "n10"}, "n10", ""},
		"the beginning of an id": {nodeID("n2")[:6], []string{"n1", "n2"}, "n2", ""},
		"cut, and only one":      {"n1", []string{"n10", "n2"}, "n10", ""},
		"cut, or another's name": {"n1", []string{"n1", "n10"}, "", bad},
		"cut, with hyphens":      {"node-", []string{"node-1"}, "node-1", ""},
		"cut, of two":            {"node-", []string{"node-1", "node-2"}, "", bad},
		"another node":           {"n3", []string{"n1", "n2"}, "", none},
		"nobody holds it":        {"n1", nil, "", none},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := nodeNamed(test.given, test.holders)
			if got != test.want || (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %q, %v", got, err)
			}
			if test.says == bad && !strings.Contains(err.Error(), nodeID(test.holders[0])) {
				t.Errorf("it does not have the ids: %v", err)
			}
		})
	}
}
