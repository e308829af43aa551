package program

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/check"
)

// Another content gives another stamp, also if size and modification time are as before.
func TestStamp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	stamp := func() Stamp {
		info, err := os.Stat(path)
		check.NoError(t, err)
		return StampOf(info)
	}
	check.NoError(t, os.WriteFile(path, []byte("one"), 0o600))
	was := stamp()
	if was != stamp() {
		t.Error("a file that does not change has another stamp")
	}
	for now := was; now.Changed == was.Changed; now = stamp() { // until the clock of the file system has moved on
		check.NoError(t, os.WriteFile(path, []byte("two"), 0o600))
		check.NoError(t, os.Chtimes(path, time.Time{}, time.Unix(0, was.Modified)))
	}
	if now := stamp(); now.Modified != was.Modified || now.Size != was.Size || now.Inode != was.Inode || now == was {
		t.Errorf("the stamp of the changed file is %+v, and was %+v", now, was)
	}
}
