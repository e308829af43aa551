package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

// elsewhere creates a foreign file on the tmpfs of the secrets.
func elsewhere(t *testing.T, m *faultyMesh) string {
	t.Helper()
	path := filepath.Join(m.SecretsDir(), "default", "w", "elsewhere")
	must(t, os.WriteFile(path, []byte("not a token"), 0o600))
	return path
}
