package config

import (
	"bytes"
	"cmp"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"
)

// maxFile bounds a configuration file, in bytes: hcl's recursive parser could exhaust the stack on larger ones.
const maxFile = 128 << 10

// maxDepth bounds the nesting of expressions and blocks: hcl's parsers recurse.
const maxDepth = 64

// parser parses what is not JSON.
type parser func(src []byte, name string) (hcl.Body, hcl.Diagnostics)

// parse parses a file: as JSON if its name ends in .json, or if the name does not say and it starts with a brace;
// otherwise as HCL.
func parse(name string, src []byte, problems *Problems) hcl.Body {
	return parseWith(parseHCL, name, src, problems)
}

func parseHCL(src []byte, name string) (hcl.Body, hcl.Diagnostics) {
	file, diags := hclsyntax.ParseConfig(src, name, hcl.InitialPos)
	return file.Body, diags
}

// parseWith is parse with another parser for what is not JSON.
func parseWith(native parser, name string, src []byte, problems *Problems) hcl.Body {
	whole := hcl.Range{Filename: name}
	if len(src) > maxFile {
		problems.add(whole, "larger than %d bytes", maxFile)
		return nil
	}
	ext := filepath.Ext(name)
	isJSON := ext == ".json" || ext != ".hcl" && bytes.HasPrefix(bytes.TrimSpace(src), []byte("{"))
	if line := tooDeep(src); line > 0 {
		whole.Start.Line = line
		problems.add(whole, "nested deeper than %d levels", maxDepth)
		return nil
	}
	var body hcl.Body
	var diags hcl.Diagnostics
	if isJSON {
		var file *hcl.File
		if file, diags = json.Parse(src, name); !diags.HasErrors() {
			body = file.Body
		}
	} else {
		body, diags = native(src, name)
	}
	if diags.HasErrors() {
		problems.addDiags("", diags)
		return nil
	}
	return body
}

// tooDeep returns the first line whose brackets nest deeper than maxDepth, or 0. It also counts brackets in strings:
// real files are far below the bound.
func tooDeep(src []byte) int {
	line, depth := 1, 0
	for _, c := range src {
		switch c {
		case '\n':
			line++
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth = max(depth-1, 0)
		}
		if depth > maxDepth {
			return line
		}
	}
	return 0
}

// readFile reads at most one byte more than parse accepts.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// contentOf reads a body by its fields. Each named block then has one label, which is empty if none was written.
//
// HCL requires the same labels on all blocks of a type, so an empty one is added in its own syntax. In JSON an object
// that contains only objects is taken for blocks with labels.
func contentOf(body hcl.Body, f fields) (*hcl.BodyContent, hcl.Diagnostics) {
	native, isNative := body.(*hclsyntax.Body)
	schema := f.schema(isNative)
	for _, name := range f.named {
		header := hcl.BlockHeaderSchema{Type: name}
		if isNative {
			header.LabelNames = []string{"name"}
			native = withLabels(native, name)
			body = native
		}
		schema.Blocks = append(schema.Blocks, header)
	}
	content, diags := body.Content(schema)
	if content == nil {
		return &hcl.BodyContent{}, diags
	}
	if isNative || len(f.named) == 0 {
		return content, diags
	}
	var blocks hcl.Blocks
	for _, block := range content.Blocks {
		if slices.Contains(f.named, block.Type) {
			blocks = append(blocks, labelsOfJSON(block)...)
		} else {
			blocks = append(blocks, block)
		}
	}
	content.Blocks = blocks
	return content, diags
}

// withLabels returns the body with an empty label on those blocks of a type that have none.
func withLabels(body *hclsyntax.Body, typeName string) *hclsyntax.Body {
	out := *body
	out.Blocks = slices.Clone(body.Blocks)
	for i, block := range out.Blocks {
		if block.Type == typeName && len(block.Labels) == 0 {
			labelled := *block
			labelled.Labels, labelled.LabelRanges = []string{""}, []hcl.Range{block.TypeRange}
			out.Blocks[i] = &labelled
		}
	}
	return &out
}

// labelsOfJSON returns a JSON block with its label: several blocks if its object has several labels.
func labelsOfJSON(block *hcl.Block) hcl.Blocks {
	attrs, _ := block.Body.JustAttributes()
	labelled := len(attrs) > 0
	for _, attr := range attrs {
		labelled = labelled && isBlock(attr.Expr)
	}
	if !labelled {
		block.Labels, block.LabelRanges = []string{""}, []hcl.Range{block.TypeRange}
		return hcl.Blocks{block}
	}
	var out hcl.Blocks
	for label := range attrs {
		content, _, _ := block.Body.PartialContent(&hcl.BodySchema{Blocks: []hcl.BlockHeaderSchema{{Type: label}}})
		for _, inner := range content.Blocks {
			inner.Labels, inner.LabelRanges = []string{label}, []hcl.Range{inner.TypeRange}
			inner.Type = block.Type
			out = append(out, inner)
		}
	}
	slices.SortStableFunc(out, func(a,
		b *hcl.Block,
	) int {
		return cmp.Compare(a.DefRange.Start.Byte, b.DefRange.Start.Byte)
	})
	return out
}

// isBlock reports whether a JSON value can be the body of a block, or of several.
func isBlock(expr hcl.Expression) bool {
	v, diags := expr.Value(nil)
	if diags.HasErrors() || v.IsNull() {
		return false
	}
	if v.Type().IsObjectType() {
		return true
	}
	if !v.Type().IsTupleType() || v.LengthInt() == 0 {
		return false
	}
	for it := v.ElementIterator(); it.Next(); {
		if _, element := it.Element(); element.IsNull() || !element.Type().IsObjectType() {
			return false
		}
	}
	return true
}
