package browser

import (
	"os"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// Tests mostly wait for a browser and an agent of their own.
func TestMain(m *testing.M) {
	check.SideBySide(4)
	os.Exit(m.Run())
}
