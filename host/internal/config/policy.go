package config

import (
	"regexp"
	"slices"
	"sync"

	"github.com/hashicorp/hcl/v2"
)

// Policy is the text of an ACL policy.
type Policy struct {
	Namespaces map[string]PolicyNamespace // by name, or pattern of names
	Areas      map[string]string          // their levels
}

// PolicyNamespace is one of a policy's namespace blocks. Policy is a word for several capabilities; empty: none.
type PolicyNamespace struct {
	Policy                 string
	Capabilities, Services []string
}

// PolicyWords are the words that may be in a policy.
type PolicyWords struct {
	Policies, Capabilities []string
	Areas                  map[string][]string // with their levels
}

var (
	validPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9\-_.*]{1,128}$`) })
	// validService matches names of services (sdk/service) and patterns of them.
	validService = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9\-*]{1,63}$`) })
)

// ParsePolicy reads an ACL policy in HCL, or in JSON if it begins with a brace. The error is Problems, without a file.
func ParsePolicy(text string, words PolicyWords) (Policy, error) {
	p := Policy{Namespaces: map[string]PolicyNamespace{}, Areas: map[string]string{}}
	var problems Problems
	body := parse("", []byte(text), &problems)
	if body == nil {
		return p, problems.err()
	}
	known := fields{labelled: []string{"namespace"}}
	for area := range words.Areas {
		known.blocks = append(known.blocks, area)
	}
	slices.Sort(known.blocks)
	s := open(body, "", known, nil, &problems)
	for _, block := range s.content.Blocks.OfType("namespace") {
		pattern := block.Labels[0]
		if _, twice := p.Namespaces[pattern]; twice {
			problems.add(block.DefRange, "namespace %q: block given twice", pattern)
		}
		p.Namespaces[pattern] = policyNamespace(s, block, words)
	}
	for _, area := range known.blocks {
		level := ""
		if in := s.block(area, keys{"policy": oneOf(words.Areas[area], &level)}); in != nil {
			if level == "" {
				in.fail("policy", "is required")
			}
			p.Areas[area] = level
		}
	}
	if len(p.Namespaces)+len(p.Areas) == 0 && len(problems) == 0 {
		problems.add(hcl.Range{Start: hcl.InitialPos}, "it says nothing: write a block such as namespace %q { policy = %q }",
			"default", "read")
	}
	return p, problems.err()
}

func policyNamespace(s *section, block *hcl.Block, words PolicyWords) (n PolicyNamespace) {
	in := s.inner(block, fields{attrs: []string{"policy", "capabilities", "services"}})
	if !validPattern().MatchString(block.Labels[0]) {
		in.problems.add(block.DefRange, "%s: the name of a namespace has 1 to 128 letters, digits and - _ . only, and * for "+
			"any of them", in.path)
	}
	in.read(keys{"policy": oneOf(words.Policies, &n.Policy), "capabilities": &n.Capabilities, "services": &n.Services})
	if len(in.content.Attributes) == 0 {
		in.problems.add(block.DefRange, "%s: policy, capabilities or services is missing", in.path)
	}
	for _, word := range n.Capabilities {
		if !slices.Contains(words.Capabilities, word) {
			in.fail("capabilities", "%s", notAmong(word, words.Capabilities))
		}
	}
	for _, word := range n.Services {
		if !validService().MatchString(word) {
			in.fail("services", "%q: the name of a service has 1 to 63 letters, digits and hyphens, and * for any of them", word)
		}
	}
	return n
}
