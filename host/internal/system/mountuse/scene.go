package mountuse

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/bounded"
	"github.com/pannier/pannier/internal/procfs"
)

// Scene is what is mounted at and below some paths at one moment, or was, where this and other mount namespaces have
// copies of it, and all processes of the machine. Users finds the processes that have files of those mounts open.
type Scene struct {
	Places []Place           // in this process's mount namespace, in the order of mounting
	Copies map[Copy]Origin   // the copies in all namespaces
	Loops  map[string]string // loop devices whose file is in a place: their names, and the scene's paths
	Swaps  []string          // what the kernel swaps to, in places and copies
	// Disks are the block devices that only places and copies are mounted from, and those that are places, or are
	// stacked on one; with the scene's paths.
	Disks      map[Disk]string
	Processes  map[int]procfs.Stat // without those that have ended with all their threads
	Namespaces map[int]uint64      // the mount namespaces of Processes

	own     uint64 // this process's mount namespace
	dir     string // see look
	asked   map[string]bool
	gone    []gone
	spots   map[place]bool // where the scene's paths are, and what is mounted below them
	views   map[Tree]view
	known   map[int]bool       // the IDs of all mounts in all namespaces
	ids     map[int]string     // by ID of a place or a copy: its path
	devices map[uint64]string  // by file system of which nothing else is mounted: its path
	watched map[uint64]bool    // the file systems of places, copies, and what is gone
	blocks  map[uint64]string  // by block device that is bound at a place: its path
	loops   map[string]string  // the machine's loop devices with a file: its path
	seen    map[uint64][]shown // by namespace: where its processes see places and copies
	parts   []part             // of file systems of which something else is mounted
	nodes   []node             // the device nodes of places in the /dev of namespaces
}

// Original is a volume's mount at a path of this process's namespace.
type Original struct {
	Path string
	Was  *Identity // as it was seen there; nil: it is not known
}

// gone is an original that is no longer mounted at its path: its copies and its users may be left.
type gone struct {
	path   string
	was    *mountinfo.Info
	order  int // of the volume's first mount in the mount table, or its length
	unique uint64
}

// Place is a mount at one of the scene's paths, or below it.
type Place struct {
	*mountinfo.Info
	Path  string // the scene's path
	order int    // of the volume's first mount in the mount table
}

// Tree is what a process sees: the mounts of a namespace below the process's root directory.
type Tree struct {
	Namespace uint64
	Root      string
}

// Copy is a mount that shows a place, whole or in part. In this process's namespace it is a copy only if it is later
// than the place, and no agent's: an earlier one is what the driver serves the volume from.
type Copy struct {
	Tree   Tree
	ID     int
	Path   string // below the tree's root
	device uint64
}

// Origin is where a copy comes from.
type Origin struct {
	Path string // the scene's path
	// Layer is true if it is another file system, which lies on the place's: an overlay, or one on a block device.
	Layer bool
}

// node is a device node at a path of a namespace, and the scene's path of the device.
type node struct {
	namespace uint64
	path, of  string
}

// shown is where the processes of a namespace see a mount: at, and the scene's path it belongs to.
type shown struct{ at, path string }

// view is the mounts that a process sees, or that a namespace has.
type view struct {
	Tree
	pid    int // a process that sees them; 0: none is known
	mounts []*mountinfo.Info
}

// Look reads the mounts and the processes; Close the scene. before are the Copies of an earlier scene: their
// originals may have been unmounted since.
func Look(of []Original, before map[Copy]Origin) (*Scene, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	s, err := look(of, "", before, readViews)
	if err != nil {
		return nil, err
	}
	s.Processes = all
	s.findParts()
	s.findMembers(slices.Collect(maps.Keys(all)))
	s.findNodes("")
	s.findSwaps()
	s.findDisks()
	return s, nil
}

// look makes a scene without Processes, Namespaces, Swaps and Disks. dir is the folder of all mounts that agents make
// of volumes; empty: all that there are of these are among the originals.
func look(of []Original, dir string, before map[Copy]Origin, read reader) (*Scene, error) {
	s := &Scene{
		dir:    dir,
		Copies: map[Copy]Origin{}, asked: map[string]bool{}, spots: map[place]bool{}, known: map[int]bool{},
		ids: map[int]string{}, devices: map[uint64]string{}, watched: map[uint64]bool{}, blocks: map[uint64]string{},
		seen:  map[uint64][]shown{},
		Loops: map[string]string{}, Disks: map[Disk]string{},
	}
	var err error
	if s.own, err = procfs.MountNamespace(Self); err != nil {
		return nil, err
	}
	table, err := Read(Self)
	if err != nil {
		return nil, err
	}
	points := points(table)
	for _, o := range of {
		s.asked[o.Path] = true
		s.spots[placeOf(points, o.Path)] = true
	}
	s.findPlaces(table)
	s.findGone(of, table)
	own := s.here()
	s.views = map[Tree]view{own: {own, os.Getpid(), table}}
	others, err := read(s)
	if err != nil {
		return nil, err
	}
	maps.Copy(s.views, others)
	s.findCopies(before)
	s.findLayers()
	return s, nil
}

