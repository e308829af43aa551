package config

import (
	"encoding/json"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// freeForm returns a block of any shape as a JSON object.
func (s *section) freeForm(name string, block *hcl.Block) []byte {
	object := map[string]json.RawMessage{}
	s.freeBody(s.key(name), block.Body, object)
	text, err := json.Marshal(object)
	if err != nil {
		s.problems.add(block.DefRange, "%s: %v", s.key(name), err)
	}
	return text
}

func (s *section) freeBody(key string, body hcl.Body, into map[string]json.RawMessage) {
	var attrs hcl.Attributes
	native, isNative := body.(*hclsyntax.Body)
	if isNative {
		attrs = hcl.Attributes{}
		for name, attr := range native.Attributes {
			attrs[name] = attr.AsHCLAttribute()
		}
	} else {
		var diags hcl.Diagnostics
		attrs, diags = body.JustAttributes()
		s.problems.addDiags(key, diags)
	}
	for name, attr := range attrs {
		v, diags := s.evaluate(attr.Expr)
		if diags.HasErrors() {
			s.problems.addDiags(key+"."+name, diags)
			continue
		}
		text, err := ctyjson.Marshal(v, v.Type())
		if err != nil {
			s.problems.add(attr.Range, "%s.%s: %v", key, name, err)
			continue
		}
		into[name] = text
	}
	if isNative {
		s.freeBlocks(key, native, into)
	}
}

// freeBlocks adds the blocks inside a free-form block: one of a type becomes an object, several a list of objects.
// Labels nest.
func (s *section) freeBlocks(key string, body *hclsyntax.Body, into map[string]json.RawMessage) {
	byType := map[string][]json.RawMessage{}
	for _, block := range body.Blocks {
		inner := map[string]json.RawMessage{}
		s.freeBody(key+"."+block.Type, block.Body, inner)
		text, err := json.Marshal(inner)
		for i := len(block.Labels) - 1; i >= 0 && err == nil; i-- {
			text, err = json.Marshal(map[string]json.RawMessage{block.Labels[i]: text})
		}
		if err != nil {
			s.problems.add(block.DefRange(), "%s.%s: %v", key, block.Type, err)
			continue
		}
		byType[block.Type] = append(byType[block.Type], text)
	}
	for name, list := range byType {
		if _, taken := into[name]; taken {
			s.problems.add(body.SrcRange, "%s.%s: given as an argument and as a block", key, name)
			continue
		}
		if len(list) == 1 {
			into[name] = list[0]
			continue
		}
		text, err := json.Marshal(list)
		if err != nil {
			s.problems.add(body.SrcRange, "%s.%s: %v", key, name, err)
			continue
		}
		into[name] = text
	}
}

// object reads any JSON object, written as a block or as an object; nil if it is absent.
func (s *section) object(name string) map[string]any {
	var text []byte
	switch block := s.one(name); {
	case block != nil && s.has(name):
		s.fail(name, "given as an argument and as a block")
		return nil
	case block != nil:
		text = s.freeForm(name, block)
	case s.has(name):
		v, ok := s.mapping(name)
		if !ok {
			return nil
		}
		var err error
		if text, err = ctyjson.Marshal(v, v.Type()); err != nil {
			s.fail(name, "%v", err)
			return nil
		}
	default:
		return nil
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		s.fail(name, "%v", err)
	}
	return object
}

// texts reads an object of strings, written as a block or as an object. Numbers and booleans are taken as written. It
// is nil if absent.
func (s *section) texts(name string) map[string]string {
	switch block := s.one(name); {
	case block != nil && s.has(name):
		s.fail(name, "given as an argument and as a block")
		return nil
	case block != nil:
		return s.free(name, false)
	}
	v, ok := s.mapping(name)
	if !ok {
		return nil
	}
	out := map[string]string{}
	for it := v.ElementIterator(); it.Next(); {
		key, element := it.Element()
		text, ok := asText(element)
		if !ok || strings.ContainsRune(text, 0) {
			s.fail(name, "%s: a string is required, not %s", key.AsString(), kindOf(element))
			continue
		}
		out[key.AsString()] = text
	}
	return out
}

// mapping reads an object; ok is false when it is absent or in error.
func (s *section) mapping(name string) (v cty.Value, ok bool) {
	if v, ok = s.value(name); !ok {
		return cty.NilVal, false
	}
	if !v.Type().IsObjectType() && !v.Type().IsMapType() {
		s.fail(name, "an object is required, not %s", kindOf(v))
		return cty.NilVal, false
	}
	return v, true
}
