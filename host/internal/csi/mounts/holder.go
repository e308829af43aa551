package mounts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/mounttable"
	"github.com/pannier/pannier/internal/procfs"
)

// Holder is a process that has in its own mount namespace what is mounted at a
// path in the host's, and would keep it when it is unmounted there. A container
// has its volumes so.
type Holder struct {
	PID      int
	Command  string // as in proc_pid_comm(5)
	Group    string // its control group, which names its container or its unit
	Path     string // where it has it
	ReadOnly bool
}

// String tells an operator what to stop.
func (h Holder) String() string {
	access := "read-write"
	if h.ReadOnly {
		access = "read-only"
	}
	text := fmt.Sprintf("process %d (%s), which has it at %s, %s", h.PID, h.Command, h.Path, access)
	if h.Group != "" {
		text += ", in the control group " + h.Group
	}
	return text
}

// Holders lists one process of each other mount namespace that holds what is
// mounted at path, or a part of it. Where that is a block device, a device node
// of the same number at destination counts too: container engines make one, and
// let the container open it as long as it runs.
//
// A copy that goes away together with the mount at path is not held, since
// unmounting propagates (mount_namespaces(7)): a driver's container has such. Nor
// is one that came with a copy of the host's whole tree, as a new mount namespace
// has one: it was not given to anybody to use.
// What cannot be seen, such as a namespace that is only held open, is not listed.
func (l Layout) Holders(path, destination string) ([]Holder, error) {
	table, err := mounttable.Read(mounttable.Self)
	if err != nil {
		return nil, err
	}
	own, err := procfs.MountNamespace(mounttable.Self)
	if err != nil {
		return nil, err
	}
	pids, err := procfs.Numbers(procfs.Root)
	if err != nil {
		return nil, err
	}
	s := search{Layout: l, at: topmost(table, path), destination: destination, receives: map[string][]string{}}
	if s.at == nil {
		return nil, nil
	}
	if s.device, err = deviceAt(path); err != nil {
		return nil, err
	}
	s.learn(table)
	s.group, _ = propagation(parent(table, s.at))
	looked := map[uint64]bool{own: true}
	for _, pid := range pids {
		// A process that has just ended holds nothing.
		if ns, err := procfs.MountNamespace(procfs.Dir(pid)); err == nil && !looked[ns] {
			looked[ns] = s.look(pid)
		}
	}
	return s.holders(), nil
}

// search collects who has the same thing mounted.
type search struct {
	Layout
	at          *mountinfo.Info
	device      uint64 // 0: no block device
	destination string
	group       string // the peer group of the mount that at lies on; empty: none

	found    []candidate
	receives map[string][]string // the peer groups from which a group receives
}

// candidate holds the thing, unless its copy goes with the host's: from are the
// peer groups from which the mount that it lies on receives.
type candidate struct {
	Holder
	from []string
}

// look looks at the namespace of a process; false if it could not.
func (s *search) look(pid int) bool {
	table, err := mounttable.Read(procfs.Dir(pid))
	if err != nil || len(table) == 0 {
		return false
	}
	s.learn(table)
	for _, m := range table {
		if !mounttable.Shows(m, s.at) || strings.Contains(m.Mountpoint, s.Dir+"/") {
			continue
		}
		group, masters := propagation(parent(table, m))
		s.add(pid, m.Mountpoint, readOnly(m), append(masters, group))
	}
	if s.device != 0 && deviceIn(pid, s.destination) == s.device {
		s.add(pid, s.destination, false, nil)
	}
	return true
}

func (s *search) add(pid int, path string, readOnly bool, from []string) {
	s.found = append(s.found, candidate{
		Holder: Holder{PID: pid, Command: procfs.Command(pid), Group: controlGroup(pid), Path: path, ReadOnly: readOnly},
		from:   from,
	})
}

// learn notes which peer groups of a namespace receive from others.
func (s *search) learn(table []*mountinfo.Info) {
	for _, m := range table {
		if group, masters := propagation(m); group != "" && len(masters) > 0 {
			s.receives[group] = masters
		}
	}
}

func (s *search) holders() (held []Holder) {
	for _, c := range s.found {
		if s.group == "" || !s.reaches(c.from) {
			held = append(held, c.Holder)
		}
	}
	return held
}

// reaches says whether what happens in the host's group reaches one of groups.
func (s *search) reaches(groups []string) bool {
	for seen := map[string]bool{"": true}; len(groups) > 0; groups = groups[1:] {
		group := groups[0]
		if group == s.group {
			return true
		}
		if !seen[group] {
			seen[group] = true
			groups = append(groups, s.receives[group]...)
		}
	}
	return false
}

// propagation is the peer group of a mount and those from which it receives
// (proc_pid_mountinfo(5)).
func propagation(m *mountinfo.Info) (group string, masters []string) {
	if m == nil {
		return "", nil
	}
	for field := range strings.FieldsSeq(m.Optional) {
		switch name, id, _ := strings.Cut(field, ":"); name {
		case "shared":
			group = id
		case "master", "propagate_from":
			masters = append(masters, id)
		}
	}
	return group, masters
}

func topmost(table []*mountinfo.Info, path string) *mountinfo.Info {
	for _, m := range slices.Backward(table) {
		if filepath.Clean(m.Mountpoint) == path {
			return m
		}
	}
	return nil
}

func parent(table []*mountinfo.Info, m *mountinfo.Info) *mountinfo.Info {
	for _, p := range table {
		if p.ID == m.Parent && p != m {
			return p
		}
	}
	return nil
}

func readOnly(m *mountinfo.Info) bool {
	return slices.Contains(strings.Split(m.Options+","+m.VFSOptions, ","), "ro")
}

// deviceAt is the number of the block device at path; 0 for anything else.
func deviceAt(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return blockDevice(st), nil
}

// deviceIn is deviceAt in the root directory of a process, out of which no link leads.
func deviceIn(pid int, path string) uint64 {
	root, err := unix.Open(procfs.Dir(pid)+"/root", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(root)
	f, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return 0
	}
	defer unix.Close(f)
	var st unix.Stat_t
	if unix.Fstat(f, &st) != nil {
		return 0
	}
	return blockDevice(st)
}

func blockDevice(st unix.Stat_t) uint64 {
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	return st.Rdev
}

// controlGroup is the longest of a process's control groups: with several
// hierarchies not each need tell (cgroups(7)).
func controlGroup(pid int) (longest string) {
	raw, _ := os.ReadFile(procfs.Dir(pid) + "/cgroup")
	for line := range strings.Lines(string(raw)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && len(fields[2]) > max(1, len(longest)) {
			longest = fields[2]
		}
	}
	return longest
}
