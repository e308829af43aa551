package testhost

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// Mounts lists what is mounted below the host's directory.
func (h *Host) Mounts() []string {
	h.t.Helper()
	table := "/proc/self/mountinfo"
	if h.Namespace != 0 {
		table = fmt.Sprintf("/proc/%d/mountinfo", h.Namespace)
	}
	f, err := os.Open(table)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	found, err := mountinfo.GetMountsFromReader(f, mountinfo.PrefixFilter(h.Dir))
	if err != nil {
		h.t.Fatal(err)
	}
	var out []string
	for _, m := range found {
		out = append(out, m.Mountpoint)
	}
	return out
}

// VolumeMounts returns those of Mounts that are volumes.
func (h *Host) VolumeMounts() []string {
	h.t.Helper()
	return slices.DeleteFunc(h.Mounts(), func(m string) bool { return !strings.HasPrefix(m, h.Path("data/csi")+"/") })
}

// Loops lists the loop devices whose file is below the host's directory.
func (h *Host) Loops() []string {
	h.t.Helper()
	var out []string
	for name, file := range procfs.LoopFiles() {
		if strings.HasPrefix(file, h.Dir+"/") {
			out = append(out, "/dev/"+name)
		}
	}
	return out
}

// Processes lists the processes that were started from or for the host's directory, except the agent and the test
// itself.
func (h *Host) Processes() []int {
	h.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		h.t.Fatal(err)
	}
	var out []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() || h.agent != nil && pid == h.agent.Process.Pid {
			continue
		}
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if bytes.Contains(cmdline, []byte(h.Dir+"/")) || strings.HasPrefix(exe, h.Dir+"/") {
			out = append(out, pid)
		}
	}
	return out
}

// NothingInUse fails the test if the host has a claim, a running workload, a mount, a loop device or a directory
// of one, or a file with a secret.
func (h *Host) NothingInUse() {
	h.t.Helper()
	h.Eventually("nothing is in use", func() error {
		s, err := h.Status()
		if err != nil {
			return err
		}
		if s.GetClaims() != 0 {
			return fmt.Errorf("%d claims", s.GetClaims())
		}
		for state, n := range s.GetWorkloads() {
			if n != 0 && state != "stopped" && state != "failed" {
				return fmt.Errorf("%d workloads are %s", n, state)
			}
		}
		// The tmpfs of the secrets stays mounted until the agent ends.
		if m := slices.DeleteFunc(h.Mounts(), func(m string) bool { return m == h.SecretsDir() }); len(m) > 0 {
			return fmt.Errorf("mounts %q", m)
		}
		if l := h.Loops(); len(l) > 0 {
			return fmt.Errorf("loop devices %q", l)
		}
		for _, pattern := range []string{"data/csi/*/staging/*", "data/csi/*/per-workload/*", "data/secrets/[^.]*"} {
			if left, _ := filepath.Glob(h.Path(pattern)); len(left) > 0 {
				return fmt.Errorf("files or directories %q", left)
			}
		}
		return nil
	})
}

// cleanUp ends and removes everything that the test has left.
func (h *Host) cleanUp() {
	if h.agent != nil {
		_ = h.agent.Process.Kill()
		<-h.ended
		h.agent = nil
	}
	deadline := time.Now().Add(Wait)
	for pids := h.Processes(); len(pids) > 0; pids = h.Processes() {
		if time.Now().After(deadline) {
			h.t.Errorf("processes of %s do not end: %v", h.Name, pids)
			break
		}
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				h.t.Errorf("kill process %d: %v", pid, err)
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	for _, path := range slices.Backward(h.Mounts()) {
		if out, err := h.InNamespace("umount", "-l", path).CombinedOutput(); err != nil {
			h.t.Errorf("unmount %s: %v: %s", path, err, out)
		}
	}
	for _, dev := range h.Loops() {
		if f, err := os.Open(dev); err == nil {
			_ = unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0)
			f.Close()
		}
	}
	h.raceFree()
	if h.t.Failed() {
		h.t.Logf("%s", h.LogTail())
	}
	if err := os.RemoveAll(h.Dir); err != nil {
		h.t.Error(err)
	}
}

// raceFree fails the test if the race detector has reported something in the agent, or in plugins whose output the
// agent logs: a report does not end them.
func (h *Host) raceFree() {
	log, err := os.ReadFile(h.Path("agent.log"))
	if err != nil {
		return // it was never started
	}
	if at := bytes.Index(log, []byte("DATA RACE")); at >= 0 {
		h.t.Errorf("the race detector found:\n%s", log[at:min(len(log), at+6<<10)])
	}
}
