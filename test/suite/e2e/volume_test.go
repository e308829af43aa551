package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testhost"
)

func TestCreateIsRepeatable(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-writer", "")
		first := externalID(t, h, "data")
		volume(h, d, "data", "single-node-writer", "")
		if again := externalID(t, h, "data"); again != first {
			t.Errorf("a repeated create made %q in addition to %q", again, first)
		}
		h.Run("volume", "deregister", "data")
		h.Run("volume", "register", h.Write("again.hcl",
			volumeSpec(d, "data", "single-node-writer", "file-system", `external_id = "`+first+`"`)))
		h.Run("workload", "run", workload(h, "w", "data", ""), "--", "true")
		h.Run("volume", "delete", "data")
		h.Refused(3, []string{"data"}, "volume", "delete", "data")
	})
}

func TestRegisterAsksTheDriver(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		spec := h.Write("v.hcl", volumeSpec(d, "v", "single-node-writer", "file-system", `external_id = "there-is-none"`))
		r := h.Try("volume", "register", spec)
		if r.Code == 0 || !strings.Contains(r.Stderr, "there-is-none") || !strings.Contains(r.Stderr, d.id) {
			t.Errorf("a volume that the driver does not know gave exit code %d: %s", r.Code, r.Stderr)
		}
		h.Refused(3, []string{`"v"`}, "volume", "status", "v")
	})
}

func TestSnapshotAndClone(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-writer", "")
		h.Run("workload", "run", workload(h, "w", "data", ""), "--", "sh", "-c", "echo one > "+h.Path("mnt")+"/file")
		var created struct {
			Snapshot struct {
				SnapshotID string `json:"snapshotId"`
			}
		}
		if err := json.Unmarshal([]byte(h.Run("volume", "snapshot", "create", "-o", "json", "data", "snap")),
			&created); err != nil {
			t.Fatal(err)
		}
		snap := created.Snapshot
		h.Run("workload", "run", workload(h, "w", "data", ""), "--", "sh", "-c", "echo two > "+h.Path("mnt")+"/file")
		volume(h, d, "restored", "single-node-writer", `snapshot_id = "`+snap.SnapshotID+`"`)
		volume(h, d, "cloned", "single-node-writer", `clone_id = "`+externalID(t, h, "data")+`"`)
		for source, want := range map[string]string{"restored": "one\n", "cloned": "two\n"} {
			if got := h.Run("workload", "run", workload(h, "r", source, ""), "--", "cat", h.Path("mnt")+"/file"); got != want {
				t.Errorf("the %s volume holds %q, want %q", source, got, want)
			}
		}
		if got := h.Run("volume", "snapshot", "list", "-driver", d.id); !strings.Contains(got, snap.SnapshotID) {
			t.Errorf("the snapshot is not listed:\n%s", got)
		}
		h.Run("volume", "snapshot", "delete", d.id, snap.SnapshotID)
		for _, id := range []string{"restored", "cloned", "data"} {
			h.Run("volume", "delete", id)
		}
		h.NothingInUse()
	})
}

func TestExpandOnline(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("mkfs.xfs"); err != nil {
		t.Skip("needs mkfs.xfs (Debian: xfsprogs); not covered: growing a mounted volume")
	}
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	// The test uses xfs, because the kernel grows a mounted ext4 only with CAP_SYS_RESOURCE, which root in a
	// container often lacks.
	h.Run("volume", "create", h.Write("data.hcl", strings.ReplaceAll(
		volumeSpec(drivers[0], "data", "single-node-writer", "file-system",
			`mount_options { fs_type = "xfs" }`), "64MiB", "320MiB")))
	target := field(t, h.Run("workload", "start", "-o", "docker", workload(h, "w", "data", "")), "source=")
	size := func() uint64 {
		t.Helper()
		var st unix.Statfs_t
		if err := unix.Statfs(target, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * uint64(st.Bsize) >> 20
	}
	if got := size(); got > 320 {
		t.Errorf("a volume of 320 MiB has a file system of %d", got)
	}
	h.Refused(2, []string{"320"}, "volume", "expand", "data", "64MiB")
	h.Run("volume", "expand", "data", "640MiB")
	if got := size(); got < 500 || got > 640 {
		t.Errorf("a volume that grew to 640 MiB has a file system of %d", got)
	}
	if got := h.Run("volume", "status", "data"); !strings.Contains(got, "640 MiB") {
		t.Errorf("the status does not tell the new size:\n%s", got)
	}
	h.Run("workload", "stop", "w")
	h.NothingInUse()
}

func TestSecretsAreNeverShown(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		password := h.Write("password", "from-a-file-7Yq\n")
		volume(h, d, "data", "single-node-writer", `
secrets      { username = "in-the-spec-3Kw" }
secrets_from { password = "file://`+password+`" }
`)
		h.Run("workload", "run", workload(h, "w", "data", ""), "--", "true")
		shown := h.Run("volume", "status", "data") + h.Run("volume", "status", "-o", "json", "data") +
			h.Run("events", "-recent", "1000") + h.LogTail()
		raw, err := os.ReadFile(h.Path("agent.log"))
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{"in-the-spec-3Kw", "from-a-file-7Yq"} {
			if strings.Contains(shown+string(raw), secret) {
				t.Errorf("the secret %q is shown", secret)
			}
		}
		if !strings.Contains(shown, "[REDACTED]") {
			t.Error("nothing says that there are secrets")
		}
	})
}

func externalID(t *testing.T, h *testhost.Host, id string) string {
	t.Helper()
	var v struct {
		Volume struct {
			Spec struct {
				ExternalID string `json:"externalId"`
			} `json:"spec"`
		} `json:"volume"`
	}
	out := h.Run("volume", "status", "-o", "json", id)
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("read %q: %v", out, err)
	}
	if v.Volume.Spec.ExternalID == "" {
		t.Fatalf("no external id in %s", out)
	}
	return v.Volume.Spec.ExternalID
}
