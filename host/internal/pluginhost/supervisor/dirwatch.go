package supervisor

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleTime is how long the plugin directory must be still before it is looked at:
	// a file that is being copied changes all the time.
	settleTime = 100 * time.Millisecond
	// rewatchEvery is how often a plugin directory is looked for that is not there, or
	// cannot be watched.
	rewatchEvery = 5 * time.Second
)

// watchDir looks at the plugin directory again whenever something in it has changed,
// or where a link in it leads to.
func (s *Supervisor) watchDir(ctx context.Context) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.log.Error("the plugin directory is not watched, it is looked at from time to time", "error", err)
		s.poll(ctx)
		return
	}
	defer watcher.Close()
	settled := time.NewTimer(0)
	defer settled.Stop()
	retry := time.NewTicker(rewatchEvery)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-watcher.Events:
			settled.Reset(settleTime)
		case err := <-watcher.Errors: // more has happened than could be told
			s.log.Warn("the plugin directory is looked at again", "error", err)
			settled.Reset(settleTime)
		case <-settled.C:
			s.watchAll(watcher)
			s.rescan()
		case <-retry.C:
			if s.watchAll(watcher) {
				settled.Reset(settleTime)
			}
		}
	}
}

// poll stands in for a watch that cannot be had.
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

// watchAll watches the plugin directory and the folders that links in it lead to. It
// says whether one is new.
func (s *Supervisor) watchAll(watcher *fsnotify.Watcher) (added bool) {
	dirs := []string{s.cfg.PluginDir}
	for _, files := range s.allFiles() {
		for _, f := range files {
			target, err := filepath.EvalSymlinks(f.path)
			if dir := filepath.Dir(target); err == nil && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	watched := watcher.WatchList()
	for _, dir := range dirs {
		if !slices.Contains(watched, dir) && watcher.Add(dir) == nil {
			added = true
		}
	}
	for _, dir := range watched {
		if !slices.Contains(dirs, dir) {
			_ = watcher.Remove(dir) // it may be gone
		}
	}
	return added
}

// rescan reads the plugin directory: plugins that are new are started, and all look
// at what should run.
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
	for name := range found {
		if s.instances[name] == nil {
			i := newInstance(s, name, s.spec(name))
			s.instances[name] = i
			s.launchInstance(i)
		}
	}
	for _, i := range s.instances {
		i.look()
	}
}
