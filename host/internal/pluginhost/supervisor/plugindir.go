package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-version"
	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/managed"
	"github.com/pannier/pannier/host/internal/system/signing"
	"github.com/pannier/pannier/internal/trusted"
)

// unfinished are the suffixes of files that are still being written.
var unfinished = []string{
	"~", ".tmp", ".part", ".partial", ".swp", ".new", ".old", ".bak", ".dpkg-new", ".dpkg-tmp",
}

// file is an executable of the plugin directory: NAME, or NAME_vX.Y.Z if there are several versions.
type file struct {
	path       string
	version    *version.Version // from the file's name; nil: it has none
	executable bool
}

// directory is the plugin directory as it was read last.
type directory struct {
	path      string
	mu        sync.RWMutex
	byName    map[string][]file
	problem   error       // why the directory cannot be used, or not fully
	unsettled atomic.Bool // it has just changed
}

// read reads the directory again. skipped is called for each file that looks like a plugin but cannot be one. On an
// error the directory has no files.
func (d *directory) read(skipped func(file, reason string)) error {
	found, err := discover(d.path, skipped)
	problem := err
	var fs unix.Statfs_t
	switch {
	case errors.Is(err, os.ErrNotExist):
		problem, err = &trusted.Error{Path: d.path, At: d.path, Why: "does not exist", Command: "mkdir -p " + d.path}, nil
	case err == nil && unix.Statfs(d.path, &fs) == nil && fs.Flags&unix.ST_NOEXEC != 0:
		problem = &trusted.Error{
			Path: d.path, At: d.path, Why: "is on a mount with the option noexec, so that no plugin can be installed",
			Command: "mount -o remount,exec $(findmnt -no TARGET -T " + d.path + ")",
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName, d.problem = found, problem
	return err
}

// wrong returns what is wrong with the directory.
func (d *directory) wrong() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.problem
}

// files returns the files of one plugin, the highest version first.
func (d *directory) files(name string) []file {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.byName[name]
}

// startable returns the names of the plugins that have an executable file.
func (d *directory) startable() (names []string) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for name, files := range d.byName {
		if slices.ContainsFunc(files, isExecutable) {
			names = append(names, name)
		}
	}
	return names
}

// watch calls changed whenever something in the directory, or in a directory that a link in it leads to, has changed.
func (d *directory) watch(ctx context.Context, every time.Duration, changed func()) {
	managed.WatchFiles(ctx, d.path, func() (paths []string) {
		d.mu.RLock()
		defer d.mu.RUnlock()
		for _, files := range d.byName {
			for _, f := range files {
				paths = append(paths, f.path)
			}
		}
		return paths
	}, settleTime, every, func() { d.unsettled.Store(true) }, func() {
		d.unsettled.Store(false)
		changed()
	})
}

// discover lists the files of the plugin directory by plugin name, the highest version first and files without a
// version last. A file that is not executable is listed if its name has no extension: it may belong to a plugin that
// is known. skipped is called for each file that looks like a plugin but cannot be one.
func discover(dir string, skipped func(file, reason string)) (map[string][]file, error) {
	if err := trusted.Dir(dir); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the plugin directory: %w", err)
	}
	found := map[string][]file{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path) // follows links
		if err != nil || !info.Mode().IsRegular() || ignored(e.Name()) {
			continue
		}
		name, v := signing.SplitVersion(e.Name())
		executable := info.Mode()&0o111 != 0
		if !executable && v == nil && name != e.Name() {
			continue
		}
		if !goodName().MatchString(name) {
			if executable {
				skipped(e.Name(), "a plugin's name must be 1 to 64 letters, digits, - and _")
			}
			continue
		}
		found[name] = append(found[name], file{path: path, version: v, executable: executable})
	}
	for _, files := range found {
		slices.SortStableFunc(files, func(a, b file) int {
			switch {
			case a.compare(b) != 0 || a.executable == b.executable:
				return a.compare(b)
			case a.executable:
				return -1
			default:
				return 1
			}
		})
	}
	return found, nil
}

// isExecutable is the reason to start a plugin that is not known yet.
func isExecutable(f file) bool { return f.executable }

// compare orders the higher version first, and files without a version last. It returns 0 for equal versions.
func (f file) compare(o file) int {
	switch {
	case f.version == nil && o.version == nil:
		return 0
	case f.version == nil:
		return 1
	case o.version == nil:
		return -1
	default:
		return o.version.Compare(f.version)
	}
}

func ignored(file string) bool {
	return strings.HasPrefix(file, ".") || signing.IsProof(file) ||
		slices.ContainsFunc(unfinished, func(end string) bool { return strings.HasSuffix(file, end) })
}

const (
	// settleTime is how long the plugin directory must be unchanged before it is read: a file that is being copied
	// changes all the time.
	settleTime = 100 * time.Millisecond
	// defaultLook is how often the plugin directory is looked at in any case: not every file system reports changes, and
	// none reports that it is mounted otherwise.
	defaultLook = 5 * time.Second
)

// rescan reads the plugin directory, starts new plugins, and makes all instances check which binary should run.
func (s *Supervisor) rescan() {
	_ = s.found.read(func(file, reason string) { // the plugins' status says what is wrong with it
		s.log.Debug("a file of the plugin directory is not used", "file", file, "reason", reason)
	})
	s.imu.Lock()
	defer s.imu.Unlock()
	if s.closed() {
		return
	}
	for _, name := range s.found.startable() {
		if s.instances[name] == nil {
			s.launch(name)
		}
	}
	for _, i := range s.instances {
		i.procs.Recheck()
	}
}
