package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// hostCgroup is the name of a control group that contains only the host; the groups of its processes are then made
// beside it. In cgroup v2 only groups whose parent has no process of its own can have limits (cgroups(7), "no internal
// processes").
const hostCgroup = "pannier-agent"

// cgroupParents is where control groups can be made.
type cgroupParents struct {
	unified string // the directory in cgroup v2; empty: none
	pids    string // the one in the pids hierarchy of cgroup v1; empty: none
	// lack names the limits that control groups cannot enforce, with the reason; nil: they enforce all.
	lack error
}

// parents returns the parent groups on this host. cgroup v1's memory hierarchy is not used: Usage suffices
// for that, and its groups belong to the service manager that started the host.
var parents = sync.OnceValue(func() cgroupParents {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	own, ownErr := os.ReadFile("/proc/self/cgroup")
	if err = errors.Join(err, ownErr); err != nil {
		return cgroupParents{lack: err}
	}
	p := findParents(mounts, own)
	sweepCgroups(p.unified, time.Now())
	sweepCgroups(p.pids, time.Now())
	return p
})

// unused is the age above which an empty control group is removed. A younger one may be about to be used, perhaps by
// another host.
const unused = time.Minute

// sweepCgroups removes the groups of processes that ended while no host was running, such as those that die with their
// host. The kernel keeps groups that are in use.
func sweepCgroups(parent string, now time.Time) {
	if parent == "" {
		return
	}
	dirs, err := filepath.Glob(filepath.Join(parent, cgroupPrefix+strings.Repeat("?", len(NewToken()))))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err == nil && now.Sub(info.ModTime()) > unused {
			_ = unix.Rmdir(dir)
		}
	}
}

// Unlimited names the Limits that no control group enforces on this machine, with the reason. The host can then only
// watch Usage.
func Unlimited() error { return parents().lack }

// findParents reads /proc/self/mountinfo and /proc/self/cgroup (cgroups(7)).
func findParents(mountinfo, own []byte) cgroupParents {
	var p cgroupParents
	memory, processes := errors.New("there is no cgroup v2"), errors.New("there are no control groups")
	if dir, err := ownCgroup(mountinfo, own, ""); err == nil {
		if filepath.Base(dir) == hostCgroup {
			dir = filepath.Dir(dir)
		}
		if err = writable(dir); err == nil {
			p.unified = dir
		}
		memory = errors.Join(err, control(dir, "memory"))
		processes = errors.Join(err, control(dir, "pids"))
	}
	if processes != nil {
		if dir, err := ownCgroup(mountinfo, own, "pids"); err == nil {
			if processes = writable(dir); processes == nil {
				p.pids = dir
			}
		}
	}
	if memory != nil {
		p.lack = fmt.Errorf("memory: %w", memory)
	}
	if processes != nil {
		p.lack = errors.Join(p.lack, fmt.Errorf("processes: %w", processes))
	}
	return p
}

func writable(dir string) error {
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return fmt.Errorf("make a control group in %s: %w", dir, err)
	}
	return nil
}

// control enables a controller of cgroup v2 for the groups below dir.
func control(dir, controller string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	if data, err := os.ReadFile(file); err == nil && slices.Contains(strings.Fields(string(data)), controller) {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(string(data)), controller) {
		return fmt.Errorf("%s does not have the controller %q", dir, controller)
	}
	if err := os.WriteFile(file, []byte("+"+controller), 0); err != nil {
		return fmt.Errorf("enable the controller %q for the processes' groups: %w", controller, err)
	}
	return nil
}

// ownCgroup returns the directory of the host's own control group: in the hierarchy of a controller of cgroup v1, or
// in cgroup v2 if controller is empty.
func ownCgroup(mountinfo, own []byte, controller string) (string, error) {
	path, ok := cgroupPath(own, controller)
	if !ok {
		return "", errors.New("the host is in no control group")
	}
	for lines := bufio.NewScanner(bytes.NewReader(mountinfo)); lines.Scan(); {
		// 36 35 98:0 ROOT MOUNTPOINT options ... - TYPE source SUPEROPTIONS (proc(5))
		left, right, ok := strings.Cut(lines.Text(), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		if controller == "" && r[0] != "cgroup2" ||
			controller != "" && (r[0] != "cgroup" || !slices.Contains(strings.Split(r[2], ","), controller)) {
			continue
		}
		if rel, err := filepath.Rel(l[3], path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(l[4], rel), nil
		}
	}
	return "", errors.New("the host's control group is not mounted")
}

// cgroupPath reads /proc/self/cgroup: lines of "NUMBER:CONTROLLERS:PATH", with no
// controllers for cgroup v2.
func cgroupPath(own []byte, controller string) (string, bool) {
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), controller) {
			return f[2], true
		}
	}
	return "", false
}
