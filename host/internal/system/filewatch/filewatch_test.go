package filewatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pannier/pannier/test/lib/check"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// awaitChange waits for a change, or for the end of the watch.
func awaitChange(t *testing.T, w *Watch) (watched bool) {
	t.Helper()
	select {
	case _, watched = <-w.Changed():
		return watched
	case <-time.After(check.Patience):
		t.Fatal("nothing has changed")
		return false
	}
}

func start(t *testing.T, paths ...string) *Watch {
	t.Helper()
	w := check.Must(Start(paths...))(t)
	t.Cleanup(w.Stop)
	return w
}

// Two watches see the changes of a file, and a third one those in its directory; each ends by itself.
func TestChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	check.NoError(t, os.WriteFile(file, nil, 0o600))
	one, other, dir := start(t, file), start(t, filepath.Dir(file)+"/./file"), start(t, t.TempDir(), filepath.Dir(file))
	for range 2 {
		check.NoError(t, os.WriteFile(file, []byte("more"), 0o600))
		for _, w := range []*Watch{one, other, dir} {
			if !awaitChange(t, w) {
				t.Fatal("the watch is over")
			}
		}
	}
	one.Stop()
	one.Stop()
	check.NoError(t, os.WriteFile(file, []byte("still more"), 0o600))
	awaitChange(t, other)
	check.NoError(t, os.Rename(file, file+".old"))
	for awaitChange(t, other) { // changes that came before
	}
	awaitChange(t, dir)
	dir.Stop()
	if watcher != nil || len(watches) > 0 {
		t.Errorf("after the last watch: %v", watches)
	}
}

// What is not there is not watched, and leaves nothing behind.
func TestNothingThere(t *testing.T) {
	if _, err := Start(t.TempDir(), filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there is watched")
	}
	if watcher != nil || len(watches) > 0 {
		t.Errorf("watched: %v", watches)
	}
	var none *Watch
	none.Stop()
	if none.Changed() != nil {
		t.Error("a nil watch reports changes")
	}
}
