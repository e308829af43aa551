package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
)

// TestDatabasesOfAnEndingProcess: a killed agent, or a child of it, has given up the agent's lock and not yet those of
// its databases.
func TestDatabasesOfAnEndingProcess(t *testing.T) {
	for _, name := range []string{"journal", "ledger/db-0", "ledger/lock"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, name)
			if name == "ledger/lock" {
				check.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				check.NoError(t, os.WriteFile(path, nil, 0o600))
			} else {
				check.NoError(t, os.MkdirAll(path, 0o700))
			}
			held := check.Must(os.Open(path))(t)
			t.Cleanup(func() { _ = held.Close() })
			check.NoError(t, unix.Flock(int(held.Fd()), unix.LOCK_EX))
			synctest.Test(t, func(t *testing.T) {
				if _, err := lockDir(t.Context(), dir); !errors.Is(err, unix.EWOULDBLOCK) || !strings.Contains(err.Error(), path) {
					t.Errorf("while it is open: %v", err)
				}
				var lock *os.File
				locked := make(chan error, 1)
				go func() {
					var err error
					lock, err = lockDir(context.Background(), dir)
					locked <- err
				}()
				time.Sleep(lockWait / 2) // virtual: the other one is waiting
				check.NoError(t, held.Close())
				check.NoError(t, <-locked)
				check.NoError(t, lock.Close())
			})
		})
	}
}
