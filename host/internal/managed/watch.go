package managed

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/pannier/pannier/host/internal/system/filewatch"
)

// WatchFiles calls changed at once, and when the files in dir, or those that links in it lead to, may have changed
// and have not since for settle. links lists what may be a link. soon is called at each change. Both may be nil. It
// returns when ctx has ended. A change that the file system does not report is found after poll.
func WatchFiles(ctx context.Context, dir string, links func() []string, settle, poll time.Duration,
	soon, changed func(),
) {
	if links == nil {
		links = func() []string { return nil }
	}
	if soon == nil {
		soon = func() {}
	}
	watch := watchAll(dir, links())
	for {
		changed()
		settled := time.NewTimer(poll)
		changes := watch.Changed()
		for waiting := true; waiting; {
			select {
			case _, more := <-changes:
				if !more { // the directory itself is another one now
					changes = nil
				}
				soon()
				settled.Reset(settle)
			case <-settled.C:
				waiting = false
			case <-ctx.Done():
				settled.Stop()
				watch.Stop()
				return
			}
		}
		next := watchAll(dir, links()) // before the files are looked at: nothing is missed
		watch.Stop()
		watch = next
	}
}

// watchAll watches a directory and the directories that links in it lead to; nil if that is not possible.
func watchAll(dir string, links []string) *filewatch.Watch {
	dirs := []string{dir}
	for _, path := range links {
		if target, err := filepath.EvalSymlinks(path); err == nil && !slices.Contains(dirs, filepath.Dir(target)) {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	watch, err := filewatch.Start(dirs...)
	if err != nil {
		watch, _ = filewatch.Start(dir)
	}
	return watch
}
