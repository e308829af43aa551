package mountuse

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/owner"
	"github.com/pannier/pannier/internal/bounded"
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
	Nobody   bool // the namespace has no process, a descriptor or a bind holds it, and something has the copy busy
	// Only is true if it cannot be a copy of another mount of the same volume: there was none when it was made.
	Only bool
}

// String tells an operator what to stop.
func (h Holder) String() string {
	access := "read-write"
	if h.ReadOnly {
		access = "read-only"
	}
	if h.Nobody {
		return fmt.Sprintf("something in a mount namespace that no process is in, which has it at %s, %s", h.Path, access)
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
	if h.Nobody {
		return ""
	}
	if h.PID == 0 {
		return "umount " + h.Path
	}
	return owner.Of(h.PID, h.Group).Stop
}

// Volume is one mount of a volume, which an agent has made at a path, or may have.
type Volume struct {
	Original
	Dir         string // the folder of all mounts of volumes: what lies in it is no copy
	Destination string // where a container may have a device node, if the volume is a block device
}

// Holders lists the copies of a volume's mount, or of a part of it, in this mount namespace, and in each other one
// with a process that sees them; and the layers on it. If that is a block device, a device node of the same number
// counts too, in a namespace's /dev or at the destination: container engines make one, and let the container open it
// as long as it runs.
//
// Not listed are copies that unmounting removes as well, because unmounting propagates to them (mount_namespaces(7)),
// as in a driver's container; and copies that came with a copy of the whole tree that a new mount namespace starts
// with: nobody was given them to use, and Left unmounts them. In this namespace copies are later than the volume's
// first mount: an earlier one is what the driver serves the volume from.
func Holders(v Volume) ([]Holder, error) {
	s, err := v.search(readNeeded)
	return s.given(), err
}

// Left returns the copies that are left of a volume's mount that was unmounted. Before, it unmounts those that nobody
// was given, or that no process can see.
func Left(v Volume) ([]Holder, error) {
	s, err := v.search(readNeeded)
	return append(s.given(), s.unmountStrays()...), err
}

// Open finds the processes that have a file of a volume open, or mapped, through a mount that no longer exists.
func Open(v Volume) ([]User, error) {
	if v.Was == nil || v.Was.over() {
		return nil, nil
	}
	if _, bound := v.Was.block(); v.Was.Disk != nil && !bound {
		if _, err := v.Was.Disk.open(); err == nil {
			return nil, nil // the kernel has no such file system any more
		}
	}
	sc, err := look([]Original{v.Original}, v.Dir, nil, readNeeded)
	if err != nil {
		return nil, err
	}
	pids, err := procfs.Numbers(procfs.Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	sc.Processes = map[int]procfs.Stat{}
	for _, pid := range pids {
		sc.Processes[pid] = procfs.Stat{PID: pid}
	}
	defer sc.Close()
	was := v.Was.info()
	if p, ok := newPart(sc.views[sc.here()].mounts, was, v.Path, true); ok {
		sc.parts = []part{p}
		delete(sc.devices, p.device)
	} else {
		sc.devices[Device(was)] = v.Path
	}
	return sc.Users(false), nil
}

// copySearch collects the copies of a volume's mount.
type copySearch struct {
	Volume
	scene *Scene
	found []candidate
}

// candidate is a holder, unless unmounting propagates to its copy, or it is nobody's.
type candidate struct {
	Holder
	tree  Tree
	id    int
	lies  spot
	stray bool // it came with a copy of the whole tree
}

// spot is where something is mounted, apart from any namespace. Unmounting propagates to the same directory of the
// mounts that receive from the one that it lies on.
type spot struct {
	place
	group   string   // that mount's peer group; empty: none
	masters []string // the peer groups that it receives from
}

func spotOf(table []*mountinfo.Info, m *mountinfo.Info) spot {
	group, masters := propagation(parent(table, m))
	return spot{lies(table, m), group, masters}
}

func (v Volume) search(read reader) (s copySearch, err error) {
	s.Volume = v
	if s.scene, err = look([]Original{v.Original}, v.Dir, nil, read); err != nil {
		return s, err
	}
	own := s.scene.here()
	table := s.scene.views[own].mounts
	if At(table, v.Path) == nil && len(s.scene.gone) == 0 || len(s.scene.Copies) == 0 && len(s.scene.blocks) == 0 {
		return s, nil
	}
	pids, err := procfs.Numbers(procfs.Root)
	if err != nil {
		return s, fmt.Errorf("list processes: %w", err)
	}
	s.scene.findMembers(pids)
	s.scene.findNodes(v.Destination)
	dir := placeOf(points(table), v.Dir)
	for c, of := range s.scene.Copies {
		if here := c.Tree == own; here && of.Layer && (Within(c.Path, v.Dir) || OfAnAgent(c.Path)) {
			continue // the driver has made it: it is a part of the volume
		}
		mounts := s.scene.views[c.Tree].mounts
		n := slices.IndexFunc(mounts, func(m *mountinfo.Info) bool { return m.ID == c.ID })
		at := spotOf(mounts, mounts[n])
		s.found = append(s.found, candidate{
			Holder: Holder{
				PID: s.scene.Member(c.Tree), Path: c.Path, ReadOnly: ReadOnly(mounts[n]), Only: c.Tree == own && v.only(mounts[:n]),
			},
			tree: c.Tree, id: c.ID, lies: at, stray: at.within(dir) || s.scene.spots[at.place],
		})
	}
	for _, n := range s.scene.nodes {
		t := Tree{n.namespace, "/"}
		s.found = append(s.found, candidate{Holder: Holder{PID: s.scene.Member(t), Path: n.path}, tree: t})
	}
	for i := range s.found {
		if c := &s.found[i]; c.tree == own {
			c.PID = 0
		} else {
			c.Command, c.Group = procfs.Command(c.PID), ControlGroup(c.PID)
		}
	}
	slices.SortFunc(s.found, func(a, b candidate) int { return cmp.Or(a.PID-b.PID, strings.Compare(a.Path, b.Path)) })
	return s, nil
}

// only reports whether the volume's mount is the only one of the volume's among those of a table.
func (v Volume) only(table []*mountinfo.Info) bool {
	at := At(table, v.Path)
	return at != nil && !slices.ContainsFunc(table, func(m *mountinfo.Info) bool { return m != at && v.ours(m, at) })
}

// ours reports whether a mount of this namespace is one that an agent has made of the same volume.
func (v Volume) ours(m, at *mountinfo.Info) bool {
	return Within(m.Mountpoint, v.Dir) && (Shows(m, at) || Shows(at, m))
}

// agentPath matches what package mounts makes for volumes.
var agentPath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`/csi/[^/]+/(staging|per-workload)/`) })

