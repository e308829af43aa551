package drivers

import (
	"flag"
	"testing"

	"github.com/pannier/pannier/test/lib/testns"
)

var (
	full   = flag.Bool("full", false, "kill the driver in every call, and print the matrix")
	update = flag.Bool("update", false, "write MATRIX.md (with -full)")
)

// sideBySide is how many drivers are tested at the same time: their hosts mostly wait.
const sideBySide = 4

func TestMain(m *testing.M) { testns.Main(m, sideBySide) }
