package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
	"github.com/pannier/pannier/test/lib/testhost"
)

// withDevices starts a host with the plugin pseudodevices: two devices of /dev/zero and one of /dev/full.
func withDevices(t *testing.T) *testhost.Host {
	t.Helper()
	h := testhost.New(t, "")
	config := fmt.Sprintf("plugin \"pseudodevices\" {\n  config {\n    dir = %q\n    sick_dir = %q\n  }\n}\n",
		h.Path("dev"), h.Path("sick"))
	agent, err := os.ReadFile(h.Path("agent.hcl"))
	if err == nil {
		err = os.Mkdir(h.Path("sick"), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.Write("agent.hcl", string(agent)+config)
	putDevices(t, h, "")
	h.Launch()
	devicesAre(t, h, "zero-0 healthy", "zero-1 healthy", "full-0 healthy")
	return h
}

var spaces = regexp.MustCompile(" +")

// putDevices installs the plugin in the host's plugin directory, with more appended to it.
func putDevices(t *testing.T, h *testhost.Host, more string) {
	t.Helper()
	data, err := os.ReadFile(testbin.Build(t, "test/lib/pseudodevices"))
	path := filepath.Join(h.PluginDir, "pseudodevices")
	if err == nil {
		err = os.WriteFile(path+".tmp", append(data, more...), 0o755)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// devicesAre waits until the host's list of devices contains each of the texts, with one space
// between columns.
func devicesAre(t *testing.T, h *testhost.Host, texts ...string) {
	t.Helper()
	h.Eventually("the devices are as they should be", func() error {
		list := spaces.ReplaceAllString(h.Run("device", "list"), " ")
		for _, text := range texts {
			if !strings.Contains(list, text) {
				return fmt.Errorf("no %q in\n%s", text, list)
			}
		}
		return nil
	})
}

func deviceWorkload(h *testhost.Host, id, name string, count int, exec string) string {
	return h.Write(id+".hcl", fmt.Sprintf("workload %q {\n  device %q {\n    count = %d\n  }\n%s\n}\n", id, name, count,
		exec))
}

func TestTwoWorkloadsCompeteForDevices(t *testing.T) {
	t.Parallel()
	h := withDevices(t)
	h.Run("workload", "start", deviceWorkload(h, "first", "pannier/pseudo/zero", 1, ""))
	second := deviceWorkload(h, "second", "pannier/pseudo/zero", 2, "")
	h.Refused(4, []string{`device "pannier/pseudo/zero"`, "2 asked for, 1 free", `"zero-0" is held by workload "first"`},
		"workload", "start", second)
	devicesAre(t, h, "zero-0 healthy default/first", "zero-1 healthy -")
	if out := h.Run("status", "-o", "json"); !strings.Contains(out, `"workload": "first"`) {
		t.Errorf("the status does not tell who has it:\n%s", out)
	}
	h.Run("workload", "stop", "first")
	h.Run("workload", "start", second)
	devicesAre(t, h, "zero-0 healthy default/second", "zero-1 healthy default/second")
	h.Run("workload", "stop", "second")
	h.NothingInUse()
}

func TestARunningProgramHasItsDevices(t *testing.T) {
	t.Parallel()
	h := withDevices(t)
	program := `  exec {
    command = "sh"
    args = ["-c", "for d in $(echo $PSEUDO_DEVICES | tr , ' '); do f=` + h.Path("dev") + `/$d; test -c $f && echo $d; done; head -c 4 ` + h.Path("dev/zero-0") + ` | wc -c; echo x > ` + h.Path("dev/full-0") + ` || echo full"]
  }`
	r := h.Try("workload", "run", deviceWorkload(h, "w", "pseudo", 3, program))
	if r.Code != 0 || r.Stdout != "full-0\nzero-0\nzero-1\n4\nfull\n" {
		t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	devicesAre(t, h, "zero-0 healthy -", "full-0 healthy -")
	h.NothingInUse()
}

func TestDevicesForDockerAndSystemd(t *testing.T) {
	t.Parallel()
	h := withDevices(t)
	spec := deviceWorkload(h, "w", "pannier/pseudo/full", 1, "")
	want := fmt.Sprintf("--device=/dev/full:%s/full-0:rw\n--env=PSEUDO_DEVICES=full-0\n", h.Path("dev"))
	if out := h.Run("workload", "start", spec, "-o", "docker"); out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	want = fmt.Sprintf("BindPaths=/dev/full:%s/full-0\nDeviceAllow=/dev/char/1:7 rw\nEnvironment=PSEUDO_DEVICES=full-0\n",
		h.Path("dev"))
	if out := h.Run("workload", "status", spec, "-o", "systemd"); out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if out := h.Run("device", "stats"); !strings.Contains(out, "full-0  not counted  read_bytes=0") {
		t.Errorf("statistics:\n%s", out)
	}
	h.Run("workload", "stop", spec)
}

// A device in use becomes unhealthy: this is reported, and the workload continues. The workload keeps the
// device while its plugin is swapped and the host is killed.
func TestAWorkloadKeepsItsDevice(t *testing.T) {
	t.Parallel()
	h := withDevices(t)
	h.Run("workload", "start", deviceWorkload(h, "w", "pannier/pseudo/zero", 1, ""))
	h.Write("sick/zero-0", "it wobbles")
	devicesAre(t, h, "zero-0 unhealthy default/w")
	h.Eventually("the status reports it", func() error {
		if out := h.Run("events", "-recent", "100"); !strings.Contains(out, `it wobbles; workload "w" has it and continues`) {
			return fmt.Errorf("events:\n%s", out)
		}
		return nil
	})
	if out := h.Run("workload", "status", "w"); !strings.Contains(out, "running") {
		t.Errorf("the workload does not go on:\n%s", out)
	}
	putDevices(t, h, "another binary")
	h.Eventually("the plugin is swapped", func() error {
		if out := h.Run("plugin", "history", "pseudodevices"); !strings.Contains(out, "swapped") {
			return fmt.Errorf("history:\n%s", out)
		}
		return nil
	})
	if err := os.Remove(h.Path("sick/zero-0")); err != nil {
		t.Fatal(err)
	}
	devicesAre(t, h, "zero-0 healthy default/w") // reported by the new process
	h.Kill()
	h.Launch()
	both := deviceWorkload(h, "both", "pannier/pseudo/zero", 2, "")
	h.Refused(4, []string{`"zero-0" is held by workload "w"`}, "workload", "start", both)
	h.Run("workload", "stop", "w")
	h.Run("workload", "start", both)
	h.Run("workload", "stop", both)
	h.NothingInUse()
}
