package command

import (
	"maps"
	"slices"
)

// Reasons are the errors that travel by name.
func Reasons() []error { return slices.Collect(maps.Values(reasons)) }
