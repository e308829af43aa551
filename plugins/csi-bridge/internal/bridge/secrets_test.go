package bridge

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/sdk/storage"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
)

// TestSecretsAreNowhere uses a driver that prints all its input, in every common format. The errors and the
// trace log must not contain it.
func TestSecretsAreNowhere(t *testing.T) {
	leak := fmt.Sprintf("cannot use %s or %q or %s, pin=77, options noatime,%s (s3same)",
		secretValue, secretValue, url.QueryEscape(secretValue), secretFlag)
	for _, op := range operations {
		t.Run(op.rpc, func(t *testing.T) {
			t.Parallel()
			f := setup(t, brisk, faultydriver.Config{})
			f.faulty.Script(op.rpc, faultydriver.Code(codes.Unavailable, leak), faultydriver.OK())
			succeeded := op.call(t.Context(), f)
			f.faulty.Script(op.rpc, faultydriver.Code(codes.Internal, leak))
			failed := op.call(t.Context(), f)
			if succeeded != nil || failed == nil {
				t.Fatalf("got %v and then %v", succeeded, failed)
			}
			log := f.log.String()
			if !strings.Contains(log, op.rpc) || !strings.Contains(log, "request=") {
				t.Fatalf("no trace of the call in the log:\n%s", log)
			}
			for _, secret := range []string{"hunter2", "s3same", "pin=77", `"77"`} {
				if strings.Contains(log, secret) {
					t.Errorf("%q is in the log:\n%s", secret, log)
				}
			}
			// Only secrets in the request can be recognised: the requests for a list of volumes and for the capacity have
			// none, and those for snapshots have no mount flags.
			if op.rpc == "ListVolumes" || op.rpc == "GetCapacity" {
				return
			}
			want := `cannot use [REDACTED] or "[REDACTED]" or [REDACTED], pin=[REDACTED]`
			if !slices.Contains([]string{"DeleteSnapshot", "ListSnapshots"}, op.rpc) &&
				!strings.Contains(op.rpc, "Group") {
				want += ", options [REDACTED],[REDACTED] ([REDACTED])"
			}
			if !strings.Contains(failed.Error(), want) {
				t.Errorf("got %v\nwant %s", failed, want)
			}
		})
	}
}

// An operator may have written a secret into the volume's parameters as well.
func TestSecretThatIsInTheContextToo(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	v := f.volume()
	v.Context = map[string]string{"url": "nfs://admin:" + secretValue + "@server"}
	check.NoError(t, f.bridge.Stage(t.Context(), f.driver, storage.StageRequest{Volume: v, StagingPath: "/staging"}))
	if log := f.log.String(); !strings.Contains(log, "nfs://admin:") || strings.Contains(log, "hunter2") {
		t.Errorf("the log of the call is:\n%s", log)
	}
}

func TestLogHasOneLineForACall(t *testing.T) {
	f := setup(t, brisk, faultydriver.Config{})
	f.faulty.Script("NodeStageVolume", faultydriver.Code(codes.Aborted, "pending"))
	check.NoError(t, stage(t.Context(), f))
	var lines []string
	for line := range strings.Lines(f.log.String()) {
		if strings.Contains(line, "rpc=NodeStageVolume") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || !strings.Contains(lines[0], "driver=faulty") || !strings.Contains(lines[0], "code=Aborted") ||
		!strings.Contains(lines[0], "attempt=1") || !strings.Contains(lines[1], "code=OK") ||
		!strings.Contains(lines[1], "attempt=2") {
		t.Errorf("got %q", lines)
	}
	if strings.Contains(f.log.String(), "pending") {
		t.Error("an error is both logged and returned")
	}
}
