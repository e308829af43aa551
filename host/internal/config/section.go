package config

import (
	"fmt"
	"maps"
	"math/big"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/specs"
)

// fields are the keys of one kind of block.
type fields struct {
	attrs  []string
	blocks []string
	// labelled blocks have one label, a name.
	labelled []string
	// named blocks have a name, as a label or in the argument name, or none.
	named []string
	// maps can be written as blocks or as objects.
	maps []string
	// refused are keys that Nomad has, as arguments or blocks, and why they are not supported.
	refused map[string]string
}

// schema returns the schema of a body in HCL's own syntax or in JSON, where an object is always a block.
func (f fields) schema(native bool) *hcl.BodySchema {
	schema := &hcl.BodySchema{}
	attr := func(name string) { schema.Attributes = append(schema.Attributes, hcl.AttributeSchema{Name: name}) }
	block := func(name string, labels ...string) {
		schema.Blocks = append(schema.Blocks, hcl.BlockHeaderSchema{Type: name, LabelNames: labels})
	}
	for _, name := range f.attrs {
		attr(name)
	}
	for _, name := range f.blocks {
		block(name)
	}
	for _, name := range f.labelled {
		block(name, "name")
	}
	for _, name := range f.maps {
		block(name)
		if native {
			attr(name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.refused)) {
		attr(name)
		if native {
			block(name)
		}
	}
	return schema
}

// section is one block that is being read. Its getters report a problem if the value has another type, and change
// nothing if the key is absent.
type section struct {
	// path names the block in problems, such as `plugin "csi-bridge"`; empty for the root.
	path    string
	content *hcl.BodyContent
	eval    *hcl.EvalContext
	// later are the variables that this section's texts keep; nil: none.
	later    *later
	missing  hcl.Range
	problems *Problems
	// failed are the fields with a reported problem: one per field is enough.
	failed map[string]bool
	// written are the places of what the files have, by key, the last one of each, for problems found at the end; nil:
	// there are none.
	written map[string]hcl.Range
}

// opened is told the keys of each block that is read; tests set it.
var opened = func(fields) {}

func open(body hcl.Body, path string, f fields, eval *hcl.EvalContext, problems *Problems) *section {
	opened(f)
	content, diags := contentOf(body, f)
	problems.addDiags(path, diags)
	s := &section{
		path: path, content: content, eval: eval, missing: body.MissingItemRange(),
		problems: problems, failed: map[string]bool{},
	}
	for _, name := range slices.Sorted(maps.Keys(f.refused)) {
		if s.has(name) || len(content.Blocks.OfType(name)) > 0 {
			s.fail(name, "%s", f.refused[name])
		}
	}
	return s
}

// key names a field of this section in a problem.
func (s *section) key(name string) string {
	if s.path == "" {
		return name
	}
	return s.path + ": " + name
}

// at returns the place of a field, or of the section if the field is absent.
func (s *section) at(name string) hcl.Range {
	if attr := s.content.Attributes[name]; attr != nil {
		return attr.Range
	}
	for _, block := range s.content.Blocks {
		if block.Type == name {
			return block.DefRange
		}
	}
	return s.missing
}

// fail reports a problem with a field, unless it has one.
func (s *section) fail(name, format string, args ...any) {
	if s.failed[name] {
		return
	}
	s.failed[name] = true
	s.problems.add(s.at(name), "%s: %s", s.key(name), fmt.Sprintf(format, args...))
}

// has reports whether the field was written.
func (s *section) has(name string) bool {
	_, ok := s.content.Attributes[name]
	return ok
}

// value evaluates a field; ok is false when it is absent, null or in error.
func (s *section) value(name string) (v cty.Value, ok bool) {
	attr := s.content.Attributes[name]
	if attr == nil {
		return cty.NilVal, false
	}
	if s.written != nil {
		s.written[s.key(name)] = attr.Range
	}
	v, diags := s.evaluate(attr.Expr)
	if diags.HasErrors() {
		if !s.failed[name] {
			s.problems.addDiags(s.key(name), diags)
		}
		s.failed[name] = true
		return cty.NilVal, false
	}
	v, _ = v.UnmarkDeep()
	if v.IsNull() {
		return cty.NilVal, false
	}
	if !v.IsWhollyKnown() {
		s.fail(name, "has no value")
		return cty.NilVal, false
	}
	return v, true
}

// str reads a string and reports whether there was one.
func (s *section) str(name string, dst *string) bool {
	v, ok := s.value(name)
	if !ok {
		return false
	}
	text, ok := asString(v)
	if !ok {
		instead := ""
		if kindOf(v) == "a list" {
			instead = fmt.Sprintf(": write one, %s = \"...\"", name)
		}
		s.fail(name, "a string is required, not %s%s", kindOf(v), instead)
		return false
	}
	if strings.ContainsRune(text, 0) {
		s.fail(name, "must not contain a NUL character")
		return false
	}
	*dst = text
	return true
}

func (s *section) boolean(name string, dst *bool) {
	v, ok := s.value(name)
	if !ok {
		return
	}
	if v.Type() != cty.Bool {
		s.fail(name, "true or false is required, not %s", kindOf(v))
		return
	}
	*dst = v.True()
}

// integer reads a whole number within the bounds.
func (s *section) integer(name string, lowest, highest int64, dst *int64) {
	v, ok := s.value(name)
	if !ok {
		return
	}
	if v.Type() != cty.Number {
		s.fail(name, "a number is required, not %s", kindOf(v))
		return
	}
	n, accuracy := v.AsBigFloat().Int64()
	if accuracy != big.Exact || n < lowest || n > highest {
		s.fail(name, "a whole number from %d to %d is required", lowest, highest)
		return
	}
	*dst = n
}

// duration reads a string such as "30s", above 0.
func (s *section) duration(name string, dst *time.Duration) { s.durationOrOff(name, dst, false) }

// durationOrOff reads a duration; if off is set, 0 is one.
func (s *section) durationOrOff(name string, dst *time.Duration, off bool) {
	var text string
	if !s.str(name, &text) {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d == 0 && !off {
		want := "a duration above 0 such as \"30s\" or \"5m\""
		if off {
			want = "a duration such as \"30s\", or \"0s\","
		}
		s.fail(name, "%s is required, not %q", want, text)
		return
	}
	*dst = d
}

func (s *section) strings(name string, dst *[]string) {
	v, ok := s.value(name)
	if !ok {
		return
	}
	if ty := v.Type(); !ty.IsTupleType() && !ty.IsListType() && !ty.IsSetType() {
		s.fail(name, "a list of strings is required, not %s", kindOf(v))
		return
	}
	list := []string{}
	for it := v.ElementIterator(); it.Next(); {
		_, element := it.Element()
		text, ok := asString(element)
		if !ok || strings.ContainsRune(text, 0) {
			s.fail(name, "element %d: a string is required, not %s", len(list), kindOf(element))
			return
		}
		list = append(list, text)
	}
	*dst = list
}

// oneOf reads a string out of a list of allowed ones.
func (s *section) oneOf(name string, allowed []string, dst *string) {
	var text string
	if !s.str(name, &text) {
		return
	}
	if !slices.Contains(allowed, text) {
		s.fail(name, "%s", notAmong(text, allowed))
		return
	}
	*dst = text
}

// notAmong is the problem that a word is not among the allowed ones, with the one that was probably meant.
func notAmong(word string, allowed []string) string {
	text, least := fmt.Sprintf("%q is not one of %s", word, strings.Join(allowed, ", ")), 2+len(word)/3
	meant := ""
	for _, one := range allowed {
		if d := levenshtein.Distance(word, one, nil); d < least {
			meant, least = one, d
		}
	}
	if meant != "" {
		text += fmt.Sprintf("; did you mean %q?", meant)
	}
	return text
}

// httpURL reads the base URL of an HTTP server, without secrets in it.
func (s *section) httpURL(name string, dst *string) {
	var text string
	if !s.str(name, &text) {
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		s.fail(name, "a URL such as \"http://127.0.0.1:4318\" is required")
		return
	}
	*dst = text
}

// one returns the block of a type that may occur once, or nil.
func (s *section) one(typeName string) *hcl.Block {
	blocks := s.content.Blocks.OfType(typeName)
	for _, extra := range blocks[min(1, len(blocks)):] {
		s.problems.add(extra.DefRange, "%s: block given twice, first on line %d",
			s.key(typeName), blocks[0].DefRange.Start.Line)
	}
	if len(blocks) == 0 {
		return nil
	}
	return blocks[0]
}

// inner opens a block of this section.
func (s *section) inner(block *hcl.Block, f fields) *section {
	path := block.Type
	for _, label := range block.Labels {
		if label != "" { // empty for a named block without a label
			path += fmt.Sprintf(" %q", label)
		}
	}
	in := open(block.Body, s.key(path), f, s.eval, s.problems)
	in.later, in.written = s.later, s.written
	if s.written != nil {
		s.written[in.path] = block.DefRange
	}
	return in
}

// keys are the arguments of a block, with where their values go: a pointer, or a function that reads one.
type keys map[string]any

// read reads arguments.
func (s *section) read(all keys) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch dst := all[name].(type) {
		case *string:
			s.str(name, dst)
		case *bool:
			s.boolean(name, dst)
		case *[]string:
			s.strings(name, dst)
		case *time.Duration:
			s.duration(name, dst)
		case func(*section, string):
			dst(s, name)
		default:
			panic(fmt.Sprintf("%s: a %T cannot be read", name, dst))
		}
	}
}