// here is this process's namespace.
func (s *Scene) here() Tree { return Tree{s.own, "/"} }

// Residents lists the processes of namespaces that were given a volume to use, as containers are: without it they
// would go on and write into the directory beneath, and may open a block device that they have a node of. It also
// lists those of other namespaces that show a volume: those in which it cannot be unmounted (mount_namespaces(7),
// locked mounts).
func (s *Scene) Residents(locked map[uint64]bool) (found []User) {
	add := func(namespace uint64, path, at string) {
		for pid, ns := range s.Namespaces {
			if ns == namespace && pid != 1 {
				found = append(found, User{
					PID: pid, StartTime: s.Processes[pid].StartTime, Path: path,
					Why: "it is in a mount namespace that shows the volume at " + at,
				})
			}
		}
	}
	for c, of := range s.Copies {
		if locked[c.Tree.Namespace] || s.given(c) {
			add(c.Tree.Namespace, of.Path, c.Path)
		}
	}
	for _, n := range s.nodes {
		add(n.namespace, n.of, n.path)
	}
	return found
}

// findParts finds what is gone and was a part of a file system of which something else is mounted here.
func (s *Scene) findParts() {
	for _, g := range s.gone {
		if s.devices[Device(g.was)] != "" {
			continue
		}
		if p, ok := newPart(s.views[s.here()].mounts, g.was, g.path, false); ok {
			s.parts = append(s.parts, p)
		}
	}
}

// findNodes finds the block devices that namespaces other than the host's were given, in /dev or at another path.
func (s *Scene) findNodes(destination string) {
	if len(s.blocks) == 0 {
		return
	}
	for t, v := range s.views {
		if t.Namespace == s.own || t.Namespace == s.Namespaces[1] || v.pid == 0 {
			continue
		}
		var path, of string
		err := looks.Do(fmt.Sprint("namespace ", t.Namespace), bounded.Patience, func() error { // its root may hang
			if path, of = nodeIn(v, s.blocks); path == "" {
				path, of = destination, s.blocks[deviceIn(v.pid, destination)]
			}
			return nil
		})
		if err == nil && of != "" {
			s.nodes = append(s.nodes, node{t.Namespace, path, of})
		}
	}
}

// given reports whether a copy was made for the processes of its namespace to use. A copy that came with the whole
// tree, with which a new mount namespace starts, lies where the original lies.
func (s *Scene) given(c Copy) bool {
	if s.Copies[c].Layer || c.Tree.Namespace == s.own || c.Tree.Namespace == s.Namespaces[1] {
		return false
	}
	mounts := s.views[c.Tree].mounts
	n := slices.IndexFunc(mounts, func(m *mountinfo.Info) bool { return m.ID == c.ID })
	return n >= 0 && !s.spots[lies(mounts, mounts[n])]
}

// Member returns a process that sees the tree; 0: none is known.
func (s *Scene) Member(t Tree) (pid int) { return s.views[t].pid }

// findMembers finds the namespaces of processes, and a process of each namespace.
func (s *Scene) findMembers(pids []int) {
	s.Namespaces = map[int]uint64{}
	for _, pid := range pids {
		ns, err := procfs.MountNamespace(procfs.Dir(pid))
		if err != nil {
			continue // it has ended
		}
		s.Namespaces[pid] = ns
		t := Tree{ns, "/"}
		if v, ok := s.views[t]; ok && (v.pid == 0 || pid < v.pid) {
			v.pid = pid
			s.views[t] = v
		}
	}
}

// findPlaces finds the paths' mounts in this process's namespace.
func (s *Scene) findPlaces(table []*mountinfo.Info) {
	for i, m := range table {
		path := s.askedAbove(m.Mountpoint)
		if path == "" {
			continue
		}
		s.Places = append(s.Places, Place{m, path, min(i, s.first(table, m))})
		s.ids[m.ID] = path
		if m.Mountpoint != path {
			s.spots[lies(table, m)] = true
		}
		s.seen[s.own] = append(s.seen[s.own], shown{m.Mountpoint, path})
		s.devices[Device(m)], s.watched[Device(m)] = path, true
		if n, ok := blockNumber(m); ok {
			s.blocks[n] = path
		}
	}
}

// first is the order of the first mount of a volume that an agent has made, or the length of the table.
func (s *Scene) first(table []*mountinfo.Info, of *mountinfo.Info) int {
	n := -1
	if s.dir != "" {
		v := Volume{Dir: s.dir}
		n = slices.IndexFunc(table, func(m *mountinfo.Info) bool { return v.ours(m, of) })
	}
	if n < 0 {
		return len(table)
	}
	return n
}

