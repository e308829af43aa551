package mountuse

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/internal/procfs"
)

// Holder is a copy of a mount, and a process that sees it. The copy stays when the original is unmounted. Containers
// have their volumes this way.
type Holder struct {
	PID      int    // 0: the copy is in the mount namespace of this process, for all to use
	Command  string // see procfs.Command
	Group    string // its control group, which names its container or its unit
	Path     string // where the copy is, as the process sees it
	ReadOnly bool
	// Only says that it cannot be a copy of another mount of the same volume: there was none when it was made.
	Only bool
}

// String tells an operator what to stop.
func (h Holder) String() string {
	access := "read-write"
	if h.ReadOnly {
		access = "read-only"
	}
	if h.PID == 0 {
		return fmt.Sprintf("whoever uses the mount at %s, %s (to unmount it: umount %s)", h.Path, access, h.Path)
	}
	text := fmt.Sprintf("process %d (%s), which has it at %s, %s", h.PID, h.Command, h.Path, access)
	if of := owner.Of(h.PID, h.Group).Name; of != "" {
		text = of + ", " + text
	}
	return text
}

// Stop is the command that ends the use of the copy.
func (h Holder) Stop() string {
	if h.PID == 0 {
		return "umount " + h.Path
	}
	return owner.Of(h.PID, h.Group).Stop
}

// Holders lists the copies of what is mounted at path, or of a part of it, in this mount namespace, and in each other
// one with a process that sees them; and the layers on it. If that is a block device, a device node of the same number
// at destination counts too: container engines make one, and let the container open it as long as it runs.
//
// Not listed are copies that unmounting path removes as well, because unmounting propagates to them
// (mount_namespaces(7)), as in a driver's container; and copies at a path that contains ignore, which came with a copy
// of the whole tree that a new mount namespace starts with: nobody was given them to use. Namespaces without a process
// are not seen. In this namespace the volume's mounts are those below ignore, and copies are later than the first of
// them: an earlier one is what the driver serves the volume from.
func Holders(path, ignore, destination string) ([]Holder, error) {
	return holders(path, ignore, destination, onlyHere)
}

// holders is Holders, with what tells that there is nothing in other namespaces.
func holders(path, ignore, destination string,
	onlyHere func(sc *Scene, table []*mountinfo.Info, ignore string) (bool, error),
) ([]Holder, error) {
	device, missing := deviceAt(path) // before the look: afterwards it may be unmounted, and gone
	s := copySearch{device: device, ignore: ignore, destination: destination, receives: map[string][]string{}}
	scene, err := look([]string{path}, nil, nil)
	if err != nil {
		return nil, err
	}
	own := Tree{scene.own, "/"}
	table := scene.views[own].mounts
	if s.at = topmost(table, path); s.at == nil {
		return nil, nil
	}
	if missing != nil {
		return nil, missing
	}
	if len(scene.Copies) == 0 && len(scene.blocks) == 0 && device == 0 {
		s.lookHere(table)
		if len(s.found) == 0 {
			if only, err := onlyHere(scene, table, ignore); err == nil && only {
				return nil, nil
			}
		}
	}
	return s.among(path)
}

