package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/bounded"
)

// lostAndFound is in each new ext4 file system. e2fsck(8) makes it again when it needs it.
const lostAndFound = "lost+found"

// emptied are the volumes at which empty looks.
var emptied bounded.Calls

// empty removes an empty lost+found from a file system that has nothing else: engines copy an image's content into an
// empty directory only.
func empty(path string) error {
	return emptied.Do(path, bounded.Patience, func() error { return removeLostAndFound(path) })
}

func removeLostAndFound(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("look whether it is empty: %w", err)
	}
	if len(entries) != 1 || entries[0].Name() != lostAndFound || !entries[0].IsDir() {
		return nil
	}
	err = unix.Rmdir(filepath.Join(path, lostAndFound))
	if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove its %s: %w", lostAndFound, err)
	}
	return nil
}
