// Package bytesize reads sizes that people write.
package bytesize

import (
	"fmt"
	"math"
	"strings"

	"github.com/dustin/go-humanize"
)

// Parse reads a size in bytes such as "10GiB" or "500MB", 0 to 2^63-1. GiB are powers of two, GB of ten. A comma is
// refused: it is a fraction to some readers, and nothing to others.
func Parse(text string) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 || strings.Contains(text, ",") {
		return 0, fmt.Errorf("%q is not a size such as \"10GiB\"", text)
	}
	return int64(n), nil
}
