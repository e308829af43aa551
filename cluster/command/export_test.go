package command

import (
	"maps"
	"slices"
)

// Reasons returns the errors that are encoded by name.
func Reasons() []error { return slices.Collect(maps.Values(reasons)) }

// Kinds returns the number of command kinds and of query kinds.
func Kinds() (int, int) { return len(kinds), len(queries) }

// DecodeAsSent is Decode without the fields that are derived from the entry itself.
func DecodeAsSent(entry []byte) (Command, error) {
	c, err := Decode(entry)
	if err == nil {
		c.stamp().fingerprint = nil
	}
	return c, err
}
