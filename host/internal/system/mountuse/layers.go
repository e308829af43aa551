package mountuse

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/procfs"
)

// A layer is a mount that does not show a volume but writes to it: an overlay with a directory of the volume, or a file
// system on a block device that the volume is, that is stacked on it, or that has a file of it.

// findLayers adds the layers to the copies.
func (s *Scene) findLayers() {
	if len(s.Places) == 0 && len(s.Copies) == 0 {
		return
	}
	s.loops = procfs.LoopFiles()
	on := map[uint64]string{} // by file system that is a layer: the scene's path
	for found := true; found; {
		found = false
		s.findLoops()
		s.findStacked()
		for t, v := range s.views {
			for _, m := range v.mounts {
				if s.ids[m.ID] != "" {
					continue
				}
				path := on[Device(m)]
				if path == "" {
					path = s.layerOn(m, t)
				}
				if path != "" {
					on[Device(m)], s.devices[Device(m)] = path, path
					s.addCopy(t, m, Origin{Path: path, Layer: true})
					found = true
				}
			}
		}
	}
}

// layerOn returns the scene's path on which the file system of a mount lies.
func (s *Scene) layerOn(m *mountinfo.Info, t Tree) string {
	switch {
	case m.FSType == "overlay":
		for _, dir := range overlayDirs(m.VFSOptions) {
			if path := s.around(filepath.Join(t.Root, dir), t.Namespace); path != "" && filepath.IsAbs(dir) {
				return path
			}
		}
	case m.Major != 0:
		return s.blocks[Device(m)]
	case len(s.blocks) > 0: // such as btrfs, which has numbers of its own
		if path := s.askedAbove(m.Source); path != "" {
			return path
		}
		return s.blocks[nodeNumber(m.Source)]
	}
	return ""
}

// around returns the scene's path whose mount a path leads into, as the processes of a namespace see it.
func (s *Scene) around(path string, namespace uint64) string {
	if of := s.at(path, namespace); of != "" {
		return of
	}
	return s.askedAbove(path)
}

// octal is a character that the kernel has escaped (seq_path of the kernel).
var octal = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\\[0-7]{3}`) })

func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	return octal().ReplaceAllStringFunc(text, func(c string) string {
		n, _ := strconv.ParseUint(c[1:], 8, 8)
		return string([]byte{byte(n)})
	})
}

// overlayDirs returns the directories of an overlay, as its mounter named them.
func overlayDirs(options string) (dirs []string) {
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		value = unescape(value)
		switch key {
		case "upperdir", "workdir":
			dirs = append(dirs, value)
		case "lowerdir", "lowerdir+", "datadir+":
			value = strings.ReplaceAll(value, `\:`, "\x00")
			for dir := range strings.SplitSeq(value, ":") {
				dirs = append(dirs, strings.ReplaceAll(dir, "\x00", ":"))
			}
		}
	}
	return dirs
}

// findStacked adds to the block devices their partitions and what is stacked on them, such as device mapper's.
func (s *Scene) findStacked() {
	var todo []uint64
	for n := range s.blocks {
		todo = append(todo, n)
	}
	for ; len(todo) > 0; todo = todo[1:] {
		for _, n := range stacked(diskNumbered(todo[0]).dir()) {
			if s.blocks[n] == "" {
				s.blocks[n] = s.blocks[todo[0]]
				todo = append(todo, n)
			}
		}
	}
}

// stacked lists the partitions of a device and the devices that are stacked on it. dir is its directory in sysfs.
func stacked(dir string) (numbers []uint64) {
	holders, _ := filepath.Glob(dir + "/holders/*/dev")
	partitions, _ := filepath.Glob(dir + "/*/partition")
	for _, p := range partitions {
		holders = append(holders, filepath.Dir(p)+"/dev")
	}
	for _, file := range holders {
		text, _ := os.ReadFile(file)
		if n := deviceNumber(strings.TrimSpace(string(text)), 10); n != 0 {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// findLoops adds the loop devices whose file is in a place or a copy of this namespace, or is one of the block devices.
func (s *Scene) findLoops() {
	for name, backing := range s.loops {
		backing = strings.TrimSuffix(backing, " (deleted)")
		path := s.blocks[nodeNumber(backing)]
		if path == "" {
			path = s.around(backing, s.own)
		}
		if path != "" && s.Loops[name] == "" {
			s.Loops[name] = path
			s.blocks[nodeNumber("/dev/"+name)] = path
		}
	}
}

// nodeNumber returns the number of a block device in /dev; 0 for any other path.
func nodeNumber(path string) uint64 {
	var st unix.Stat_t
	if !strings.HasPrefix(path, "/dev/") || unix.Stat(path, &st) != nil {
		return 0
	}
	return blockDevice(st)
}

// findSwaps finds what the kernel swaps to (proc(5), swaps): files of places and copies, and block devices of them.
func (s *Scene) findSwaps() {
	text, _ := os.ReadFile("/proc/swaps")
	for line := range strings.Lines(string(text)) {
		path, _, _ := strings.Cut(line, " ")
		if path = unescape(path); !strings.HasPrefix(path, "/") {
			continue // the header
		}
		if s.around(path, s.own) != "" || s.blocks[nodeNumber(path)] != "" {
			s.Swaps = append(s.Swaps, path)
		}
	}
}

// findDisks lists what Disks says.
func (s *Scene) findDisks() {
	for _, p := range s.Places {
		if s.devices[Device(p.Info)] == "" {
			continue
		}
		if d, ok := DiskOf(p.Info); ok {
			s.Disks[d] = p.Path
		}
	}
	for n, path := range s.blocks {
		s.Disks[diskNumbered(n)] = path
	}
}
