package command

import (
	"maps"
	"slices"
)

// Reasons are the errors that travel by name.
func Reasons() []error { return slices.Collect(maps.Values(reasons)) }

// Kinds is how many kinds of commands and of queries there are.
func Kinds() (int, int) { return len(kinds), len(queries) }

// DecodeAsSent is Decode without what is noted of the entry itself.
func DecodeAsSent(entry []byte) (Command, error) {
	c, err := Decode(entry)
	if err == nil {
		c.setSum(nil)
	}
	return c, err
}
