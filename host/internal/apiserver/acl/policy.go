package acl

import (
	"bytes"
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/internal/errcode"
)

// Policy is the parsed text of one policy.
type Policy struct {
	namespaces map[string]grant // by pattern
	levels     map[Area]Level
}

// ErrInvalid is returned for a policy's text that has errors. The message has the lines.
var ErrInvalid = errcode.InvalidArgument.New("invalid policy")

// maxText bounds a policy's text, in bytes: hcl's parsers recurse.
const maxText = 64 << 10

// Parse reads a policy in HCL, or in JSON if it begins with a brace. The error is ErrInvalid, with every problem and
// its line.
func Parse(text string) (Policy, error) {
	p := &parser{policy: Policy{namespaces: map[string]grant{}, levels: map[Area]Level{}}}
	p.parse(text)
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b problem) int { return cmp.Compare(a.line, b.line) })
		var lines []string
		for _, at := range p.problems {
			lines = append(lines, fmt.Sprintf("line %d: %s", at.line, at.text))
		}
		return Policy{}, fmt.Errorf("%w: %s", ErrInvalid, strings.Join(slices.Compact(lines), "; "))
	}
	return p.policy, nil
}

type parser struct {
	policy   Policy
	problems []problem
}

type problem struct {
	line int
	text string
}

func (p *parser) fail(at hcl.Range, format string, args ...any) {
	p.problems = append(p.problems, problem{max(at.Start.Line, 1), fmt.Sprintf(format, args...)})
}

var policySchema = &hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{
	{Type: "namespace", LabelNames: []string{"name"}},
	{Type: string(Plugin)},
	{Type: string(Node)},
	{Type: string(Operator)},
	{Type: string(Agent)},
}}

func (p *parser) parse(text string) {
	if len(text) > maxText {
		p.fail(hcl.Range{}, "the text has more than %d bytes", maxText)
		return
	}
	var file *hcl.File
	var diags hcl.Diagnostics
	if src := []byte(text); bytes.HasPrefix(bytes.TrimSpace(src), []byte("{")) {
		file, diags = json.Parse(src, "")
	} else {
		file, diags = hclsyntax.ParseConfig(src, "", hcl.InitialPos)
	}
	if p.diagnose("", diags); diags.HasErrors() {
		return
	}
	content, diags := file.Body.Content(policySchema)
	p.diagnose("", diags)
	seen := map[string]int{}
	for _, block := range content.Blocks {
		key := block.Type
		if len(block.Labels) > 0 {
			key = fmt.Sprintf("%s %q", block.Type, block.Labels[0])
		}
		if line, twice := seen[key]; twice {
			p.fail(block.DefRange, "%s: block given twice, first on line %d", key, line)
			continue
		}
		seen[key] = block.DefRange.Start.Line
		if block.Type == "namespace" {
			p.namespace(key, block)
		} else {
			p.area(Area(block.Type), block)
		}
	}
	if len(seen) == 0 && len(p.problems) == 0 {
		p.fail(hcl.Range{}, "it says nothing: write a block such as namespace %q { policy = %q }", "default", "read")
	}
}

var (
	validPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9\-_.*]{1,128}$`) })
	// validService matches names of services (sdk/service) and patterns of them.
	validService = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9\-*]{1,63}$`) })
)

// namespace reads a namespace block. Its attribute policy is short for several capabilities.
func (p *parser) namespace(key string, block *hcl.Block) {
	pattern := block.Labels[0]
	if !validPattern().MatchString(pattern) {
		p.fail(block.DefRange,
			"%s: the name of a namespace has 1 to 128 letters, digits and - _ . only, and * for any of them", key)
	}
	content, diags := block.Body.Content(
		&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "policy"}, {Name: "capabilities"}, {Name: "services"}}})
	p.diagnose(key, diags)
	if len(content.Attributes) == 0 && !diags.HasErrors() {
		p.fail(block.DefRange, "%s: policy, capabilities or services is missing", key)
	}
	all := newGrant()
	if attr := content.Attributes["policy"]; attr != nil {
		short := p.word(key+".policy", attr)
		if _, known := shorthands[short]; known {
			all.add(shorthands[short]...)
		} else if short != "" {
			p.fail(attr.Range, "%s.policy: %q is not one of %s%s", key, short, quoted(shorthandNames),
				nearest(short, shorthandNames))
		}
	}
	if attr := content.Attributes["capabilities"]; attr != nil {
		for _, word := range p.words(key+".capabilities", attr) {
			if c := Capability(word); slices.Contains(Capabilities, c) {
				all.add(c)
			} else {
				p.fail(attr.Range, "%s.capabilities: %q is not one of %s%s", key, word, quoted(Capabilities),
					nearest(word, Capabilities))
			}
		}
	}
	if attr := content.Attributes["services"]; attr != nil {
		for _, word := range p.words(key+".services", attr) {
			if !validService().MatchString(word) {
				p.fail(attr.Range,
					"%s.services: %q: the name of a service has 1 to 63 letters, digits and hyphens, and * for any of them", key, word)
			}
			all.services = append(all.services, word)
		}
	}
	p.policy.namespaces[pattern] = all
}

