package printable

import (
	"fmt"
	"strings"
)

// Count is a number with its noun, in the plural unless it is one: "1 claim", "2 claims", "0 processes".
func Count[N int | int32 | int64 | uint32 | uint64](n N, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
