package e2e

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// A create for which the driver lacks room is refused at once, with what there is and what was asked.
func TestNoRoomForAVolume(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	if got := h.Run("driver", "status", "local"); !strings.Contains(got, "Room for volumes") {
		t.Errorf("the driver's status does not say how much room there is:\n%s", got)
	}
	var st unix.Statfs_t
	check.NoError(t, unix.Statfs(h.Path("data"), &st))
	// More than is available, but not more than the disk has: csi-local answers ResourceExhausted, which is usually
	// worth a retry.
	size := (int64(st.Bavail) + int64(st.Blocks-st.Bavail)*2/3) * st.Frsize
	big := strings.ReplaceAll(volumeSpec(drivers[0], "big", "single-node-writer", "file-system", ""), `"64MiB"`,
		fmt.Sprintf("%q", fmt.Sprint(size)))
	r := h.Try("volume", "create", h.Write("big.hcl", big))
	for _, word := range []string{`volume "big"`, "room for", fmt.Sprint("capacity_min is ", size), "ResourceExhausted"} {
		if r.Code == 0 || !strings.Contains(r.Stderr, word) {
			t.Errorf("exit code %d, and %q is not in: %s", r.Code, word, r.Stderr)
		}
	}
	if strings.Contains(r.Stderr, "attempts") {
		t.Errorf("the create was repeated: %s", r.Stderr)
	}
	h.Refused(3, []string{"big"}, "volume", "status", "big")
}

// An interrupted create is finished by a repeated one, though the volume itself has taken the room.
func TestRoomTakenByTheVolumeItself(t *testing.T) {
	t.Parallel()
	d := faultydriver.Start(t, faultydriver.Config{})
	d.SetRoom(100 << 20)
	h := testhost.New(t, fmt.Sprintf("csi_driver \"faulty\" {\n  endpoint = %q\n}\n", d.Endpoint()))
	h.Start()
	h.AwaitDrivers()
	faulty := driver{id: "faulty"}
	volume(h, faulty, "data", "single-node-writer", "")
	first := externalID(t, h, "data")
	h.Run("volume", "deregister", "data") // as if the agent had been killed before the ledger had it
	volume(h, faulty, "data", "single-node-writer", "")
	if got := externalID(t, h, "data"); got != first || len(d.Volumes()) != 1 {
		t.Errorf("the repeated create gave %q, not %q; there are %q", got, first, d.Volumes())
	}
	spec := h.Write("more.hcl", volumeSpec(faulty, "more", "single-node-writer", "file-system", ""))
	if r := h.Try("volume", "create", spec); !strings.Contains(r.Stderr, fmt.Sprint("room for ", 36<<20, " bytes")) {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
}
