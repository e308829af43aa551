package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"
)

// maxProblems bounds the problems in one error.
const maxProblems = 20

// Problem is one mistake in a file.
type Problem struct {
	File string
	// Line counts from 1; 0: the file as a whole.
	Line int
	// Text names the key and the mistake.
	Text string
}

// String is "file:line: text".
func (p Problem) String() string {
	switch {
	case p.File == "":
		return p.Text
	case p.Line == 0:
		return p.File + ": " + p.Text
	default:
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
	}
}

// Problems are all mistakes in what was read. It is the error of all functions of this package that read files.
type Problems []Problem

// Error has one line for each problem, at most 20.
func (p Problems) Error() string {
	var b strings.Builder
	for i, problem := range p {
		if i == maxProblems {
			fmt.Fprintf(&b, "\nand %d more", len(p)-i)
			break
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(problem.String())
	}
	return b.String()
}

// err is nil without problems. Otherwise they are sorted by file, in the order of the files, and line.
func (p Problems) err() error {
	if len(p) == 0 {
		return nil
	}
	files := map[string]int{}
	for _, problem := range p {
		if _, seen := files[problem.File]; !seen {
			files[problem.File] = len(files)
		}
	}
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(files[a.File], files[b.File]), cmp.Compare(a.Line, b.Line))
	})
	return slices.Compact(p)
}

func (p *Problems) add(at hcl.Range, format string, args ...any) {
	*p = append(*p, Problem{File: at.Filename, Line: at.Start.Line, Text: fmt.Sprintf(format, args...)})
}

// addDiags adds hcl's diagnostics, each in one line. key names where they occurred; it may be empty.
func (p *Problems) addDiags(key string, diags hcl.Diagnostics) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		text := oneLine(d)
		if key != "" {
			text = key + ": " + text
		}
		var at hcl.Range
		if d.Subject != nil {
			at = *d.Subject
		}
		p.add(at, "%s", text)
	}
}

var (
	unknownName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:named|of type|type is named) "([^"]+)"`) })
	suggestion  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`Did you mean (.+\?)$`) })
)

// ofNomad is what to write instead of names that only Nomad has.
var ofNomad = map[string]string{
	"job":          "pannier workload convert JOB.hcl writes the spec of a group of a Nomad job",
	"csi_plugin":   "pannier driver convert JOB.hcl writes the csi_driver block of a Nomad plugin's job",
	"volume_mount": `write destination = "/path" in the volume block of the workload`,
	"CSI_ENDPOINT": "write ${endpoint}",
	"attr":         "write ${node.name} for ${attr.unique.hostname}, and anything else as it is",
	"unique":       "write ${node.name} for ${node.unique.name}",
}

// shortened are hcl's summaries for unknown names, whose detail only repeats them.
var shortened = map[string]string{
	"Unsupported argument":            "unsupported argument",
	"Unsupported block type":          "unsupported block",
	"Extraneous JSON object property": "unsupported argument",
	"Unknown variable":                "unknown variable",
	"Unsupported attribute":           "unknown variable",
	"Variables not allowed":           "variables are not allowed here; write $${ for a literal ${",
}

// oneLine describes a diagnostic in one line.
func oneLine(d *hcl.Diagnostic) string {
	detail := strings.Join(strings.Fields(d.Detail), " ")
	text, known := shortened[d.Summary]
	if !known {
		text = strings.ToLower(d.Summary[:min(1, len(d.Summary))]) + d.Summary[min(1, len(d.Summary)):]
		if detail != "" {
			text += ": " + strings.TrimSuffix(detail, ".")
		}
		return text
	}
	if m := unknownName().FindStringSubmatch(detail); m != nil {
		text += fmt.Sprintf(" %q", m[1])
		if instead := ofNomad[m[1]]; instead != "" {
			return text + ": " + instead
		}
	}
	if m := suggestion().FindStringSubmatch(detail); m != nil {
		text += "; did you mean " + m[1]
	}
	return text
}
