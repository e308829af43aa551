package fence

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/system/mounttable"
	"github.com/pannier/pannier/internal/procfs"
)

// scene is what is mounted where at one moment, as far as it is guarded. Nearly all of it
// is read from /proc as text: no file system is asked, so one that hangs does not keep the
// fence from the others.
type scene struct {
	mounts    map[string]Mount // guarded paths
	own       uint64           // the fence's mount namespace
	places    []place          // what is mounted in it at guarded paths and below, in the order of mounting
	copies    map[replica]Mount
	processes map[int]procfs.Stat // all that live

	namespaces map[int]uint64             // by process
	trees      map[tree][]*mountinfo.Info // what is mounted in other namespaces
	members    map[tree]int               // a process of each tree
	known      map[int]bool               // ids of all mounts
	ids        map[int]string             // guarded paths by the mounts that show them, in all namespaces
	devices    map[uint64]string          // those by file systems that are mounted nowhere else
	blocks     map[uint64]string          // those by block devices that are bound there
	paths      map[uint64][]shown         // where they are shown, by namespace
}

// place is a mount at a guarded path, or below it.
type place struct {
	*mountinfo.Info
	guard Mount
}

// key names a place, also for people.
func (p place) key() string { return fmt.Sprintf("%d %s", p.ID, p.Mountpoint) }

// shown is where processes of a namespace see what is mounted at a guarded path.
type shown struct{ path, guard string }

// tree is what a process sees: its mount namespace, from its root directory on.
type tree struct {
	namespace uint64
	root      string
}

// replica is a mount in another namespace that shows what is mounted at a guarded path.
type replica struct {
	tree   tree
	id     int
	path   string // from the tree's root on
	device uint64
}

// look reads the mounts and the processes. before are the replicas of an earlier look:
// what they show may be unmounted in the fence's own namespace since.
func look(s State, before map[replica]Mount) (*scene, error) {
	sc := &scene{
		mounts: map[string]Mount{}, copies: map[replica]Mount{},
		namespaces: map[int]uint64{}, trees: map[tree][]*mountinfo.Info{}, members: map[tree]int{}, known: map[int]bool{},
		ids: map[int]string{}, devices: map[uint64]string{}, blocks: map[uint64]string{}, paths: map[uint64][]shown{},
	}
	for _, m := range s.Mounts {
		sc.mounts[m.Path] = m
	}
	var err error
	if sc.own, err = procfs.MountNamespace(procfs.Root + "/self"); err != nil {
		return nil, err
	}
	if sc.processes, err = processes(); err != nil {
		return nil, err
	}
	table, err := mounttable.Read(mounttable.Self)
	if err != nil {
		return nil, err
	}
	sc.findPlaces(table)
	sc.readTrees()
	sc.findCopies(before)
	return sc, nil
}

// findPlaces finds what is guarded in the fence's own namespace.
func (sc *scene) findPlaces(table []*mountinfo.Info) {
	elsewhere := map[uint64]bool{} // file systems that are mounted at other paths too
	for _, m := range table {
		sc.known[m.ID] = true
		guard, ok := sc.guardOf(m.Mountpoint)
		if !ok {
			elsewhere[mounttable.Device(m)] = true
			continue
		}
		sc.places = append(sc.places, place{m, guard})
		sc.ids[m.ID] = guard.Path
		sc.paths[sc.own] = append(sc.paths[sc.own], shown{m.Mountpoint, guard.Path})
	}
	for _, p := range sc.places {
		if n, ok := blockNumber(p.Info); ok {
			sc.blocks[n] = p.guard.Path
		}
		if !elsewhere[mounttable.Device(p.Info)] {
			sc.devices[mounttable.Device(p.Info)] = p.guard.Path
		}
	}
}

// guardOf is what guards a path: it is guarded itself, or lies below one that is.
func (sc *scene) guardOf(path string) (Mount, bool) {
	for p := path; len(p) > 1; p = filepath.Dir(p) {
		if m, ok := sc.mounts[p]; ok {
			return m, true
		}
	}
	return Mount{}, false
}

// readTrees reads, once for each tree, what processes of other namespaces see.
func (sc *scene) readTrees() {
	for pid := range sc.processes {
		dir := procfs.Dir(pid)
		ns, err := procfs.MountNamespace(dir)
		root, rootErr := os.Readlink(dir + "/root")
		if err != nil || rootErr != nil {
			continue // it has ended
		}
		sc.namespaces[pid] = ns
		t := tree{ns, root}
		if ns == sc.own || sc.trees[t] != nil {
			continue
		}
		if table, err := mounttable.Read(dir); err == nil {
			sc.trees[t], sc.members[t] = table, pid
		}
	}
}

// findCopies finds in other namespaces what is guarded, and what was.
func (sc *scene) findCopies(before map[replica]Mount) {
	for t, table := range sc.trees {
		for _, m := range table {
			sc.known[m.ID] = true
			r := replica{tree: t, id: m.ID, path: m.Mountpoint, device: mounttable.Device(m)}
			guard, shows := sc.original(m)
			if !shows {
				guard, shows = before[r]
			}
			if !shows {
				delete(sc.devices, r.device)
				continue
			}
			sc.copies[r] = guard
			sc.ids[m.ID] = guard.Path
			sc.paths[t.namespace] = append(sc.paths[t.namespace], shown{filepath.Join(t.root, m.Mountpoint), guard.Path})
		}
	}
}

// original is what guards the mount that another one shows, whole or in part.
func (sc *scene) original(m *mountinfo.Info) (Mount, bool) {
	for _, p := range sc.places {
		if mounttable.Shows(m, p.Info) {
			return p.guard, true
		}
	}
	return Mount{}, false
}

// blockNumber is that of the block device that is bound at a place: a file of a devtmpfs,
// whose kind stat(2) tells without asking any driver.
func blockNumber(m *mountinfo.Info) (uint64, bool) {
	if m.FSType != "devtmpfs" && m.FSType != "tmpfs" || m.Root == "/" {
		return 0, false
	}
	var st unix.Stat_t
	if unix.Lstat(m.Mountpoint, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, false
	}
	return st.Rdev, true
}
