// Package secretsdir keeps the files that carry a secret of a workload's service:
//
//	<dir>/<namespace>/<workload>/<service>/si_token
//
// What must stay true:
//
//   - They are on a tmpfs, never on a disk: where the directory is not on one, one is
//     mounted there.
//   - A file is 0400 and a service's folder 0700, both of the workload's user; what is
//     above them is 0711 of the agent's.
//   - A file is there as a whole or not at all: it is written to another name in its
//     folder and renamed.
//   - No link is followed below the directory. The user of a workload may put there what
//     it likes: it harms itself alone.
//   - Only what lies in a directory that bears this package's mark is ever removed.
//
// It imports the standard library, golang.org/x/sys/unix and host/internal/csi/mounts only.
package secretsdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrForeign says that what is there is not what was written: a link, a folder, or
// somebody else's.
var ErrForeign = errors.New("it is not the host's")

// ErrFull says that the tmpfs has no room left. Nothing was changed.
var ErrFull = errors.New("the secrets directory is full")

// maxFile bounds a file that is read, in bytes.
const maxFile = 4 << 20

// Place is the folder of one service of a workload.
type Place struct{ Namespace, Workload, Service string }

func (p Place) parts() []string { return []string{p.Namespace, p.Workload, p.Service} }

// check refuses names that would lead elsewhere.
func (p Place) check(file string) error {
	for _, name := range append(p.parts(), file) {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
			return fmt.Errorf("%q can be no name of a file or folder for secrets", name)
		}
	}
	return nil
}

// Dir is the directory of all workloads' secrets on this node. It is safe for
// concurrent use.
type Dir struct {
	path string
	mu   sync.Mutex // one change at a time: a parent that is empty is removed
}

// New names the directory; nothing is made before it is needed.
func New(path string) *Dir { return &Dir{path: path} }

// Path is where a file is.
func (d *Dir) Path(p Place, file string) string { return filepath.Join(d.Folder(p), file) }

// Folder is the service's folder.
func (d *Dir) Folder(p Place) string { return filepath.Join(d.Workload(p), p.Service) }

// Workload is the folder of all services of the place's workload.
func (d *Dir) Workload(p Place) string { return filepath.Join(d.path, p.Namespace, p.Workload) }

// Write puts a file there for a user, 0400, in place of what has its name. On an error
// what was there before stays; ErrFull when there is no room.
func (d *Dir) Write(p Place, file string, data []byte, uid int) error {
	if err := p.check(file); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.mount()
	if err == nil {
		err = d.write(p, file, data, uid)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("write %s: %w: remove what workloads have put below %s, or mount a bigger tmpfs there: %w", d.Path(p, file), ErrFull, d.path, err)
	default:
		return fmt.Errorf("write %s: %w", d.Path(p, file), err)
	}
}

func (d *Dir) write(p Place, file string, data []byte, uid int) error {
	folder, err := d.enter(p, &uid)
	if err != nil {
		return err
	}
	defer folder.close()
	return folder.replace(file, data, uid)
}

// Read reads a file of a user. fs.ErrNotExist: there is none; ErrForeign: it is a link,
// or another's, or others may read it.
func (d *Dir) Read(p Place, file string, uid int) ([]byte, error) {
	if err := p.check(file); err != nil {
		return nil, err
	}
	folder, err := d.enter(p, nil)
	if err == nil {
		defer folder.close()
		var data []byte
		if data, err = folder.read(file, uid); err == nil {
			return data, nil
		}
	}
	return nil, fmt.Errorf("read %s: %w", d.Path(p, file), err)
}

// RemoveFile removes one file, whatever it is. One that is not there is success.
func (d *Dir) RemoveFile(p Place, file string) error {
	if err := p.check(file); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	folder, err := d.enter(p, nil)
	if err == nil {
		defer folder.close()
		err = folder.remove(file)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", d.Path(p, file), err)
	}
	return nil
}

// Remove removes a service's folder with all that is in it, and the folders above it
// that are empty then. One that is not there is success.
func (d *Dir) Remove(p Place) error {
	if err := p.check("x"); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.within(func(root *os.Root) error { return remove(root, p.parts()) })
}

// Sweep removes what lies in the directory and is in none of the places that are to be
// kept, and of those what a write that was cut short has left. It returns what it
// removed.
func (d *Dir) Sweep(keep func(p Place) bool) (removed []string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	err = d.within(func(root *os.Root) error {
		if _, err := root.Lstat(mark); err != nil {
			return ignore(err, fs.ErrNotExist) // it was never used
		}
		s := sweep{root: root, keep: keep}
		err := s.folder(nil)
		for _, path := range s.removed {
			removed = append(removed, filepath.Join(d.path, path))
		}
		return err
	})
	return removed, err
}

// within opens the directory for removals; none is success. No name in fn leads out of
// it, and what is removed is never a link's target.
func (d *Dir) within(fn func(root *os.Root) error) error {
	root, err := os.OpenRoot(d.path)
	if err != nil {
		return ignore(err, fs.ErrNotExist)
	}
	defer root.Close()
	return fn(root)
}

// remove removes a folder and its empty parents.
func remove(root *os.Root, parts []string) error {
	if err := root.RemoveAll(filepath.Join(parts...)); err != nil {
		return err
	}
	for n := len(parts) - 1; n > 0; n-- {
		err := root.Remove(filepath.Join(parts[:n]...))
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return nil
		}
		if err := ignore(err, fs.ErrNotExist); err != nil {
			return err
		}
	}
	return nil
}

// sweep is one pass of Sweep.
type sweep struct {
	root    *os.Root
	keep    func(p Place) bool
	removed []string
}

// folder looks at what is in a folder that stays.
func (s *sweep) folder(parts []string) error {
	entries, err := fs.ReadDir(s.root.FS(), filepath.Join(append([]string{"."}, parts...)...))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := slices.Concat(parts, []string{e.Name()})
		switch {
		case len(path) == 1 && e.Name() == mark:
		case len(path) <= 3 && e.IsDir() && (len(path) < 3 || s.keep(Place{path[0], path[1], path[2]})):
			if err := s.folder(path); err != nil {
				return err
			}
			if len(path) < 3 {
				_ = s.root.Remove(filepath.Join(path...)) // where it is empty now
			}
		case len(path) == 4 && !strings.HasPrefix(e.Name(), temporary):
		default:
			if err := s.root.RemoveAll(filepath.Join(path...)); err != nil {
				return err
			}
			s.removed = append(s.removed, filepath.Join(path...))
		}
	}
	return nil
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}
