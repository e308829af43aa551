package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-version"

	"github.com/pannier/pannier/host/internal/system/filewatch"
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

// discover lists the files of the plugin directory by plugin name, the highest version first and files without a
// version last. A file that is not executable is listed if its name has no extension: it may belong to a plugin that
// is known. A directory that does not exist is empty. skipped is called for each file that looks like a plugin but
// cannot be one.
func discover(dir string, skipped func(file, reason string)) (map[string][]file, error) {
	if err := trusted.Dir(dir); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
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
	// rewatchEvery is how often a watch is tried again if the plugin directory does not exist or cannot be
	// watched, and how often it is checked where links in it lead.
	rewatchEvery = 5 * time.Second
)

// watchDir reads the plugin directory again whenever something in it, or in a directory that a link in it leads
// to, has changed.
func (s *Supervisor) watchDir(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.log.Error("the plugin directory cannot be watched; it is read from time to time instead", "error", err)
		s.poll(ctx)
		return
	}
	defer filewatch.Close(watcher)
	settled := time.NewTimer(0)
	defer settled.Stop()
	var retry <-chan time.Time // nil: nothing can change without an event
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
			s.unsettled.Store(true)
			settled.Reset(settleTime)
		case err := <-watcher.Errors: // the queue overflowed
			s.log.Warn("changes of the plugin directory may have been missed; it is read again", "error", err)
			settled.Reset(settleTime)
		case <-settled.C:
			_, retry = s.watchAll(watcher)
			s.unsettled.Store(false)
			s.rescan()
		case <-retry:
			var added bool
			if added, retry = s.watchAll(watcher); added {
				settled.Reset(settleTime)
			}
		}
	}
}

// poll is used instead of a watch if that is impossible.
func (s *Supervisor) poll(ctx context.Context) {
	tick := time.NewTicker(rewatchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.rescan()
		}
	}
}

// watchAll watches the plugin directory and the directories that links in it lead to. It returns whether a watch
// was added, and when to call it again: nil if the next event is soon enough.
func (s *Supervisor) watchAll(watcher *fsnotify.Watcher) (added bool, again <-chan time.Time) {
	dirs := []string{s.cfg.PluginDir}
	linked := false
	for _, files := range s.allFiles() {
		for _, f := range files {
			target, err := filepath.EvalSymlinks(f.path)
			if dir := filepath.Dir(target); err == nil && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
			linked = linked || target != f.path
		}
	}
	watched := watcher.WatchList()
	complete := true
	for _, dir := range dirs {
		if slices.Contains(watched, dir) {
			continue
		}
		err := watcher.Add(dir)
		added, complete = added || err == nil, complete && err == nil
	}
	for _, dir := range watched {
		if !slices.Contains(dirs, dir) {
			_ = watcher.Remove(dir) // it may be gone
		}
	}
	if linked || !complete {
		again = time.After(rewatchEvery)
	}
	return added, again
}

// rescan reads the plugin directory, starts new plugins, and makes all instances check which binary should run.
func (s *Supervisor) rescan() {
	found, err := discover(s.cfg.PluginDir, func(file, reason string) {
		s.log.Debug("a file of the plugin directory is not used", "file", file, "reason", reason)
	})
	if err != nil {
		s.log.Error("the plugin directory cannot be read", "error", err)
		return
	}
	s.imu.Lock()
	defer s.imu.Unlock()
	if s.closed() {
		return
	}
	s.found = found
	for name, files := range found {
		if s.instances[name] == nil && slices.ContainsFunc(files, isExecutable) {
			s.instances[name] = newInstance(s, name, s.spec(name))
			s.launchInstance(s.instances[name])
		}
	}
	for _, i := range s.instances {
		i.procs.Recheck()
	}
}
