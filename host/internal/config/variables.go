package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/host/internal/system/vars"
)

// later are variables that have no value yet when a spec is read. Texts keep them as written, to be replaced when the
// workload runs, and a literal ${ stays escaped.
//
// While an expression is evaluated each is replaced by a mark with NUL characters, which no accepted text contains.
type later struct {
	names []string
	eval  *hcl.EvalContext
}

const nul = "\x00"

func newLater(names []string) *later {
	tree := map[string]any{}
	for _, name := range names {
		at, last := tree, name
		for {
			first, rest, more := strings.Cut(last, ".")
			if !more {
				break
			}
			if at[first] == nil {
				at[first] = map[string]any{}
			}
			at, last = at[first].(map[string]any), rest
		}
		at[last] = nul + name + nul
	}
	return &later{names: names, eval: &hcl.EvalContext{Variables: values(tree)}}
}

func values(tree map[string]any) map[string]cty.Value {
	out := map[string]cty.Value{}
	for name, v := range tree {
		if text, isText := v.(string); isText {
			out[name] = cty.StringVal(text)
		} else {
			out[name] = cty.ObjectVal(values(v.(map[string]any)))
		}
	}
	return out
}

// evaluate returns an expression's value, with the section's variables.
func (s *section) evaluate(expr hcl.Expression) (cty.Value, hcl.Diagnostics) {
	if s.later == nil {
		return expr.Value(s.eval)
	}
	return s.later.evaluate(expr)
}

func (l *later) evaluate(expr hcl.Expression) (cty.Value, hcl.Diagnostics) {
	var diags hcl.Diagnostics
	fail := func(at hcl.Range, format string, args ...any) {
		diags = diags.Append(&hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf(format, args...), Subject: &at})
	}
	used := expr.Variables()
	for _, traversal := range used {
		if name := nameOf(traversal); !slices.Contains(l.names, name) {
			fail(traversal.SourceRange(), "unknown variable ${%s}; known here are ${%s}; write $${ for a literal ${",
				name, strings.Join(l.names, "}, ${"))
		}
	}
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	v, diags := expr.Value(l.eval)
	if diags.HasErrors() {
		return cty.NilVal, diags
	}
	kept := 0
	v, err := cty.Transform(v, func(_ cty.Path, v cty.Value) (cty.Value, error) {
		if v.IsNull() || !v.IsKnown() || v.Type() != cty.String {
			return v, nil
		}
		text, n, err := l.keep(v.AsString())
		kept += n
		return cty.StringVal(text), err
	})
	switch {
	case err != nil:
		fail(expr.Range(), "%v", err)
	case len(used) == 0 && kept > 0:
		fail(expr.Range(), "must not contain a NUL character")
	case kept != len(used):
		// The mark got lost in an operation or in an object's key.
		fail(expr.Range(), "a variable can only stand in a text, as in \"${%s}\": it has no value yet", nameOf(used[0]))
	}
	return v, diags
}

// keep replaces the marks by their variables, and counts them.
func (l *later) keep(text string) (string, int, error) {
	parts := strings.Split(text, nul)
	if len(parts)%2 == 0 {
		return "", 0, fmt.Errorf("must not contain a NUL character")
	}
	for i, part := range parts {
		if i%2 == 0 {
			parts[i] = vars.Escape(part)
			continue
		}
		if !slices.Contains(l.names, part) {
			return "", 0, fmt.Errorf("must not contain a NUL character")
		}
		if strings.HasSuffix(parts[i-1], "$") {
			return "", 0, fmt.Errorf("a $ cannot stand before ${%s}", part)
		}
		parts[i] = "${" + part + "}"
	}
	return strings.Join(parts, ""), len(parts) / 2, nil
}

// nameOf returns a variable as written: its names, separated by dots.
func nameOf(traversal hcl.Traversal) string {
	var names []string
	for _, step := range traversal {
		switch step := step.(type) {
		case hcl.TraverseRoot:
			names = append(names, step.Name)
		case hcl.TraverseAttr:
			names = append(names, step.Name)
		case hcl.TraverseIndex:
			key, _ := asText(step.Key)
			names = append(names, key)
		}
	}
	return strings.Join(names, ".")
}
