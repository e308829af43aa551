package config

import (
	"bytes"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/hcl/v2/json"
)

// maxFile bounds a file of configuration, in bytes: far above what anyone writes,
// and low enough that hcl's recursive parser cannot use up the stack on it.
const maxFile = 128 << 10

// maxDepth bounds how deep expressions and blocks nest: hcl's parsers recurse.
const maxDepth = 64

// parse reads one file's syntax: JSON when its name ends so, or when a file
// without a name that tells starts with a brace; HCL otherwise.
func parse(name string, src []byte, problems *Problems) hcl.Body {
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
	var file *hcl.File
	var diags hcl.Diagnostics
	if isJSON {
		file, diags = json.Parse(src, name)
	} else {
		file, diags = hclsyntax.ParseConfig(src, name, hcl.InitialPos)
	}
	if diags.HasErrors() {
		problems.addDiags("", diags)
		return nil
	}
	return file.Body
}

// tooDeep returns the first line whose brackets nest deeper than maxDepth, or 0.
// It does not tell strings from code: no honest file comes near the bound.
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

// readFile reads a file, one byte further than parse takes at most.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}
