package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pannier/pannier/internal/atomicfile"
)

const recordName = "record.json"

// shelf is a directory of items. An item is a directory named by its id, with a record of type T and an image.
type shelf[T any] struct {
	what   string // such as "volume", for errors
	dir    string
	tmp    string // in the same file system as dir
	prefix string // of every id
}

// failed says in an error what was done to which item.
func (s shelf[T]) failed(verb, id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s %q: %w", verb, s.what, id, err)
}

func (s shelf[T]) path(id string) string  { return filepath.Join(s.dir, id) }
func (s shelf[T]) image(id string) string { return filepath.Join(s.dir, id, id+".img") }

// get reads one record. An invalid id is not found, and never becomes part of a path.
func (s shelf[T]) get(id string) (T, error) {
	var record T
	if !validID(s.prefix, id) {
		return record, ErrNotFound
	}
	data, err := os.ReadFile(filepath.Join(s.path(id), recordName))
	if errors.Is(err, os.ErrNotExist) {
		return record, ErrNotFound
	}
	if err != nil {
		return record, err
	}
	if err := json.Unmarshal(data, &record); err != nil {
		return record, fmt.Errorf("read %s: %w", filepath.Join(s.path(id), recordName), err)
	}
	return record, nil
}

// ids lists all ids in ascending order.
func (s shelf[T]) ids() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if validID(s.prefix, e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// create builds an item below tmp, with an image that fill writes, and renames it into place when all of it is on
// disk. It fails if the id exists.
func (s shelf[T]) create(id string, record T, fill func(image *os.File) error) (err error) {
	dir, err := os.MkdirTemp(s.tmp, id+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := writeImage(filepath.Join(dir, id+".img"), fill); err != nil {
		return err
	}
	if err := atomicfile.WriteJSON(filepath.Join(dir, recordName), record); err != nil { // syncs the directory too
		return err
	}
	if err := os.Rename(dir, s.path(id)); err != nil {
		return err
	}
	return atomicfile.SyncDir(s.dir)
}

// replaceImage writes a new image below tmp and renames it over the old one.
func (s shelf[T]) replaceImage(id string, fill func(image *os.File) error) error {
	tmp := filepath.Join(s.tmp, id+".img")
	if err := writeImage(tmp, fill); err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if err := os.Rename(tmp, s.image(id)); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return atomicfile.SyncDir(s.path(id))
}

// update replaces the record of an existing item.
func (s shelf[T]) update(id string, record T) error {
	return atomicfile.WriteJSON(filepath.Join(s.path(id), recordName), record)
}

// delete removes an item: it is first renamed to tmp and then deleted. It succeeds if there is none.
func (s shelf[T]) delete(id string) error {
	if !validID(s.prefix, id) {
		return nil
	}
	tomb := filepath.Join(s.tmp, id+".deleted")
	if err := os.RemoveAll(tomb); err != nil {
		return err
	}
	if err := os.Rename(s.path(id), tomb); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := atomicfile.SyncDir(s.dir); err != nil {
		return err
	}
	return os.RemoveAll(tomb)
}

// writeImage makes a file at path, lets fill write it, and syncs it.
func writeImage(path string, fill func(image *os.File) error) error {
	image, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = fill(image)
	if err == nil {
		err = image.Sync()
	}
	return errors.Join(err, image.Close())
}

// validID reports whether id has the form of newID's result.
func validID(prefix, id string) bool {
	digits, ok := strings.CutPrefix(id, prefix)
	if !ok || len(digits) != idDigits {
		return false
	}
	return strings.Trim(digits, "0123456789abcdef") == ""
}
