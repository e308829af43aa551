package stalls

import (
	"flag"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testns"
)

var (
	duration = flag.Duration("duration", 0, "try cases in random order for so long, instead of each once")
	seed     = flag.Uint64("seed", 0, "of the random order; 0: a new one")
)

func TestMain(m *testing.M) { testns.Main(m, 6) }

// hold is how long a stall may last in the long form.
const hold = 20 * time.Second
