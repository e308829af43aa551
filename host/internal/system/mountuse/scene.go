package mountuse

import (
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// Scene is what is mounted at and below some paths at one moment, where this and other mount namespaces have copies of
// it, and all processes of the machine. Users finds the processes that have files of those mounts open.
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
	asked   map[string]bool
	views   map[Tree]view
	known   map[int]bool       // the IDs of all mounts in all namespaces
	ids     map[int]string     // by ID of a place or a copy: its path
	devices map[uint64]string  // by file system of which nothing else is mounted: its path
	blocks  map[uint64]string  // by block device that is bound at a place: its path
	loops   map[string]string  // the machine's loop devices with a file: its path
	seen    map[uint64][]shown // by namespace: where its processes see places and copies
}

// Place is a mount at one of the scene's paths, or below it.
type Place struct {
	*mountinfo.Info
	Path  string // the scene's path
	order int    // in the mount table
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
	// Layer says that it is another file system, which lies on the place's: an overlay, or one on a block device.
	Layer bool
}

// shown is where the processes of a namespace see a mount: at, and the scene's path it belongs to.
type shown struct{ at, path string }

// view is the mounts that a process sees.
type view struct {
	Tree
	pid    int
	mounts []*mountinfo.Info
}

// Look reads the mounts and the processes. before are the Copies of an earlier scene: their originals may have been
// unmounted since.
func Look(paths []string, before map[Copy]Origin) (*Scene, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	s, err := look(paths, before, slices.Collect(maps.Keys(all)))
	if err != nil {
		return nil, err
	}
	s.Processes = all
	s.findSwaps()
	s.findDisks()
	return s, nil
}

// look makes a scene without Processes, Swaps and Disks: of the processes it reads only which mounts they see.
func look(paths []string, before map[Copy]Origin, pids []int) (*Scene, error) {
	s := &Scene{
		Copies: map[Copy]Origin{}, asked: map[string]bool{}, known: map[int]bool{}, ids: map[int]string{},
		devices: map[uint64]string{}, blocks: map[uint64]string{}, seen: map[uint64][]shown{},
		Loops: map[string]string{}, Disks: map[Disk]string{},
	}
	for _, path := range paths {
		s.asked[path] = true
	}
	var err error
	if s.own, err = procfs.MountNamespace(Self); err != nil {
		return nil, err
	}
	table, err := Read(Self)
	if err != nil {
		return nil, err
	}
	s.findPlaces(table)
	s.views, s.Namespaces = readViews(pids, s.own)
	own := Tree{s.own, "/"}
	s.views[own] = view{own, os.Getpid(), table}
	s.findCopies(before)
	s.findLayers()
	return s, nil
}

// Given reports whether a copy was made for the processes of its namespace to use, as a container's is. A copy that
// came with the whole tree, with which a new mount namespace starts, is at the path of the original.
func (s *Scene) Given(c Copy) bool {
	return !s.Copies[c].Layer && c.Tree.Namespace != s.own && c.Tree.Namespace != s.Namespaces[1] &&
		s.askedAbove(c.Path) == "" && !OfAnAgent(c.Path)
}

// Member returns a process that sees the tree.
func (s *Scene) Member(t Tree) (pid int) { return s.views[t].pid }

// findPlaces finds the paths' mounts in this process's namespace.
func (s *Scene) findPlaces(table []*mountinfo.Info) {
	for i, m := range table {
		path := s.askedAbove(m.Mountpoint)
		if path == "" {
			continue
		}
		p := Place{m, path, i}
		s.Places = append(s.Places, p)
		s.ids[m.ID] = path
		s.seen[s.own] = append(s.seen[s.own], shown{m.Mountpoint, path})
		s.devices[Device(m)] = path
		if n, ok := blockNumber(m); ok {
			s.blocks[n] = path
		}
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
	s.ids[m.ID] = of.Path
	s.seen[t.Namespace] = append(s.seen[t.Namespace], shown{filepath.Join(t.Root, m.Mountpoint), of.Path})
}

// shownBy returns the path whose mount is shown by the mount that is the i-th of a tree; empty: it is no copy.
func (s *Scene) shownBy(m *mountinfo.Info, t Tree, i int) string {
	here := t.Namespace == s.own
	if here && OfAnAgent(m.Mountpoint) {
		return ""
	}
	for _, p := range s.Places {
		if (!here || p.order < i) && Shows(m, p.Info) {
			return p.Path
		}
	}
	return ""
}

// readViews reads the mounts of each tree once, except those of the namespace own, and returns the namespaces of the
// processes.
func readViews(pids []int, own uint64) (views map[Tree]view, namespaces map[int]uint64) {
	views, namespaces = map[Tree]view{}, map[int]uint64{}
	for _, pid := range pids {
		dir := procfs.Dir(pid)
		ns, err := procfs.MountNamespace(dir)
		if err != nil {
			continue // it has ended
		}
		namespaces[pid] = ns
		if ns == own {
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
	return views, namespaces
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
