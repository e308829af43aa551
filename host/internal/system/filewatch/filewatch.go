// Package filewatch tells when files change. All watches of the process share one inotify instance. A user has few
// (inotify(7), max_user_instances).
package filewatch

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Watch is a watch of files and directories.
type Watch struct {
	paths   []string
	changed chan struct{}
}

var (
	mu      sync.Mutex
	watcher *fsnotify.Watcher       // nil: nothing is watched
	watches = map[string][]*Watch{} // by path
)

// Start watches absolute paths until Stop: of files that are there, or of directories for what is in them. It does not
// follow names: once one of the paths is renamed or deleted, the watch is over.
func Start(paths ...string) (_ *Watch, err error) {
	mu.Lock()
	defer mu.Unlock()
	if watcher == nil {
		if watcher, err = fsnotify.NewWatcher(); err != nil {
			return nil, fmt.Errorf("watch %q: %w", paths, err)
		}
		go follow(watcher) // ends with the last watch
	}
	w := &Watch{changed: make(chan struct{}, 1)}
	for _, path := range paths {
		path = filepath.Clean(path)
		w.paths = append(w.paths, path)
		watches[path] = append(watches[path], w)
	}
	for _, path := range w.paths {
		if err := watcher.Add(path); err != nil {
			w.forget()
			return nil, fmt.Errorf("watch %s: %w", path, err)
		}
	}
	return w, nil
}

// Changed receives after changes: one value for those since the last receipt. It is closed when the watch is over, and
// nil for a nil watch.
func (w *Watch) Changed() <-chan struct{} {
	if w == nil {
		return nil
	}
	return w.changed
}

// Stop ends the watch. It may be called again, and for a nil watch.
func (w *Watch) Stop() {
	if w == nil {
		return
	}
	mu.Lock()
	defer mu.Unlock()
	w.forget()
}

// forget removes the watch, and closes the watcher with the last one. mu is held.
func (w *Watch) forget() {
	if watcher == nil {
		return
	}
	for _, path := range w.paths {
		watches[path] = slices.DeleteFunc(watches[path], func(other *Watch) bool { return other == w })
		if len(watches[path]) == 0 {
			delete(watches, path)
			_ = watcher.Remove(path) // it may be gone
		}
	}
	if len(watches) == 0 {
		Close(watcher)
		watcher = nil
	}
}

// Close closes a watcher, and does not wait: the kernel takes up to 40 ms to end an inotify instance.
func Close(w *fsnotify.Watcher) {
	go func() { _ = w.Close() }()
}

// follow wakes those who watch what has changed, until the watcher is closed.
func follow(from *fsnotify.Watcher) {
	for {
		select {
		case e, ok := <-from.Events:
			if !ok {
				return
			}
			over := e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)
			mu.Lock()
			wake(e.Name, over)
			wake(filepath.Dir(e.Name), false)
			mu.Unlock()
		case _, ok := <-from.Errors: // events were lost
			if !ok {
				return
			}
			mu.Lock()
			for path := range watches {
				wake(path, false)
			}
			mu.Unlock()
		}
	}
}

// wake wakes the watches of a path, and ends them if they are over. mu is held.
func wake(path string, over bool) {
	for _, w := range slices.Clone(watches[path]) {
		if over {
			close(w.changed)
			w.forget()
			continue
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}
