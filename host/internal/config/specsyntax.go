package config

import (
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// parseVolumeBody parses a volume spec. Nomad reads its volume specs with the first version of HCL, so what that allows
// on top of HCL is allowed here: keys in quotes or with dots, several arguments or blocks on a line, with or without
// commas, and an equals sign before the brace of a block. Values are HCL's own expressions.
//
// Two texts that both versions accept and read differently are refused: numbers with a leading zero, which are octal in
// the first version, and templates in strings, which the first version takes literally.
func parseVolumeBody(src []byte, name string) (hcl.Body, hcl.Diagnostics) {
	tokens, diags := hclsyntax.LexConfig(src, name, hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	p := &specParser{name: name, src: src, tokens: tokens}
	body := p.body(hclsyntax.TokenEOF, tokens[0].Range)
	return body, p.diags
}

// specParser reads the tokens of a volume spec. It stops at the first syntax error; then diags has it.
type specParser struct {
	name   string
	src    []byte
	tokens hclsyntax.Tokens // the last one is TokenEOF
	next   int
	diags  hcl.Diagnostics
}

// peek returns a token without reading it: the next one, or one of those after it.
func (p *specParser) peek(ahead int) hclsyntax.Token {
	return p.tokens[min(p.next+ahead, len(p.tokens)-1)]
}

func (p *specParser) fail(at hcl.Range, format string, args ...any) {
	p.diags = append(p.diags, &hcl.Diagnostic{
		Severity: hcl.DiagError, Summary: fmt.Sprintf(format, args...), Subject: &at,
	})
}

// body reads arguments and blocks up to the token end, which it reads too.
func (p *specParser) body(end hclsyntax.TokenType, start hcl.Range) *hclsyntax.Body {
	body := &hclsyntax.Body{Attributes: hclsyntax.Attributes{}}
	for !p.diags.HasErrors() {
		switch token := p.peek(0); token.Type {
		case hclsyntax.TokenNewline, hclsyntax.TokenComment, hclsyntax.TokenComma:
			p.next++
		case end:
			p.next++
			body.SrcRange, body.EndRange = hcl.RangeBetween(start, token.Range), token.Range
			return body
		case hclsyntax.TokenEOF:
			p.fail(start, "a } is missing for the { on line %d", start.Start.Line)
		default:
			p.item(body)
		}
	}
	return body
}

// item reads one argument or block.
func (p *specParser) item(body *hclsyntax.Body) {
	name, at, ok := p.key()
	if !ok {
		return
	}
	var labels []string
	var labelRanges []hcl.Range
	for p.isKey(0) {
		label, at, ok := p.key()
		if !ok {
			return
		}
		labels, labelRanges = append(labels, label), append(labelRanges, at)
	}
	equals := p.peek(0)
	if equals.Type == hclsyntax.TokenEqual {
		p.next++
	}
	switch open := p.peek(0); {
	case open.Type == hclsyntax.TokenOBrace:
		p.next++
		inner := p.body(hclsyntax.TokenCBrace, at)
		body.Blocks = append(body.Blocks, &hclsyntax.Block{
			Type: name, Labels: labels, Body: inner, TypeRange: at, LabelRanges: labelRanges,
			OpenBraceRange: open.Range, CloseBraceRange: inner.EndRange,
		})
	case equals.Type != hclsyntax.TokenEqual || len(labels) > 0:
		p.fail(open.Range, "after %q, an = and a value or a block in braces are required; a key with other characters than "+
			"letters, digits, '-', '_' and '.' needs quotes", name)
	default:
		p.argument(body, name, at, equals.Range)
	}
}

func (p *specParser) argument(body *hclsyntax.Body, name string, at, equals hcl.Range) {
	if other := body.Attributes[name]; other != nil {
		p.fail(at, "%q was already set on line %d", name, other.NameRange.Start.Line)
		return
	}
	expr, where := p.expression(name)
	if expr != nil {
		body.Attributes[name] = &hclsyntax.Attribute{
			Name: name, Expr: expr, SrcRange: hcl.RangeBetween(at, where), NameRange: at, EqualsRange: equals,
		}
	}
}

// isKey reports whether a key may start at a token.
func (p *specParser) isKey(ahead int) bool {
	t := p.peek(ahead).Type
	return t == hclsyntax.TokenIdent || t == hclsyntax.TokenOQuote
}

// key reads a word, words joined by dots, or a string.
func (p *specParser) key() (name string, at hcl.Range, ok bool) {
	first := p.peek(0)
	if !p.isKey(0) {
		p.fail(first.Range, "an argument or a block is required here, not %q", first.Bytes)
		return "", at, false
	}
	p.next++
	if first.Type == hclsyntax.TokenIdent {
		at = first.Range
		for p.peek(0).Type == hclsyntax.TokenDot && p.peek(1).Type == hclsyntax.TokenIdent &&
			p.peek(1).Range.Start.Byte == at.End.Byte+1 {
			at = hcl.RangeBetween(at, p.peek(1).Range)
			p.next += 2
		}
		return string(at.SliceBytes(p.src)), at, true
	}
	for p.peek(0).Type == hclsyntax.TokenQuotedLit {
		p.next++
	}
	at = hcl.RangeBetween(first.Range, p.peek(0).Range)
	if p.peek(0).Type != hclsyntax.TokenCQuote {
		p.fail(at, "a key must be a plain string")
		return "", at, false
	}
	p.next++
	expr, diags := hclsyntax.ParseExpression(at.SliceBytes(p.src), p.name, at.Start)
	if p.diags = append(p.diags, diags...); diags.HasErrors() {
		return "", at, false
	}
	v, diags := expr.Value(nil)
	if p.diags = append(p.diags, diags...); diags.HasErrors() || v.Type() != cty.String {
		return "", at, false
	}
	return v.AsString(), at, true
}

// expression reads the value of an argument: up to the end of the line or of the block, a comma, or the next item.
func (p *specParser) expression(name string) (hclsyntax.Expression, hcl.Range) {
	first := p.next
	for depth := 0; depth > 0 || !p.endsValue(first); p.next++ {
		token := p.peek(0)
		switch token.Type {
		case hclsyntax.TokenEOF:
			p.fail(p.tokens[first].Range, "the value of %q has no end", name)
			return nil, token.Range
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenOQuote,
			hclsyntax.TokenOHeredoc, hclsyntax.TokenTemplateInterp:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenCQuote,
			hclsyntax.TokenCHeredoc, hclsyntax.TokenTemplateSeqEnd:
			depth--
		case hclsyntax.TokenTemplateControl:
			p.fail(token.Range, "%s: directives are not allowed here; write %%%%{ for a literal %%{", name)
			return nil, token.Range
		case hclsyntax.TokenNumberLit:
			if b := token.Bytes; len(b) > 1 && b[0] == '0' && b[1] >= '0' && b[1] <= '9' {
				p.fail(token.Range, "%s: Nomad reads a number with a leading zero as octal; write %q, or the number that is meant",
					name, b)
				return nil, token.Range
			}
		}
	}
	if p.next == first {
		p.fail(p.peek(0).Range, "%s: a value is required after the equals sign", name)
		return nil, p.peek(0).Range
	}
	last := p.tokens[p.next-1]
	at := hcl.RangeBetween(p.tokens[first].Range, last.Range)
	text := at.SliceBytes(p.src)
	if last.Type == hclsyntax.TokenCHeredoc {
		text = append(text[:len(text):len(text)], '\n') // the lexer finds the end of a heredoc by it
	}
	expr, diags := hclsyntax.ParseExpression(text, p.name, at.Start)
	if p.diags = append(p.diags, diags...); diags.HasErrors() {
		return nil, at
	}
	return expr, at
}

// endsValue reports whether the next token is after a value that began with the token first.
func (p *specParser) endsValue(first int) bool {
	switch token := p.peek(0); token.Type {
	case hclsyntax.TokenEOF, hclsyntax.TokenNewline, hclsyntax.TokenComma, hclsyntax.TokenCBrace:
		return true
	case hclsyntax.TokenComment:
		return token.Bytes[len(token.Bytes)-1] == '\n'
	case hclsyntax.TokenIdent:
		after := p.peek(1).Type
		return p.next > first && (after == hclsyntax.TokenEqual || after == hclsyntax.TokenOBrace)
	case hclsyntax.TokenOQuote:
		return p.next > first && p.peek(1).Type == hclsyntax.TokenQuotedLit && p.peek(2).Type == hclsyntax.TokenCQuote &&
			p.peek(3).Type == hclsyntax.TokenEqual
	}
	return false
}
