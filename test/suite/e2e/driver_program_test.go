package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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
	if want := "rolled back: its process"; !strings.Contains(out, want) {
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

// The program of a driver of which two processes may run side by side is replaced while its volumes are made, attached,
// mounted and deleted, also by a broken one. The driver is healthy all the time, and no call fails.
func TestDriverProgramOverlaps(t *testing.T) {
	t.Parallel()
	h, write := reloadable(t, "")
	good, err := os.ReadFile(testbin.Build(t, "test/lib/shareddriver"))
	check.NoError(t, err)
	other, err := os.ReadFile("/bin/false")
	check.NoError(t, err)
	file := h.Path("shareddriver")
	check.NoError(t, os.WriteFile(file, good, 0o755)) //nolint:gosec // it is a program
	write(fmt.Sprintf(`
csi_driver "shared" {
  command     = [%q, "-endpoint", "${endpoint}", "-node-id", "${node.name}", "-dir", "${data_dir}/volumes"]
  overlap     = true
  settle_time = "1s"
}
`, file))
	h.Start()
	d := driver{id: "shared"}
	volume(h, d, "v", "single-node-writer", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Each swap waits for a round of calls to begin, so that four rounds are made however quick the swaps are.
	begun := make(chan struct{}, 4)
	swaps, client := make(chan error, 1), h.Client()
	go func() {
		swaps <- func() error {
			for n := range cap(begun) {
				select {
				case <-begun:
				case <-ctx.Done():
					return ctx.Err()
				}
				program := append(slices.Clip(good), byte(n))
				if n == 2 {
					program = other
				}
				if err := os.WriteFile(file, program, 0o755); err != nil { //nolint:gosec // it is a program
					return err
				}
				for done := false; !done; {
					resp, err := client.Drivers.GetDriver(ctx, &hostv1.GetDriverRequest{Id: "shared"})
					if err != nil {
						return err
					}
					is := resp.GetDriver()
					if !is.GetHealthy() {
						return fmt.Errorf("it is not healthy: %v", is)
					}
					done = len(is.GetSwaps()) > n
				}
			}
			return nil
		}()
	}()
	for done := false; !done; {
		select {
		case err = <-swaps:
			done = true
		default:
			select {
			case begun <- struct{}{}:
			default: // all swaps have begun
			}
			volume(h, d, "other", "single-node-writer", "")
			h.Run("workload", "start", workload(h, "w", "v", ""))
			h.Run("workload", "stop", "w")
			h.Run("volume", "delete", "other")
		}
	}
	if err != nil {
		t.Errorf("the swaps: %v", err)
	}
	out := h.Run("driver", "history", "shared")
	if n := strings.Count(out, "swapped next to the old process"); n != 3 || !strings.Contains(out, "refused next to the old process") {
		t.Errorf("the history is\n%s", out)
	}
	h.NothingInUse()
}

// csi-local locks its directory. With overlap set by mistake a new program is refused, and the old one serves on.
func TestDriverProgramThatCannotOverlap(t *testing.T) {
	t.Parallel()
	program := testbin.Build(t, "drivers/csi-local")
	h, write := reloadable(t, "")
	good, err := os.ReadFile(program)
	check.NoError(t, err)
	file := h.Path("csi-local")
	check.NoError(t, os.WriteFile(file, good, 0o755)) //nolint:gosec // it is a program
	block := strings.Replace(testhost.LocalDriver(t), program, file, 1)
	write(strings.Replace(block, "{\n", "{\n  overlap = true\n", 1))
	h.Start()
	calls := callers(t, h)
	check.NoError(t, os.WriteFile(file, append(slices.Clip(good), 0), 0o755)) //nolint:gosec // it is a program
	h.Eventually("the new program is refused", func() error {
		resp, err := h.Client().Drivers.GetDriver(t.Context(), &hostv1.GetDriverRequest{Id: "local"})
		check.NoError(t, err)
		d := resp.GetDriver()
		if !d.GetHealthy() || d.GetRestarts() != 0 {
			t.Fatalf("the old program does not serve: %v", d)
		}
		if len(d.GetSwaps()) != 1 || !d.GetSwaps()[0].GetRefused() || d.GetSwaps()[0].GetTook().AsDuration() <= 0 {
			return errors.New(d.String())
		}
		return nil
	})
	if out := h.Run("driver", "history", "local"); !strings.Contains(out, "the data directory is in use by another driver") {
		t.Errorf("the history is\n%s", out)
	}
	if n := calls(); n < 100 {
		t.Errorf("only %d calls ran meanwhile", n)
	}
}