// findGone finds what was mounted at the paths and is not there any more.
func (s *Scene) findGone(of []Original, table []*mountinfo.Info) {
	for _, o := range of {
		if o.Was == nil {
			continue
		}
		was := o.Was.info()
		there := slices.ContainsFunc(s.Places, func(p Place) bool { return p.Path == o.Path && Shows(p.Info, was) })
		if there || o.Was.over() {
			continue
		}
		s.gone = append(s.gone, gone{o.Path, was, s.first(table, was), o.Was.Unique})
		if n, bound := o.Was.block(); bound {
			s.blocks[n] = o.Path
		}
		s.devices[Device(was)], s.watched[Device(was)] = o.Path, true
	}
}

// askedAbove returns the nearest of the scene's paths at or above path; empty: there is none.
func (s *Scene) askedAbove(path string) string {
	for ; len(path) > 1; path = filepath.Dir(path) {
		if s.asked[path] {
			return path
		}
	}
	return ""
}

// findCopies finds the mounts that show a place, or did before.
func (s *Scene) findCopies(before map[Copy]Origin) {
	for t, v := range s.views {
		for i, m := range v.mounts {
			s.known[m.ID] = true
			if t.Namespace == s.own && s.ids[m.ID] != "" {
				continue // a place
			}
			of := before[newCopy(t, m)]
			if p := s.shownBy(m, t, i); p != "" {
				of = Origin{Path: p}
			}
			if of.Path == "" {
				delete(s.devices, Device(m))
				continue
			}
			s.addCopy(t, m, of)
		}
	}
}

func newCopy(t Tree, m *mountinfo.Info) Copy {
	return Copy{Tree: t, ID: m.ID, Path: m.Mountpoint, device: Device(m)}
}

func (s *Scene) addCopy(t Tree, m *mountinfo.Info, of Origin) {
	s.Copies[newCopy(t, m)] = of
	s.ids[m.ID], s.watched[Device(m)] = of.Path, true
	s.seen[t.Namespace] = append(s.seen[t.Namespace], shown{filepath.Join(t.Root, m.Mountpoint), of.Path})
}

// shownBy returns the path whose mount is or was shown by the mount that is the i-th of a tree; empty: it is no copy.
func (s *Scene) shownBy(m *mountinfo.Info, t Tree, i int) string {
	here := t.Namespace == s.own
	if here && (OfAnAgent(m.Mountpoint) || s.dir != "" && Within(m.Mountpoint, s.dir)) {
		return ""
	}
	for _, p := range s.Places {
		if (!here || p.order < i) && Shows(m, p.Info) {
			return p.Path
		}
	}
	for _, g := range s.gone {
		if showed(m, g.was) && (!here || g.order < i || g.unique != 0 && unique(m.Mountpoint) > g.unique) {
			return g.path
		}
	}
	return ""
}

// reader reads the mounts of the namespaces other than a scene's own.
type reader func(s *Scene) (map[Tree]view, error)

// readViews reads all; on an older kernel, what processes see.
func readViews(s *Scene) (map[Tree]view, error) {
	if views, err := kernelViews(); err == nil {
		return views, nil
	}
	return processViews(s)
}

// readNeeded reads nothing if the kernel says that there is nothing of the scene in other namespaces.
func readNeeded(s *Scene) (map[Tree]view, error) {
	known := map[uint64]bool{}
	for _, m := range s.views[s.here()].mounts {
		known[Device(m)] = true
	}
	if len(s.blocks) == 0 {
		if found, err := elsewhere(func(device uint64) bool { return s.watched[device] }, known); err == nil && !found {
			return nil, nil
		}
	}
	return readViews(s)
}

// processViews reads what processes see, each tree once.
func processViews(s *Scene) (map[Tree]view, error) {
	pids, err := procfs.Numbers(procfs.Root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	views := map[Tree]view{}
	for _, pid := range pids {
		dir := procfs.Dir(pid)
		ns, err := procfs.MountNamespace(dir)
		if err != nil || ns == s.own {
			continue
		}
		root, err := os.Readlink(dir + "/root")
		t := Tree{ns, root}
		if err != nil || views[t].mounts != nil {
			continue
		}
		if table, err := Read(dir); err == nil && len(table) > 0 {
			views[t] = view{t, pid, table}
		}
	}
	return views, nil
}

// processes lists what runs by PID, without what has ended with all its threads.
func processes() (map[int]procfs.Stat, error) {
	list, err := procfs.Processes()
	if err != nil {
		return nil, err
	}
	all := make(map[int]procfs.Stat, len(list))
	for _, s := range list {
		if !s.Ended() || len(liveThreads(procfs.Dir(s.PID))) > 0 {
			all[s.PID] = s
		}
	}
	return all, nil
}

// blockNumber returns the number of the block device that is bound at a place. Such a place is a file of a devtmpfs or
// tmpfs, which stat(2) can look at without asking a driver.
func blockNumber(m *mountinfo.Info) (uint64, bool) {
	if m.FSType != "devtmpfs" && m.FSType != "tmpfs" || m.Root == "/" {
		return 0, false
	}
	var st unix.Stat_t
	if unix.Lstat(m.Mountpoint, &st) != nil {
		return 0, false
	}
	number := blockDevice(st)
	return number, number != 0
}
