package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

func TestSecondAgentOnOneDataDirIsRefused(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, "")
	h.Start()
	second := h.Write("second.hcl",
		fmt.Sprintf("data_dir = %q\nsocket = %q\nports {\n  http = 0\n}\n", h.Path("data"), h.Path("second.sock")))
	h.Refused(1, []string{"another agent (pid " + strconv.Itoa(h.PID()) + ")", h.Path("data")}, "agent", "-config", second)
	if _, err := h.Status(); err != nil {
		t.Errorf("the first agent is disturbed: %v", err)
	}
}

// A data directory may be a link, as on machines with a separate disk for it.
func TestLinkedDataDir(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	if err := os.Mkdir(h.Path("disk"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(h.Path("disk"), h.Path("data")); err != nil {
		t.Fatal(err)
	}
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	h.Kill()
	h.Start()
	h.Run("workload", "stop", "w")
	h.NothingInUse()
}

// Only root, and users that the agent is configured to trust, can read what is in the data
// directory.
func TestDataDirIsClosed(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	err := filepath.WalkDir(h.Path("data"), func(path string, d os.DirEntry, err error) error {
		if err != nil || path == h.Path("data") || filepath.Base(path) == "plugins" {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if strings.Contains(path, "/plugins/") {
			if d.IsDir() && filepath.Base(filepath.Dir(path)) == "plugins" {
				return filepath.SkipDir // for plugins that run as another user; it has its own tests
			}
			return nil
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is %s", strings.TrimPrefix(path, h.Dir), info.Mode())
		}
		if d.IsDir() {
			return filepath.SkipDir // a closed folder hides its content
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
