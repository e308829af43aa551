package plugins_test

import (
	"os"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// TestMain runs more tests at the same time than there are processors: they mostly wait for plugins.
func TestMain(m *testing.M) {
	check.SideBySide(6)
	os.Exit(m.Run())
}
