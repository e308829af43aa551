package e2e

import (
	"bytes"
	"strings"
	"testing"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// A driver may take a snapshot at once and make it ready to use later: the command waits, and no volume is made of it
// before.
func TestSnapshotThatIsNotReady(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t)
	check.NoError(t, register(t.Context(), h.Client(), d, "data", "single-node-writer"))
	d.SetPreparing(true)
	if out := h.Run("volume", "snapshot", "create", "-detach", "data", "first"); !strings.Contains(out, "not ready yet") {
		t.Errorf("with -detach it says %s", out)
	}
	copied := spec("copy", "single-node-writer")
	copied.ExternalId, copied.SnapshotId = "", "first"
	create := &hostv1.CreateVolumeRequest{Spec: copied}
	if _, err := h.Client().Volumes.CreateVolume(t.Context(), create); err == nil ||
		!strings.Contains(err.Error(), `snapshot "first" is not ready to use yet`) ||
		connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("a volume of it: %v", err)
	}

	var out bytes.Buffer
	waits := h.Command("volume", "snapshot", "create", "data", "second")
	waits.Stdout = &out
	calls := len(d.Calls("CreateSnapshot"))
	check.NoError(t, waits.Start())
	d.AwaitCalls("CreateSnapshot", calls+3)
	d.SetPreparing(false)
	check.NoError(t, waits.Wait())
	if !strings.Contains(out.String(), `snapshot "second"`) || !strings.Contains(out.String(), ": ready") {
		t.Errorf("it says %s", out.String())
	}
	_, err := h.Client().Volumes.CreateVolume(t.Context(), create)
	check.NoError(t, err)
}
