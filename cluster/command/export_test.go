package command

import (
	"maps"
	"slices"
)

// Reasons are the errors that travel by name.
func Reasons() []error { return slices.Collect(maps.Values(reasons)) }

// Kinds is how many kinds of commands and of queries there are.
func Kinds() (int, int) { return len(kinds), len(queries) }
