package e2e

import (
	"testing"

	"github.com/pannier/pannier/test/lib/testns"
)

// sideBySide is how many tests run at the same time: they mostly wait.
const sideBySide = 6

func TestMain(m *testing.M) { testns.Main(m, sideBySide) }
