package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cursor is up to where the events of one process have been handed over. It is a file,
// so that the next host knows. It is not synced: the process does not outlive the
// machine either.
type cursor struct {
	seq  uint64
	file *os.File // nil where it could not be opened
}

// cursorPath names the cursor of a process by its token, which no other process has.
func cursorPath(dir, token string) string { return filepath.Join(dir, "events", token) }

// openCursor gives a cursor that works without its file, too, where that fails.
func openCursor(dir, token string) (*cursor, error) {
	path := cursorPath(dir, token)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return &cursor{}, fmt.Errorf("open the cursor of a plugin's events: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return &cursor{}, fmt.Errorf("open the cursor of a plugin's events: %w", err)
	}
	c := &cursor{file: f}
	text, err := io.ReadAll(io.LimitReader(f, cursorLength))
	if err == nil && len(text) > 0 {
		c.seq, err = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	}
	if err != nil {
		return c, fmt.Errorf("read the cursor of a plugin's events, %s: %w", path, err)
	}
	return c, nil
}

// cursorLength of a cursor's file in bytes: always the same, so that one write
// replaces it.
const cursorLength = 21

func (c *cursor) note(seq uint64) error {
	c.seq = seq
	if c.file == nil {
		return nil
	}
	if _, err := c.file.WriteAt(fmt.Appendf(nil, "%020d\n", seq), 0); err != nil {
		return fmt.Errorf("write the cursor of a plugin's events: %w", err)
	}
	return nil
}

func (c *cursor) close() {
	if c.file != nil {
		_ = c.file.Close()
	}
}

// removeCursor forgets the events of a process that is gone.
func removeCursor(dir, token string) error {
	err := os.Remove(cursorPath(dir, token))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// sweepCursors removes those of processes that no record names.
func sweepCursors(dir string, keep map[string]bool) error {
	files, err := filepath.Glob(cursorPath(dir, "*"))
	for _, f := range files {
		if !keep[filepath.Base(f)] {
			err = errors.Join(err, os.Remove(f))
		}
	}
	return err
}
