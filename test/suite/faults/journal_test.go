package faults

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

// TestDamagedJournal damages a file of the journal of an agent that is down, while a workload's volume is in use. The
// agent comes up, sets the journal aside and says so; the claim stays while somebody uses the volume, and no longer.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		end    func(h *testhost.Host)
		files  string
		damage func(f *os.File, written int64) error
	}{
		"random bytes in a table": {(*testhost.Host).Stop, "*.sst", func(f *os.File, written int64) error {
			noise := make([]byte, written/2)
			_, _ = rand.Read(noise) // never fails
			_, err := f.WriteAt(noise, written/4)
			return err
		}},
		"a manifest that is cut off": {(*testhost.Host).Stop, "MANIFEST", func(f *os.File, _ int64) error {
			return f.Truncate(16) // its header, and not one table
		}},
		"a memtable that is cut off": {(*testhost.Host).Kill, "*.mem", func(f *os.File, written int64) error {
			return f.Truncate(written / 2)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := testhost.New(t, testhost.LocalDriver(t))
			h.Start()
			h.Run("volume", "create", h.Write("v.hcl", `
id           = "data"
type         = "csi"
plugin_id    = "local"
capacity_min = "16MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`))
			h.Run("workload", "start", h.Write("w.hcl", fmt.Sprintf(`
workload "w" {
  volume "data" {
    source      = "data"
    destination = %q
  }
}
`, h.Path("mnt"))))
			mounted := h.VolumeMounts()
			mounted = slices.DeleteFunc(mounted, func(m string) bool { return !strings.Contains(m, "/per-workload/") })
			if len(mounted) != 1 {
				t.Fatalf("the volume is mounted at %v", mounted)
			}
			used, err := os.Create(filepath.Join(mounted[0], "used"))
			if err != nil {
				t.Fatal(err)
			}
			defer used.Close()
			row.end(h)
			damageOne(t, filepath.Join(h.Path("data"), "journal", row.files), row.damage)

			h.Start()
			log, err := os.ReadFile(h.Path("agent.log"))
			if err != nil || !bytes.Contains(log, []byte("the journal is damaged and was set aside")) {
				t.Errorf("the log does not say so (%v): %s", err, h.LogTail())
			}
			if _, err := used.WriteString("still here"); err != nil {
				t.Errorf("a file of the volume: %v", err)
			}
			if claims := h.Claims("data"); len(claims) != 1 {
				t.Errorf("its claims: %v", claims)
			}
			_ = used.Close()
			h.AwaitFree("data")
			h.NothingInUse()
		})
	}
}

// damageOne damages the last file that has content, of those that match.
func damageOne(t *testing.T, pattern string, damage func(f *os.File, written int64) error) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(files)
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		written := len(bytes.TrimRight(data, "\x00"))
		if written <= 20 {
			continue
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			err = errors.Join(damage(f, int64(written)), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no file of %s has content: %v", pattern, files)
}
