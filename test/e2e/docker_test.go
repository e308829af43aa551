package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/docker"
	"github.com/pannier/pannier/test/testhost"
)

// image has a shell and nothing to do.
const image = "pannier-test/shell"

// TestDocker runs workloads and drivers in real containers. The host of each
// test lives in dockerd's mount namespace.
func TestDocker(t *testing.T) {
	d := docker.Start(t, "workloads and drivers in containers")
	d.Shell(t, image)
	for name, test := range map[string]func(t *testing.T, h *testhost.Host, d *docker.Daemon){
		"workload":      dockerWorkload,
		"read-only":     dockerReadOnly,
		"block device":  dockerBlock,
		"still running": dockerStillRunning,
	} {
		t.Run(name, func(t *testing.T) {
			h := testhost.New(t, testhost.LocalDriver(t))
			h.Namespace = d.PID()
			h.Start()
			test(t, h, d)
		})
	}
}

// container prepares a container's command, with the flags that the start of a
// workload prints, as a shell would split them.
func container(flags, name string, more ...string) []string {
	args := []string{"run", "--network=none", "--name", "c-"+name}
	args = append(args, strings.Fields(flags)...)
	return append(args, more...)
}

func dockerWorkload(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	volume(h, drivers[0], "data", "single-node-writer", "")
	spec := workload(h, "w", "data", "")
	file := h.Path("mnt") + "/file"
	flags := h.Run("workload", "start", "-o", "docker", spec)
	d.Run(t, container(flags, "w", image, "sh", "-c", "echo kept > "+file)...)
	d.Run(t, "rm", "c-w")
	h.Run("workload", "stop", "w")
	h.NothingInUse()
	flags = h.Run("workload", "start", "-o", "docker", spec)
	if got := d.Run(t, container(flags, "w", "--rm", image, "cat", file)...); got != "kept\n" {
		t.Errorf("the next container reads %q", got)
	}
	h.Run("workload", "stop", "w")
	h.NothingInUse()
	h.Run("volume", "delete", "data")
}

func dockerReadOnly(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	volume(h, drivers[0], "data", "single-node-writer", "")
	file := h.Path("mnt") + "/file"
	h.Run("workload", "run", workload(h, "w", "data", ""), "--", "touch", file)
	flags := h.Run("workload", "start", "-o", "docker", workload(h, "r", "data", "read_only = true"))
	d.Run(t, container(flags, "r", "--rm", image, "test", "-e", file)...)
	if out, err := d.Try(container(flags, "r", "--rm", image, "touch", h.Path("mnt")+"/other")...); err == nil || !strings.Contains(out, "Read-only") {
		t.Errorf("a write to a read-only volume gave %v: %s", err, out)
	}
	h.Run("workload", "stop", "r")
	h.NothingInUse()
}

func dockerBlock(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	h.Run("volume", "create", h.Write("raw.hcl", volumeSpec(drivers[0], "raw", "single-node-writer", "block-device", "")))
	device := h.Path("mnt")
	spec := workload(h, "w", "raw", "")
	flags := h.Run("workload", "start", "-o", "docker", spec)
	d.Run(t, container(flags, "w", "--rm", image, "sh", "-c", "printf block | dd of="+device+" conv=notrunc,fsync && test -b "+device)...)
	h.Run("workload", "stop", "w")
	h.NothingInUse()
	ro := workload(h, "r", "raw", "read_only = true")
	flags = h.Run("workload", "start", "-o", "docker", ro)
	if got := d.Run(t, container(flags, "r", "--rm", image, "head", "-c", "5", device)...); got != "block" {
		t.Errorf("the next container reads %q", got)
	}
	if out, err := d.Try(container(flags, "r", "--rm", image, "sh", "-c", "printf other | dd of="+device+" conv=notrunc,fsync")...); err == nil {
		t.Errorf("a read-only device could be written to: %s", out)
	}
	h.Run("workload", "stop", "r")
	h.NothingInUse()
}

// A container that still runs keeps the volume: its mount is a copy of the host's.
func dockerStillRunning(t *testing.T, h *testhost.Host, d *docker.Daemon) {
	volume(h, drivers[0], "data", "single-node-single-writer", "")
	flags := h.Run("workload", "start", "-o", "docker", workload(h, "first", "data", ""))
	d.Run(t, container(flags, "first", "--detach", image, "sleep", "1000")...)
	t.Cleanup(func() { _, _ = d.Try("rm", "--force", "c-first") })
	r := h.Try("workload", "stop", "first")
}
