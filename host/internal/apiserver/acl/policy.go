package acl

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/internal/errcode"
)

// Policy is the parsed text of one policy.
type Policy struct {
	namespaces map[string]grant // by pattern
	levels     map[Area]Level
}

// ErrInvalid is returned for a policy's text that has errors. The message has the lines.
var ErrInvalid = errcode.InvalidArgument.New("invalid policy")

// maxText bounds a policy's text, in bytes.
const maxText = 64 << 10

var words = config.PolicyWords{
	Policies: slices.Sorted(maps.Keys(shorthands)), Capabilities: names(Capabilities),
	Areas: map[string][]string{
		string(Plugin): {"deny", "list", "read", "write"}, string(Node): {"deny", "read", "write"},
		string(Operator): {"deny", "read", "write"}, string(Agent): {"deny", "read", "write"},
	},
}

func names(all []Capability) (out []string) {
	for _, c := range all {
		out = append(out, string(c))
	}
	return out
}

// Parse reads a policy in HCL, or in JSON if it begins with a brace. The error is ErrInvalid, with every problem and
// its line.
func Parse(text string) (Policy, error) {
	if len(text) > maxText {
		return Policy{}, fmt.Errorf("%w: the text has more than %d bytes", ErrInvalid, maxText)
	}
	read, err := config.ParsePolicy(text, words)
	if problems := config.Problems(nil); errors.As(err, &problems) {
		var lines []string
		for _, at := range problems {
			lines = append(lines, fmt.Sprintf("line %d: %s", at.Line, at.Text))
		}
		return Policy{}, fmt.Errorf("%w: %s", ErrInvalid, strings.Join(lines, "; "))
	}
	p := Policy{namespaces: map[string]grant{}, levels: map[Area]Level{}}
	for pattern, n := range read.Namespaces {
		all := newGrant()
		all.add(shorthands[n.Policy]...)
		for _, c := range n.Capabilities {
			all.add(Capability(c))
		}
		all.services = n.Services
		p.namespaces[pattern] = all
	}
	for area, level := range read.Areas {
		p.levels[Area(area)] = levels[level]
	}
	return p, nil
}
