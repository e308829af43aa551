package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// apply returns the path of the file that the mutant is planted in, and its content with the bug.
//
// The code to replace is compared token by token, within the declaration that the mutant names: neither a file's name
// nor the code's layout matters. An identifier of the mutant that the declaration has no more was renamed: it stands
// for any one identifier that the mutant does not name.
func (m mutant) apply(root string) (path string, changed []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %s: %w: change mutant %s with the code", m.in, m.decl, err, m.name)
		}
	}()
	path, text, begin, end, err := m.declaration(root)
	if err != nil {
		return "", nil, err
	}
	code, old := tokens(text[begin:end]), tokens([]byte(m.old))
	renamed, err := missing(old, code)
	if err != nil {
		return "", nil, err
	}
	at, names, count := 0, map[string]string(nil), 0
	for n := range code {
		if found := match(old, code[n:], renamed); found != nil {
			at, names, count = n, found, count+1
		}
	}
	if count != 1 {
		return "", nil, fmt.Errorf("the code to replace is there %d times, not once", count)
	}
	changed = append(changed, text[:begin+code[at].offset]...)
	changed = append(changed, rename(m.new, names)...)
	last := code[at+len(old)-1]
	return path, append(changed, text[begin+last.offset+len(last.text):]...), nil
}

// declaration finds the function, method (as T.name), type, variable or constant that the mutant names. text is the
// content of its file, which it is part of from begin to end.
func (m mutant) declaration(root string) (path string, text []byte, begin, end int, err error) {
	files := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(root, m.in, "*.go"))
	found := 0
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, parseErr := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err = errors.Join(err, parseErr); err != nil {
			return "", nil, 0, 0, err
		}
		for _, node := range named(file, m.decl) {
			found++
			path, begin, end = name, files.Position(node.Pos()).Offset, files.Position(node.End()).Offset
		}
	}
	if found != 1 {
		return "", nil, 0, 0, fmt.Errorf("%d declarations have the name, not one", found)
	}
	text, err = os.ReadFile(path)
	return path, text, begin, end, err
}

// named returns the declarations of a file with this name.
func named(file *ast.File, name string) (all []ast.Node) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if funcName(d) == name {
				all = append(all, d)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.Name == name {
						all = append(all, spec)
					}
				case *ast.ValueSpec:
					if spec.Names[0].Name == name {
						all = append(all, spec)
					}
				}
			}
		}
	}
	return all
}

// funcName returns a function's name, and T.name for a method of T or *T.
func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	receiver := d.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	return receiver.(*ast.Ident).Name + "." + d.Name.Name
}

// part is a token of Go code. offset counts bytes from where the code begins.
type part struct {
	offset int
	text   string
	name   bool // it is an identifier
}

// tokens splits code, which may be a piece of a statement. The semicolons that stand for line ends are left out.
func tokens(code []byte) (all []part) {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(code))
	var s scanner.Scanner
	s.Init(file, code, func(token.Position, string) {}, 0)
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return all
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue
		}
		if !tok.IsLiteral() && !tok.IsKeyword() {
			text = tok.String()
		}
		all = append(all, part{files.Position(pos).Offset, text, tok == token.IDENT})
	}
}

// missing returns the identifiers of a mutant that the code has not. It fails if most of them are gone: then the code
// is another.
func missing(old, code []part) (map[string]bool, error) {
	have, all, gone := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range code {
		have[p.text] = true
	}
	for _, p := range old {
		if !p.name {
			continue
		}
		all[p.text] = true
		if !have[p.text] {
			gone[p.text] = true
		}
	}
	if len(gone) > 0 && 2*len(gone) >= len(all) {
		return nil, errors.New("most names in the code to replace are not there")
	}
	return gone, nil
}

// match compares the mutant's tokens with the first ones of code. It returns the new names of the renamed identifiers,
// and nil if the code is another.
func match(old, code []part, renamed map[string]bool) map[string]string {
	if len(code) < len(old) {
		return nil
	}
	named := map[string]bool{}
	for _, p := range old {
		named[p.text] = true
	}
	names := map[string]string{}
	for n, p := range old {
		is := code[n]
		switch {
		case !renamed[p.text]:
			if is.text != p.text {
				return nil
			}
		case !is.name || named[is.text] || names[p.text] != "" && names[p.text] != is.text:
			return nil
		default:
			names[p.text] = is.text
		}
	}
	return names
}

// rename replaces identifiers in code.
func rename(code string, names map[string]string) string {
	var b strings.Builder
	rest := 0
	for _, p := range tokens([]byte(code)) {
		if to, ok := names[p.text]; ok && p.name {
			b.WriteString(code[rest:p.offset] + to)
			rest = p.offset + len(p.text)
		}
	}
	return b.String() + code[rest:]
}
