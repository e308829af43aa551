package e2e

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// The program of a driver in use is overwritten in place while calls run, by a good build and by broken ones. No call
// fails, and what is mounted stays.
func TestDriverProgramIsOverwritten(t *testing.T) {
	t.Parallel()
	program := testbin.Build(t, "drivers/csi-local")
	h, write := reloadable(t, "")
	good, err := os.ReadFile(program)
	check.NoError(t, err)
	file := h.Path("csi-local")
	overwrite := func(data []byte) {
		t.Helper()
		check.NoError(t, os.WriteFile(file, data, 0o755)) //nolint:gosec // it is a program
	}
	overwrite(good)
	write(strings.Replace(testhost.LocalDriver(t), program, file, 1))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	h.Run("workload", "start", workload(h, "w", "data", ""))
	calls := callers(t, h)
	shown := func() *hostv1.Driver {
		t.Helper()
		resp, err := h.Client().Drivers.GetDriver(t.Context(), &hostv1.GetDriverRequest{Id: "local"})
		check.NoError(t, err)
		return resp.GetDriver()
	}
	await := func(what string, is func(d *hostv1.Driver) bool) *hostv1.Driver {
		t.Helper()
		var d *hostv1.Driver
		h.Eventually(what, func() error {
			if d = shown(); !d.GetHealthy() || !is(d) {
				return errors.New(d.String())
			}
			return nil
		})
		return d
	}

	first := shown()
	overwrite(append(slices.Clip(good), 0))
	second := await("the new program serves", func(d *hostv1.Driver) bool { return d.GetPid() != first.GetPid() })
	if second.GetProgramSha256() == first.GetProgramSha256() || len(second.GetSwaps()) != 1 {
		t.Errorf("%v follows %v", second, first)
	}
	h.Run("volume", "create", "-dry-run", h.Path("data.hcl"))

	// A build that ends at once, as one for other arguments does.
	other, err := os.ReadFile("/bin/false")
	check.NoError(t, err)
	overwrite(other)
	third := await("the program before it runs again", func(d *hostv1.Driver) bool {
		n := len(d.GetSwaps())
		return n > 0 && d.GetSwaps()[n-1].GetRollback() && d.GetProgramSha256() == second.GetProgramSha256()
	})
	out := h.Run("driver", "history", "local")
	if want := "rolled back: the process ended"; !strings.Contains(out, want) {
		t.Errorf("the history has no %q:\n%s", want, out)
	}
	// Half a file is not run.
	overwrite(good[:len(good)/2])
	fourth := await("half a program is reported", func(d *hostv1.Driver) bool {
		return strings.Contains(d.GetProgramProblem(), "incomplete")
	})
	if fourth.GetPid() != third.GetPid() {
		t.Errorf("half a program replaced %v by %v", third, fourth)
	}
	if n := calls(); n < 100 {
		t.Errorf("only %d calls ran meanwhile", n)
	}

	// What it printed is shown, also with its state.
	h.Run("driver", "restart", "local", "-force")
	if out := h.Run("driver", "logs", "local", "-recent", "20"); !strings.Contains(out, "serving") {
		t.Errorf("the log is %q", out)
	}
	if out := h.Run("driver", "status", "local"); !strings.Contains(out, "Printed ") ||
		!strings.Contains(out, fmt.Sprintf("%.12s", second.GetProgramSha256())) {
		t.Errorf("the status is %s", out)
	}
	h.Refused(3, []string{"pannier driver status"}, "driver", "logs", "nobody")
	h.Run("workload", "stop", "w")
	h.NothingInUse()
}