// among returns the holders that the processes of the machine are.
func (s copySearch) among(path string) ([]Holder, error) {
	pids, err := procfs.Numbers(procfs.Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	scene, err := look([]string{path}, nil, pids)
	if err != nil {
		return nil, err
	}
	own := Tree{scene.own, "/"}
	table := scene.views[own].mounts
	if s.at = topmost(table, path); s.at == nil {
		return nil, nil
	}
	s.found = nil
	s.learn(table)
	s.lookHere(table)
	s.addLayers(scene, own)
	looked := map[uint64]bool{own.Namespace: true}
	for _, v := range slices.SortedFunc(maps.Values(scene.views), func(a, b view) int { return a.pid - b.pid }) {
		if !looked[v.Namespace] {
			looked[v.Namespace] = true
			s.look(v)
		}
	}
	return s.holders(), nil
}

// copySearch collects the copies of the mount at.
type copySearch struct {
	at                  *mountinfo.Info
	device              uint64 // 0: it is no block device
	ignore, destination string
	here                []*mountinfo.Info // the mounts in this process's namespace

	found    []candidate
	receives map[string][]string // the peer groups from which a group receives
}

// candidate is a holder, unless unmounting propagates to its copy.
type candidate struct {
	Holder
	spot place
}

// place is where something is mounted, apart from any namespace: a directory of the mount that it lies on. Unmounting
// propagates to the same directory of the mounts that receive from that one.
type place struct {
	dir     string   // in the file system of the mount that it lies on
	group   string   // that mount's peer group; empty: none
	masters []string // the peer groups that it receives from
}

func spot(table []*mountinfo.Info, m *mountinfo.Info) (at place) {
	p := parent(table, m)
	if p == nil {
		return at // it lies on nothing that the process can see
	}
	at.group, at.masters = propagation(p)
	at.dir = filepath.Join(p.Root, strings.TrimPrefix(m.Mountpoint, p.Mountpoint))
	return at
}

// lookHere looks for copies in this process's namespace.
func (s *copySearch) lookHere(table []*mountinfo.Info) {
	s.here = table
	var volume []*mountinfo.Info // the mounts of the volume so far
	for _, m := range table {
		switch {
		case Within(m.Mountpoint, s.ignore):
			if Shows(m, s.at) || Shows(s.at, m) {
				volume = append(volume, m)
			}
		case len(volume) > 0 && Shows(m, s.at) && !OfAnAgent(m.Mountpoint):
			s.found = append(s.found, candidate{
				Holder{Path: m.Mountpoint, ReadOnly: ReadOnly(m), Only: len(volume) == 1 && volume[0] == s.at}, spot(table, m),
			})
		}
	}
}

// addLayers adds the layers on the volume, except those that the driver has made: they are part of the volume. Those in
// this namespace come first: unmounting one there may remove its copies in others.
func (s *copySearch) addLayers(scene *Scene, own Tree) {
	for _, here := range []bool{true, false} {
		for c, of := range scene.Copies {
			if !of.Layer || (c.Tree == own) != here || strings.Contains(c.Path, s.ignore+"/") || OfAnAgent(c.Path) {
				continue
			}
			mounts := scene.views[c.Tree].mounts
			m := mounts[slices.IndexFunc(mounts, func(m *mountinfo.Info) bool { return m.ID == c.ID })]
			if here {
				s.found = append(s.found, candidate{Holder{Path: c.Path, ReadOnly: ReadOnly(m)}, spot(mounts, m)})
			} else {
				s.add(scene.Member(c.Tree), c.Path, ReadOnly(m), spot(mounts, m))
			}
		}
	}
}

// agentPath matches what package mounts makes for volumes.
var agentPath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/csi/[^/]+/(staging|per-workload)/`) })

// OfAnAgent reports whether path is one at which an agent has volumes mounted. There may be several agents on one
// machine, and each unmounts its own.
func OfAnAgent(path string) bool { return agentPath().MatchString(path) }

func (s *copySearch) look(v view) {
	s.learn(v.mounts)
	for _, m := range v.mounts {
		if !Shows(m, s.at) || strings.Contains(m.Mountpoint, s.ignore+"/") {
			continue
		}
		s.add(v.pid, m.Mountpoint, ReadOnly(m), spot(v.mounts, m))
	}
	if s.device != 0 && deviceIn(v.pid, s.destination) == s.device {
		s.add(v.pid, s.destination, false, place{})
	}
}

func (s *copySearch) add(pid int, path string, readOnly bool, at place) {
	s.found = append(s.found, candidate{
		Holder{PID: pid, Command: procfs.Command(pid), Group: ControlGroup(pid), Path: path, ReadOnly: readOnly}, at,
	})
}

// learn notes which peer groups of a namespace receive from others.
func (s *copySearch) learn(table []*mountinfo.Info) {
	for _, m := range table {
		if group, masters := propagation(m); group != "" && len(masters) > 0 {
			s.receives[group] = masters
		}
	}
}

func (s *copySearch) holders() (held []Holder) {
	if len(s.found) == 0 {
		return nil
	}
	var spots []place // where drivers have mounted something
	for _, m := range s.here {
		if Within(m.Mountpoint, s.ignore) {
			spots = append(spots, spot(s.here, m))
		}
	}
	for _, c := range s.found {
		if !slices.ContainsFunc(spots, func(from place) bool { return s.reaches(from, c.spot) }) {
			held = append(held, c.Holder)
		}
	}
	return held
}

// reaches reports whether unmounting what is mounted at one place also unmounts what is mounted at another.
func (s *copySearch) reaches(from, at place) bool {
	if from.group == "" || at.dir != from.dir {
		return false
	}
	groups := append(slices.Clone(at.masters), at.group)
	for seen := map[string]bool{"": true}; len(groups) > 0; groups = groups[1:] {
		group := groups[0]
		if group == from.group {
			return true
		}
		if !seen[group] {
			seen[group] = true
			groups = append(groups, s.receives[group]...)
		}
	}
	return false
}

// propagation returns the peer group of a mount and those from which it receives (proc_pid_mountinfo(5)).
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

// deviceAt returns the number of the block device at path, 0 for anything else. It asks the file system.
func deviceAt(path string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if errors.Is(err, unix.ENOTCONN) {
		return 0, nil // a FUSE file system whose server has ended
	}
	if err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return blockDevice(st), nil
}

// deviceIn is deviceAt for a path as a process sees it. Links cannot lead out of the process's root directory.
func deviceIn(pid int, path string) uint64 {
	root, err := unix.Open(procfs.Dir(pid)+"/root", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(root)
	f, err := unix.Openat2(root, path,
		&unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
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

// ControlGroup returns the longest of a process's control groups: with several hierarchies (cgroups(7)) some may be
// just the root.
func ControlGroup(pid int) (longest string) {
	raw, _ := os.ReadFile(procfs.Dir(pid) + "/cgroup")
	for line := range strings.Lines(string(raw)) {
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 &&
			len(fields[2]) > max(1, len(longest)) {
			longest = fields[2]
		}
	}
	return longest
}
