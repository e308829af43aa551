package crash

import (
	"flag"
	"testing"

	"github.com/pannier/pannier/test/lib/testns"
)

var (
	full = flag.Bool("full", false, "run every case, not a sample")
	seed = flag.Uint64("seed", 1, "what chance begins with: the sample, and the random crashes")
)

// sideBySide is how many hosts crash at the same time: they mostly wait.
const sideBySide = 6

func TestMain(m *testing.M) { testns.Main(m, sideBySide) }
