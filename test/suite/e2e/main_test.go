package e2e

import (
	"testing"

	"github.com/pannier/pannier/test/lib/testns"
)

// sideBySide is the number of parallel tests. They mostly wait.
const sideBySide = 6

func TestMain(m *testing.M) { testns.Main(m, sideBySide) }
