package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testhost"
)

// ephemeralHost is a host whose driver makes ephemeral volumes for workloads of some namespaces.
func ephemeralHost(t *testing.T, d driver) *testhost.Host {
	t.Helper()
	h := testhost.New(t, strings.Replace(d.block(t), "  settle_time",
		"  ephemeral_volumes {\n    namespaces = [\"default\", \"shop\"]\n  }\n  settle_time", 1))
	h.Start()
	h.AwaitDrivers()
	return h
}

// withScratch writes a workload with an ephemeral volume and perhaps another one.
func withScratch(h *testhost.Host, d driver, id, more string) string {
	return h.Write(id+".hcl", fmt.Sprintf(`
workload %q {
  volume "scratch" {
    driver      = %q
    destination = %q
    attributes {
      size = "64MiB"
    }
  }
  %s
}
`, id, d.id, h.Path("scratch"), more))
}

// kept lists what a driver has in its directory, without the file of its state.
func kept(t *testing.T, h *testhost.Host) (all []string) {
	t.Helper()
	check.NoError(t, filepath.WalkDir(h.Path("data/volumes"), func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) != "state.json" {
			all = append(all, path)
		}
		return err
	}))
	return all
}

// A driver makes a volume for a workload and deletes it with it. Each run has its own; nothing is claimed.
func TestEphemeralVolume(t *testing.T) {
	t.Parallel()
	for _, d := range drivers {
		t.Run(d.id, func(t *testing.T) {
			t.Parallel()
			h := ephemeralHost(t, d)
			before := kept(t, h)
			spec := withScratch(h, d, "w", "")
			for range 2 {
				h.Run("workload", "run", spec, "--", "sh", "-c",
					fmt.Sprintf("test ! -e %[1]s/file && echo kept > %[1]s/file && cat %[1]s/file", h.Path("scratch")))
				h.NothingInUse()
			}
			h.Run("workload", "start", spec)
			if got := h.Run("workload", "status", "w"); !strings.Contains(got, "scratch") ||
				!strings.Contains(got, "folder, made by "+d.id) {
				t.Errorf("the workload's status does not show the volume:\n%s", got)
			}
			if got := h.Run("driver", "status", d.id); !strings.Contains(got, "in default, shop") {
				t.Errorf("the driver's status does not say that it is open:\n%s", got)
			}
			if s := check.Must(h.Status())(t); s.GetClaims() != 0 || s.GetVolumes() != 0 {
				t.Errorf("the ledger has %d volumes and %d claims", s.GetVolumes(), s.GetClaims())
			}
			h.Kill() // the agent comes back, and has the workload as it was
			h.Start()
			if len(h.VolumeMounts()) != 1 {
				t.Errorf("mounted: %q", h.VolumeMounts())
			}
			h.Run("workload", "stop", "w")
			h.NothingInUse()
			if after := kept(t, h); !slices.Equal(before, after) {
				t.Errorf("the driver has\n%s\nand had\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
			}
			h.Refused(4, []string{"in the namespace", `"dark"`, "add it to namespaces in ephemeral_volumes"},
				"workload", "start", "-namespace", "dark", spec)
			h.NothingInUse()
		})
	}
}

// The mount of an ephemeral volume that no record explains is unpublished by its driver: here the journal is lost.
func TestEphemeralVolumeWithoutAJournal(t *testing.T) {
	t.Parallel()
	d := drivers[0]
	h := ephemeralHost(t, d)
	before := kept(t, h)
	h.Run("workload", "start", withScratch(h, d, "w", ""))
	h.Kill()
	check.NoError(t, os.RemoveAll(h.Path("data/journal")))
	h.Start()
	h.Eventually("the volume is unpublished", func() error {
		if after := kept(t, h); !slices.Equal(before, after) {
			return fmt.Errorf("the driver has %q, mounted are %q", after, h.VolumeMounts())
		}
		return nil
	})
	h.NothingInUse()
}

// The workload has a registered volume too: a stop waits for both, a group snapshot is of the registered one.
func TestEphemeralVolumeBesideARegisteredOne(t *testing.T) {
	t.Parallel()
	d := drivers[0]
	h := ephemeralHost(t, d)
	volume(h, d, "data", "single-node-writer", "")
	h.Run("workload", "start", withScratch(h, d, "w", fmt.Sprintf(
		"volume \"data\" {\n    source      = \"data\"\n    destination = %q\n  }", h.Path("data-mnt"))))
	h.Run("volume", "snapshot", "group", "create", "now", "-workload", "w")
	mounted := h.VolumeMounts()
	scratch := mounted[slices.IndexFunc(mounted, func(p string) bool { return strings.Contains(p, "/ephemeral-") })]
	busy := check.Must(os.Create(filepath.Join(scratch, "file")))(t)
	stop := h.Command("workload", "stop", "w")
	check.NoError(t, stop.Start())
	h.Eventually("the stop waits", func() error {
		if got := h.Run("workload", "status", "w"); !strings.Contains(got, "in use") {
			return fmt.Errorf("it says\n%s", got)
		}
		return nil
	})
	check.NoError(t, busy.Close())
	check.NoError(t, stop.Wait())
	h.NothingInUse()
}