// block reads a block of arguments that may occur once; nil: it does not.
func (s *section) block(name string, all keys) *section {
	block := s.one(name)
	if block == nil {
		return nil
	}
	in := s.inner(block, fields{attrs: slices.Sorted(maps.Keys(all))})
	in.read(all)
	return in
}

// number reads a whole number within the bounds.
func number(lowest, highest int64, dst *int) func(*section, string) {
	return func(s *section, name string) {
		n := int64(*dst)
		s.integer(name, lowest, highest, &n)
		*dst = int(n)
	}
}

// file reads a path. Relative paths start at dir.
func file(dir string, dst *string) func(*section, string) {
	return func(s *section, name string) { s.file(name, dir, dst) }
}

// oneOf reads a string out of a list of allowed ones.
func oneOf(allowed []string, dst *string) func(*section, string) {
	return func(s *section, name string) { s.oneOf(name, allowed, dst) }
}

// plain returns this section for fields that may not contain variables.
func (s *section) plain() *section {
	p := *s
	p.eval, p.later = nil, nil
	return &p
}

// free reads a block of free keys with strings as values. Numbers and booleans are taken as written. With secret set
// no problem contains a value.
func (s *section) free(typeName string, secret bool) map[string]string {
	block := s.one(typeName)
	if block == nil {
		return nil
	}
	if native, ok := block.Body.(*hclsyntax.Body); ok {
		for _, inner := range native.Blocks {
			s.problems.add(inner.DefRange(), "%s.%s: a string is required, not an object", s.key(typeName), inner.Type)
		}
		body := *native
		body.Blocks = nil
		block.Body = &body
	}
	attrs, diags := block.Body.JustAttributes()
	if diags.HasErrors() {
		s.problems.addDiags(s.key(typeName), diags)
		return nil
	}
	out := make(map[string]string, len(attrs))
	for _, attr := range attrs {
		key := s.key(typeName) + "." + attr.Name
		v, diags := s.evaluate(attr.Expr)
		if diags.HasErrors() {
			if secret {
				s.problems.add(attr.Range, "%s: a plain string is required; write $${ for a literal ${", key)
			} else {
				s.problems.addDiags(key, diags)
			}
			continue
		}
		text, ok := asText(v)
		if !ok || strings.ContainsRune(text, 0) {
			s.problems.add(attr.Range, "%s: a string is required, not %s", key, kindOf(v))
			continue
		}
		out[attr.Name] = text
	}
	return out
}

