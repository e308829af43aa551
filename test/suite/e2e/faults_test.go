package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// faulty starts a host with a driver whose faults the test scripts. More is of its csi_driver block.
func faulty(t *testing.T, more ...string) (*testhost.Host, *faultydriver.Driver, driver) {
	t.Helper()
	d := faultydriver.Start(t, faultydriver.Config{Mounts: true, NodeID: "faulty-a"})
	if len(more) == 0 {
		more = []string{`settle_time = "1s"`}
	}
	h := testhost.New(t, fmt.Sprintf(`
csi_driver "faulty" {
  endpoint = %q
  %s
}
`, d.Endpoint(), strings.Join(more, "\n  ")))
	h.Start()
	return h, d, driver{id: "faulty"}
}

// The plugin dies while the driver works on a call of a start or of a stop. The host retries the call, and
// neither the caller nor the workload notices.
func TestPluginDiesInTheMiddleOfACall(t *testing.T) {
	t.Parallel()
	hangs := func(<-chan struct{}) faultydriver.Fault { return faultydriver.Hang() }
	inEachCall(t, hangs, 2, func(t *testing.T, h *testhost.Host) {
		s, err := h.Status()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(int(s.GetPlugins()[0].GetPid()), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
}

// inEachCall has something happen while the driver works on a call of a start or of a stop, for each of their calls.
// The driver's call has a fault, which may last until release is closed; the driver is called so many times in all.
func inEachCall(t *testing.T, fault func(release <-chan struct{}) faultydriver.Fault, calls int,
	happens func(t *testing.T, h *testhost.Host),
) {
	t.Helper()
	for rpc, command := range map[string]string{
		"ControllerPublishVolume": "start", "NodeStageVolume": "start", "NodePublishVolume": "start",
		"NodeUnpublishVolume": "stop", "NodeUnstageVolume": "stop", "ControllerUnpublishVolume": "stop",
	} {
		t.Run(rpc, func(t *testing.T) {
			t.Parallel()
			h, d, id := faulty(t)
			volume(h, id, "data", "single-node-writer", "")
			spec := workload(h, "w", "data", "")
			if command == "stop" {
				h.Run("workload", "start", spec)
			}
			release := make(chan struct{})
			d.Script(rpc, fault(release))
			cmd := h.Command("workload", command, spec)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			d.AwaitCalls(rpc, 1)
			happens(t, h)
			close(release)
			if err := cmd.Wait(); err != nil {
				t.Errorf("workload %s failed: %v\n%s", command, err, h.LogTail())
			}
			if n := len(d.Calls(rpc)); n != calls {
				t.Errorf("it was called %d times, want %d", n, calls)
			}
			drained(t, h)
			if command == "start" {
				h.Run("workload", "stop", spec)
			}
			h.NothingInUse()
			if at := d.AttachedTo(externalID(t, h, "data")); len(at) > 0 {
				t.Errorf("the volume is still attached to %q", at)
			}
		})
	}
}

// A driver gets as many volumes on a node as it takes. The refusal names who has them, and the driver is not asked.
func TestVolumesPerNode(t *testing.T) {
	t.Parallel()
	d := faultydriver.Start(t, faultydriver.Config{Mounts: true, MaxVolumes: 2})
	other := faultydriver.Start(t, faultydriver.Config{Mounts: true})
	h := testhost.New(t, fmt.Sprintf(`
csi_driver "two" { endpoint = %q }
csi_driver "other" { endpoint = %q }
`, d.Endpoint(), other.Endpoint()))
	h.Start()
	specs := map[string]string{}
	for _, id := range []string{"a", "b", "c", "x"} {
		of := "two"
		if id == "x" {
			of = "other"
		}
		volume(h, driver{id: of}, "v"+id, "single-node-writer", "")
		specs[id] = h.Write("w"+id+".hcl", fmt.Sprintf(`
workload "w%s" {
  volume "data" {
    source      = "v%s"
    destination = %q
  }
}
`, id, id, h.Path("mnt-"+id)))
	}
	for _, id := range []string{"x", "a", "b"} {
		h.Run("workload", "start", specs[id])
	}
	got := h.Try("workload", "start", specs["c"])
	for _, want := range []string{
		`driver "two" takes 2 on node`, `"va" by workload "wa"`, `"vb" by workload "wb"`, "max_volumes_per_node",
	} {
		if got.Code == 0 || !strings.Contains(got.Stderr, want) {
			t.Errorf("the third start gave %+v, want %q", got, want)
		}
	}
	if n := len(d.Calls("NodeStageVolume")); n != 2 {
		t.Errorf("the driver staged %d volumes", n)
	}
	h.Run("workload", "stop", specs["a"])
	h.Run("workload", "start", specs["c"])
	for _, id := range []string{"b", "c", "x"} {
		h.Run("workload", "stop", specs[id])
	}
	h.NothingInUse()
}

// output makes a command that runs in the background write its standard error to a file, and returns what is in it.
func output(t *testing.T, h *testhost.Host, cmd *exec.Cmd) func() string {
	t.Helper()
	f, err := os.Create(h.Path("stderr"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	cmd.Stderr = f
	return func() string {
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

// What a step waits for while its driver is asked again is shown with the start's progress.
func TestRetriesAreShown(t *testing.T) {
	t.Parallel()
	h, d, id := faulty(t)
	volume(h, id, "data", "single-node-writer", "")
	spec := workload(h, "w", "data", "")
	d.Always("NodeStageVolume", faultydriver.Code(codes.Aborted, "the array is rebuilt"))
	started := h.Command("workload", "start", spec)
	out := output(t, h, started)
	if err := started.Start(); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the progress says why", func() error {
		if text := out(); !strings.Contains(text, "NodeStageVolume answered Aborted: the array is rebuilt") {
			return fmt.Errorf("it is %q", text)
		}
		return nil
	})
	d.Always("NodeStageVolume", faultydriver.Fault{})
	if err := started.Wait(); err != nil {
		t.Errorf("%v: %s", err, out())
	}
	h.Run("workload", "stop", spec)
	h.NothingInUse()
}

// A driver that dies of listing its volumes is asked twice, not until the time is over.
func TestDriverThatDiesOfAList(t *testing.T) {
	t.Parallel()
	h, d, _ := faulty(t)
	d.Always("ListVolumes", faultydriver.Crash())
	listed := h.Command("volume", "list", "-driver", "faulty", "-external")
	out := output(t, h, listed)
	if err := listed.Start(); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		d.AwaitCalls("ListVolumes", n+1)
		h.Eventually("the driver has died", func() error {
			if d.Running() {
				return errors.New("it runs")
			}
			return nil
		})
		d.Restart()
	}
	if err := listed.Wait(); err == nil || !strings.Contains(out(), "the driver died of ListVolumes 2 times in a row") {
		t.Errorf("%v: %s", err, out())
	}
	h.AwaitDrivers()
	if n := len(d.Calls("ListVolumes")); n != 2 {
		t.Errorf("ListVolumes was called %d times, want 2", n)
	}
}