// area reads the level of an area, which has no namespace.
func (p *parser) area(area Area, block *hcl.Block) {
	content, diags := block.Body.Content(
		&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "policy", Required: true}}})
	p.diagnose(string(area), diags)
	attr := content.Attributes["policy"]
	if attr == nil {
		return
	}
	word, allowed := p.word(string(area)+".policy", attr), levelNames(area)
	if word == "" {
		return
	}
	if !slices.Contains(allowed, word) {
		p.fail(attr.Range, "%s.policy: %q is not one of %s%s", area, word, quoted(allowed), nearest(word, allowed))
		return
	}
	p.policy.levels[area] = levels[word]
}

// word reads a string. It returns "" and reports a problem if the value is no string.
func (p *parser) word(key string, attr *hcl.Attribute) string {
	v, ok := p.value(key, attr)
	if !ok {
		return ""
	}
	if v.IsNull() || v.Type() != cty.String || v.AsString() == "" {
		p.fail(attr.Range, "%s: a string is required", key)
		return ""
	}
	return v.AsString()
}

// words reads a list of strings.
func (p *parser) words(key string, attr *hcl.Attribute) (out []string) {
	v, ok := p.value(key, attr)
	if !ok {
		return nil
	}
	if v.IsNull() || !v.Type().IsTupleType() {
		p.fail(attr.Range, "%s: a list of strings is required", key)
		return nil
	}
	for it := v.ElementIterator(); it.Next(); {
		_, element := it.Element()
		if element.IsNull() || element.Type() != cty.String {
			p.fail(attr.Range, "%s: a list of strings is required", key)
			return nil
		}
		out = append(out, element.AsString())
	}
	return out
}

func (p *parser) value(key string, attr *hcl.Attribute) (cty.Value, bool) {
	v, diags := attr.Expr.Value(nil)
	p.diagnose(key, diags)
	return v, !diags.HasErrors() && v.IsWhollyKnown()
}

var (
	unknownName = regexp.MustCompile(`(?:named|of type|type is named) "([^"]+)"`)
	suggestion  = regexp.MustCompile(`Did you mean (.+\?)$`)
)

// diagnose reports hcl's diagnostics, each in one line.
func (p *parser) diagnose(key string, diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		text, detail := strings.ToLower(d.Summary[:1])+d.Summary[1:], strings.Join(strings.Fields(d.Detail), " ")
		switch name := unknownName.FindStringSubmatch(detail); {
		case strings.HasPrefix(d.Summary, "Unsupported ") && name != nil,
			strings.HasPrefix(d.Summary, "Extraneous ") && name != nil:
			text = fmt.Sprintf("unknown key %q", name[1])
			if m := suggestion.FindStringSubmatch(detail); m != nil {
				text += "; did you mean " + m[1]
			}
		case detail != "":
			text += ": " + strings.TrimSuffix(detail, ".")
		}
		if key != "" {
			text = key + ": " + text
		}
		var at hcl.Range
		if d.Subject != nil {
			at = *d.Subject
		}
		p.fail(at, "%s", text)
	}
}

// quoted lists words for a message.
func quoted[T ~string](words []T) string {
	var out []string
	for _, w := range words {
		out = append(out, fmt.Sprintf("%q", w))
	}
	return strings.Join(out, ", ")
}

// nearest returns the word that was probably meant, or "" if none is similar.
func nearest[T ~string](word string, among []T) string {
	best, least := "", 1+len(word)/3
	for _, w := range among {
		if d := distance(word, string(w)); d <= least {
			best, least = string(w), d-1
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is the Levenshtein distance of two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
