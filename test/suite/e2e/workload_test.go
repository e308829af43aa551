package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/testhost"
)

func TestWorkloadUsesItsVolumeAndGivesItBack(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-writer", "")
		spec := workload(h, "w", "data", "")
		h.Run("workload", "run", spec, "--", "sh", "-c", "echo kept > "+h.Path("mnt")+"/file")
		h.NothingInUse()
		if _, err := os.Stat(h.Path("mnt") + "/file"); err == nil {
			t.Error("the workload wrote to the host's disk")
		}
		if got := h.Run("workload", "run", spec, "--", "cat", h.Path("mnt")+"/file"); got != "kept\n" {
			t.Errorf("the next run reads %q", got)
		}
		h.NothingInUse()
		h.Run("volume", "delete", "data")
		h.Refused(3, []string{"data"}, "volume", "status", "data")
	})
}

func TestExitCodeAndSignalsArePassedOn(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "data", "single-node-writer", "")
	spec := workload(h, "w", "data", "")
	if r := h.Try("workload", "run", spec, "--", "sh", "-c", "exit 42"); r.Code != 42 {
		t.Errorf("exit code %d, want 42", r.Code)
	}
	cmd, lines := background(t, h, spec, "trap 'echo got it; exit 7' TERM; echo up; while :; do sleep 0.02; done")
	await(t, lines, "up")
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await(t, lines, "got it")
	if code := exitCode(cmd); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	if r := h.Try("workload", "run", spec, "--", "/does/not/exist"); r.Code != 127 {
		t.Errorf("a missing program gave %d, want 127: %s", r.Code, r.Stderr)
	}
	h.NothingInUse()
}

func TestSecondWriterIsRefused(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-single-writer", "")
		h.Run("workload", "start", workload(h, "first", "data", ""))
		h.Refused(4, []string{`volume "data"`, `workload "first"`, `node "a"`, "write", "taken"},
			"workload", "start", workload(h, "second", "data", ""))
		h.Refused(4, []string{"first"}, "volume", "delete", "data")
		h.Refused(4, []string{"first"}, "volume", "deregister", "data")
		h.Run("workload", "stop", "first")
		h.Run("workload", "start", workload(h, "second", "data", ""))
		h.Run("workload", "stop", "second")
		h.NothingInUse()
	})
}

func TestStartPrintsTheMounts(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "data", "single-node-writer", "")
		spec := workload(h, "w", "data", "read_only = true")
		docker := h.Run("workload", "start", "-o", "docker", spec)
		source := field(t, docker, "source=")
		if !strings.Contains(docker, "target="+h.Path("mnt")) || !strings.Contains(docker, "readonly") {
			t.Errorf("docker's flags are %q", docker)
		}
		if !mounted(h, source) {
			t.Errorf("nothing is mounted at %s, only at %q", source, h.Mounts())
		}
		if systemd := h.Run("workload", "status", "-o", "systemd", "w"); !strings.Contains(systemd,
			"BindReadOnlyPaths="+source+":"+h.Path("mnt")) {
			t.Errorf("systemd's lines are %q", systemd)
		}
		h.Run("workload", "start", spec) // the same again
		h.Run("workload", "stop", spec)
		h.Run("workload", "stop", spec) // repeated: nothing to do
		h.NothingInUse()
	})
}

func TestSeveralVolumesAllOrNone(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "one", "single-node-single-writer", "")
		volume(h, d, "two", "single-node-single-writer", "")
		h.Run("workload", "start", workload(h, "holder", "two", ""))
		both := h.Write("both.hcl", fmt.Sprintf(`
workload "both" {
  volume "a" {
    source      = "one"
    destination = %q
  }
  volume "b" {
    source      = "two"
    destination = %q
  }
}`, h.Path("a"), h.Path("b")))
		h.Refused(4, []string{"two", "holder"}, "workload", "start", both)
		if got := h.Run("volume", "status", "one"); strings.Contains(got, "both") {
			t.Errorf("the refused workload holds a claim:\n%s", got)
		}
		h.Run("workload", "stop", "holder")
		h.Run("workload", "run", both, "--", "sh", "-c", "touch "+h.Path("a")+"/x "+h.Path("b")+"/y")
		h.NothingInUse()
	})
}

// background runs a workload's shell script and delivers its output line by line.
func background(t *testing.T, h *testhost.Host, spec, script string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := h.Command("workload", "run", spec, "--", "sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The wait for output is limited by testhost.Wait.
	late := time.AfterFunc(testhost.Wait, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		late.Stop()
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd, bufio.NewScanner(out)
}

func await(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	var got []string
	for lines.Scan() {
		if lines.Text() == want {
			return
		}
		got = append(got, lines.Text())
	}
	t.Fatalf("the workload ended without %q, it said %q", want, got)
}

func exitCode(cmd *exec.Cmd) int {
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

func field(t *testing.T, text, prefix string) string {
	t.Helper()
	_, after, ok := strings.Cut(text, prefix)
	if !ok {
		t.Fatalf("no %q in %q", prefix, text)
	}
	return strings.TrimSpace(strings.FieldsFunc(after, func(r rune) bool { return r == ',' || r == '\n' })[0])
}

func mounted(h *testhost.Host, path string) bool {
	for _, m := range h.Mounts() {
		if m == filepath.Clean(path) {
			return true
		}
	}
	return false
}

// A workload's mount namespace starts as a copy of the host's, with the mounts of all other workloads. It
// must not keep them mounted.
func TestRunningWorkloadKeepsNobodyElsesVolume(t *testing.T) {
	eachDriver(t, func(t *testing.T, h *testhost.Host, d driver) {
		volume(h, d, "mine", "single-node-writer", "")
		volume(h, d, "other", "single-node-writer", "")
		h.Run("workload", "start", workload(h, "other", "other", ""))
		cmd, lines := background(t, h, workload(h, "w", "mine", ""),
			"grep -c "+h.Path("data/csi")+" /proc/self/mountinfo; echo up; sleep infinity")
		await(t, lines, "0")
		await(t, lines, "up")
		h.Run("workload", "stop", "other")
		h.Run("volume", "delete", "other")
		if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		exitCode(cmd)
		h.NothingInUse()
	})
}
