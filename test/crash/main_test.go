package crash

import (
	"flag"
	"os"
	"testing"

	"github.com/pannier/pannier/test/testns"
)

var (
	full = flag.Bool("full", false, "run every case, not a sample")
	seed = flag.Uint64("seed", 1, "what chance begins with: the sample, and the random crashes")
)

// sideBySide is how many hosts crash at the same time: they mostly wait.
const sideBySide = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", sideBySide); err != nil {
			panic(err)
		}
		os.Args = append(os.Args[:1], append([]string{"-test.parallel=" + sideBySide}, os.Args[1:]...)...) // for testns
	}
	testns.Main(m)
}
