package vars

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// UnknownError is a variable that has no value here.
type UnknownError struct {
	Name string
	// Known are the names that have one.
	Known []string
}

func (e *UnknownError) Error() string {
	if len(e.Known) == 0 {
		return fmt.Sprintf("unknown variable ${%s}; there are none here; write $${ for a literal ${", e.Name)
	}
	return fmt.Sprintf("unknown variable ${%s}; known are ${%s}; write $${ for a literal ${", e.Name, strings.Join(e.Known, "}, ${"))
}

// Expand replaces each ${NAME} in text by the value of NAME in vars, and $${ by ${.
// Values are not looked at again. The error is an *UnknownError, or says where a
// brace is missing.
func Expand(text string, vars map[string]string) (string, error) {
	var out strings.Builder
	for rest := text; ; {
		before, after, found := strings.Cut(rest, "${")
		if !found {
			out.WriteString(rest)
			return out.String(), nil
		}
		if literal, escaped := strings.CutSuffix(before, "$"); escaped {
			out.WriteString(literal + "${")
			rest = after
			continue
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return "", fmt.Errorf("%q has a ${ without }; write $${ for a literal ${", text)
		}
		value, known := vars[name]
		if !known {
			return "", &UnknownError{Name: name, Known: slices.Sorted(maps.Keys(vars))}
		}
		out.WriteString(before + value)
		rest = after
	}
}

// Escape makes a text that Expand gives back as it is.
func Escape(text string) string { return strings.ReplaceAll(text, "${", "$${") }