func asString(v cty.Value) (string, bool) {
	if v.IsNull() || !v.IsKnown() || v.Type() != cty.String {
		return "", false
	}
	return v.AsString(), true
}

// asText is asString for strings, numbers and booleans.
func asText(v cty.Value) (string, bool) {
	if v.IsNull() || !v.IsKnown() {
		return "", false
	}
	switch v.Type() {
	case cty.String:
		return v.AsString(), true
	case cty.Bool:
		return fmt.Sprint(v.True()), true
	case cty.Number:
		if n, accuracy := v.AsBigFloat().Int64(); accuracy == big.Exact {
			return strconv.FormatInt(n, 10), true
		}
		return v.AsBigFloat().Text('g', -1), true
	default:
		return "", false
	}
}

func kindOf(v cty.Value) string {
	switch ty := v.Type(); {
	case v.IsNull():
		return "null"
	case ty == cty.String:
		return "a string"
	case ty == cty.Number:
		return "a number"
	case ty == cty.Bool:
		return "true or false"
	case ty.IsTupleType(), ty.IsListType(), ty.IsSetType():
		return "a list"
	default:
		return "an object"
	}
}

// absolutePath reads a path in a container, which must be absolute.
func absolutePath(dst *string) func(*section, string) {
	return func(s *section, name string) {
		var text string
		if !s.str(name, &text) {
			return
		}
		if err := specs.CheckPath(text); err != nil {
			s.fail(name, "%v", err)
			return
		}
		*dst = text
	}
}

// id reads an id.
func id(dst *string) func(*section, string) {
	return func(s *section, name string) {
		if s.str(name, dst) {
			s.id(name, *dst)
		}
	}
}

// id checks the id in a field. Problems are reported at the field, or at the section if it is absent.
func (s *section) id(name, value string) {
	if value == "" {
		s.fail(name, "is required")
	} else if err := claim.CheckID(value); err != nil {
		s.fail(name, "%v", err)
	}
}
