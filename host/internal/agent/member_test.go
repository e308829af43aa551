package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/config"
)

// TestLedgerOfASingleHost: an agent that is to be in a cluster with others does not bring a ledger of its own.
func TestLedgerOfASingleHost(t *testing.T) {
	for name, row := range map[string]struct {
		files   []string
		server  bool
		expect  int
		join    []string
		refused bool
	}{
		"a server that forms a cluster":     {[]string{"ledger"}, true, 3, nil, true},
		"a server that joins one":           {[]string{"ledger"}, true, 0, []string{"192.0.2.1"}, true},
		"one of one that joins others":      {[]string{"ledger"}, true, 1, []string{"192.0.2.1"}, true},
		"a node":                            {[]string{"ledger"}, false, 0, []string{"192.0.2.1"}, true},
		"the first server":                  {[]string{"ledger"}, true, 1, nil, false},
		"a new server":                      {nil, true, 3, nil, false},
		"a server of the cluster":           {[]string{"ledger", secretFile}, true, 3, []string{"192.0.2.1"}, false},
		"a node whose ledger was discarded": {[]string{"ledger.single"}, false, 0, []string{"192.0.2.1"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := &config.Agent{DataDir: t.TempDir(), RetryJoin: row.join}
			cfg.Server.Enabled, cfg.Server.BootstrapExpect = row.server, row.expect
			for _, file := range row.files {
				if err := os.Mkdir(filepath.Join(cfg.DataDir, file), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			err := (&member{agent: &agent{cfg: cfg}}).checkLedger()
			if (err != nil) != row.refused || err != nil && !strings.Contains(err.Error(), "move the ledger away") {
				t.Errorf("refused: %v, want %v", err, row.refused)
			}
		})
	}
}