// OfAnAgent reports whether path is one at which an agent has volumes mounted. There may be several agents on one
// machine, and each unmounts its own.
func OfAnAgent(path string) bool { return agentPath().MatchString(path) }

// given returns the copies that were given to processes which are there, and stay when the volume is unmounted.
func (s *copySearch) given() (held []Holder) {
	for _, c := range s.left() {
		if !c.stray && (c.PID != 0 || c.tree == s.scene.here()) {
			held = append(held, c.Holder)
		}
	}
	return held
}

// strays are the unmounts of unmountStrays. Each may take as long as the file system needs to be written.
var strays bounded.Calls

// unmountStrays unmounts the other copies, which are nobody's unless something keeps them busy, and returns those that
// stay.
func (s *copySearch) unmountStrays() (held []Holder) {
	path := placeOf(points(s.scene.views[s.scene.here()].mounts), s.Path)
	for _, c := range s.left() {
		if c.PID != 0 && (!c.stray || !c.lies.within(path)) {
			continue // given, or of another mount of the volume
		}
		err := strays.Do(fmt.Sprint(c.tree, c.Path), bounded.Patience, func() error {
			return UnmountIn(c.tree, c.PID, c.Path, unix.UMOUNT_NOFOLLOW)
		})
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // else it is gone
			c.Only, c.Nobody = true, c.PID == 0
			held = append(held, s.user(c))
		}
	}
	return held
}

// user names the process that uses a copy, if one is seen to.
func (s *copySearch) user(c candidate) Holder {
	only := &Scene{ids: map[int]string{c.id: c.Path}, known: map[int]bool{c.id: true}, watched: s.scene.watched}
	for pid := range s.scene.Namespaces {
		if only.userOf(pid, false) != nil {
			c.PID, c.Command, c.Group, c.Nobody = pid, procfs.Command(pid), ControlGroup(pid), false
			break
		}
	}
	return c.Holder
}

// left returns the copies that unmounting the volume does not remove as well.
func (s *copySearch) left() (left []candidate) {
	if len(s.found) == 0 {
		return nil
	}
	here := s.scene.views[s.scene.here()].mounts
	var drivers []spot // where drivers have mounted something
	for _, m := range here {
		if Within(m.Mountpoint, s.Dir) {
			drivers = append(drivers, spotOf(here, m))
		}
	}
	receives := map[string][]string{} // the peer groups from which a group receives
	for _, v := range s.scene.views {
		for _, m := range v.mounts {
			if group, masters := propagation(m); group != "" && len(masters) > 0 {
				receives[group] = masters
			}
		}
	}
	for _, c := range s.found {
		if !slices.ContainsFunc(drivers, func(from spot) bool { return reaches(from, c.lies, receives) }) {
			left = append(left, c)
		}
	}
	return left
}

// reaches reports whether unmounting what is mounted at one spot also unmounts what is mounted at another.
func reaches(from, at spot, receives map[string][]string) bool {
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
			groups = append(groups, receives[group]...)
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

// blockAt returns the number of the block device at path, 0 for anything else.
func blockAt(path string) uint64 {
	st, err := stat(path, unix.STATX_TYPE)
	if err != nil || uint32(st.Mode)&unix.S_IFMT != unix.S_IFBLK {
		return 0
	}
	return unix.Mkdev(st.Rdev_major, st.Rdev_minor)
}

// nodeIn returns where a view's own /dev has a node of one of some block devices, and of which; empty: nowhere. A /dev
// with the machine's memory has all that the kernel has, as a privileged container's: it was not given a volume's.
func nodeIn(v view, blocks map[uint64]string) (path, of string) {
	root, seen := procfs.Dir(v.pid)+"/root", 0
	if dev := At(v.mounts, "/dev"); dev == nil || dev.FSType != "tmpfs" {
		return "", ""
	}
	if _, err := os.Lstat(root + "/dev/mem"); err == nil {
		return "", ""
	}
	const most = 4096 // whoever is there may make more
	_ = filepath.WalkDir(root+"/dev", func(name string, d fs.DirEntry, err error) error {
		there := strings.TrimPrefix(name, root)
		seen++
		if err != nil || seen > most {
			return fs.SkipAll
		}
		if d.IsDir() && there != "/dev" && At(v.mounts, there) != nil {
			return fs.SkipDir // of a file system that may hang
		}
		if d.Type()&fs.ModeDevice != 0 {
			if of = blocks[blockAt(name)]; of != "" {
				path = there
				return fs.SkipAll
			}
		}
		return nil
	})
	return path, of
}

// deviceIn returns the number of the block device at a path as a process sees it. Links cannot lead out of the
// process's root directory.
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
