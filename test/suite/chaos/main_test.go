package chaos

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testns"
)

var (
	seed     = flag.Uint64("seed", 0, "the one seed to run; 0: those of duration, or a fixed set")
	duration = flag.Duration("duration", 0, "how long to run new seeds, or the one seed; 0: a fixed set, or lasts")
)

// sideBySide is how many clusters run at the same time: they mostly wait.
const sideBySide = 3

func TestMain(m *testing.M) {
	if who := os.Getenv(envWriter); who != "" {
		if err := write(os.Args[1], who); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testns.Main(m, sideBySide)
}

// cases are the clusters of make test.
var cases = []struct {
	seed  uint64
	lasts time.Duration
}{{1, 12 * time.Second}, {2, 12 * time.Second}, {3, 12 * time.Second}}
